"""Watches a bait: who opens, changes or adds a file in its folder, and who connects to its port."""

import ctypes
import os
import socket
import struct
import sys
from collections import Counter
from pathlib import Path
from types import TracebackType

from attacks.archives import SECRET, Bait

_KINDS = {0x01: "read", 0x02: "write", 0x04: "write", 0x08: "write", 0x20: "open", 0x100: "write", 0x200: "write",
          0x40: "write", 0x80: "write"}  # fmt: skip
_EVENT = struct.Struct("=iIII")


class Watch:
    """Counts what happens to a bait inside a ``with`` block. Without inotify only changes are seen."""

    def __init__(self, folder: Path) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._listener.setblocking(False)
        self._events = -1
        self.bait = Bait.lay(folder, self._listener.getsockname()[1])
        self.folder = folder

    def __enter__(self) -> "Watch":
        if sys.platform.startswith("linux"):
            libc = ctypes.CDLL(None)
            self._events = libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC)
            assert libc.inotify_add_watch(self._events, str(self.folder).encode(), sum(_KINDS)) > 0
        return self

    def seen(self) -> Counter[str]:
        """What has happened since the last call: ``read``, ``write``, ``open``, ``connect``, by file."""
        counts: Counter[str] = Counter()
        for mask, name in self._read_events():
            for bit, kind in _KINDS.items():
                if mask & bit and not mask & 0x40000000:  # the folder itself
                    counts[f"{kind} {name}"] += 1
        try:
            self._listener.accept()[0].close()
            counts["connect"] += 1
        except BlockingIOError:
            pass
        return counts

    def intact(self) -> bool:
        """Whether the files are there as they were; looking at them counts as reading."""
        names = sorted(path.name for path in self.folder.iterdir())
        return names == ["program", "secret", "victim"] and self.bait.victim.read_bytes() == SECRET

    def _read_events(self) -> list[tuple[int, str]]:
        found: list[tuple[int, str]] = []
        while self._events >= 0:
            try:
                data = os.read(self._events, 1 << 16)
            except BlockingIOError:
                break
            position = 0
            while position < len(data):
                _, mask, _, length = _EVENT.unpack_from(data, position)
                name = data[position + _EVENT.size : position + _EVENT.size + length].rstrip(b"\0").decode()
                found.append((mask, name))
                position += _EVENT.size + length
        return found

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._events >= 0:
            os.close(self._events)
        self._listener.close()
