"""A disk that fails: at the n-th write, rename or other change, a process is killed or refused."""

import errno
import json
import os
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

CUT, REFUSED, FULL, KILLED = "cut", "refused", "full", "killed"
KINDS = (CUT, REFUSED, FULL, KILLED)
_CREATING = os.O_CREAT
_BUFFER_BYTES = 1024


class Disk:
    """Counts changes of files; the one with the number ``point`` fails.

    ``cut``: half of the data is written, then the process is killed. ``refused``: half is written, then the disk is
    full for a moment. ``full``: it stays full. ``killed``: the change is made, then the process is killed.
    """

    def __init__(self, point: int = 0, kind: str = "") -> None:
        self.changes = 0
        self._point, self._kind = point, kind

    def change(self, do: Callable[..., Any], *given: Any, half: Callable[[], object] = lambda: None) -> Any:
        """One change of a file."""
        self.changes += 1
        if self._kind == FULL and self._point and self.changes >= self._point:
            half() if self.changes == self._point else None
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        if self.changes != self._point:
            return do(*given)
        if self._kind == KILLED:
            do(*given)
            os.kill(os.getpid(), signal.SIGKILL)
        half()
        if self._kind == CUT:
            os.kill(os.getpid(), signal.SIGKILL)
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


class _File:
    """A file for pyarrow, which otherwise writes where nothing can be patched."""

    def __init__(self, path: Path) -> None:
        self._handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
        self.closed = False
        self._buffer = b""
        self._size = 0

    def write(self, data: Any) -> int:
        self._buffer += bytes(data)
        self._size += len(data)
        if len(self._buffer) >= _BUFFER_BYTES:
            self.flush()
        return len(data)

    def flush(self) -> None:
        data, self._buffer = self._buffer, b""
        if data:
            os.write(self._handle, data)

    def close(self) -> None:
        if not self.closed:
            self.closed = True
            try:
                self.flush()
            finally:
                os.close(self._handle)

    def tell(self) -> int:
        return self._size

    def writable(self) -> bool:
        return True

    def readable(self) -> bool:
        return False

    def seekable(self) -> bool:
        return False


class _Writer:
    def __init__(self, writer: Any, file: _File) -> None:
        self._writer, self._file = writer, file

    def write_table(self, data: Any) -> None:
        self._writer.write_table(data)

    def close(self) -> None:
        self._writer.close()
        self._file.close()


class _Parquet:
    def __init__(self, real: Any) -> None:
        self._real = real

    def __getattr__(self, name: str) -> Any:
        return getattr(self._real, name)

    def ParquetWriter(self, path: Path, *given: Any, **named: Any) -> Any:  # noqa: N802
        file = _File(path)
        return _Writer(self._real.ParquetWriter(file, *given, **named), file)


@contextmanager
def failing(disk: Disk) -> Iterator[None]:
    """Let every change of a file go through ``disk``."""
    from foretell.datasets import parquet_files

    real = {name: getattr(os, name) for name in ("write", "fsync", "replace", "ftruncate", "truncate", "open")}

    def write(handle: int, data: Any) -> Any:
        return disk.change(
            real["write"], handle, data, half=lambda: real["write"](handle, bytes(data)[: len(data) // 2])
        )

    def open_(path: Any, flags: int, *more: Any, **named: Any) -> Any:
        if flags & _CREATING:
            return disk.change(lambda: real["open"](path, flags, *more, **named))
        return real["open"](path, flags, *more, **named)

    changed: dict[str, Any] = {
        name: lambda *given, name=name: disk.change(real[name], *given)
        for name in ("fsync", "replace", "ftruncate", "truncate")
    }
    parquet = parquet_files._parquet
    for name, function in {**changed, "write": write, "open": open_}.items():
        setattr(os, name, function)
    parquet_files._parquet = lambda: _Parquet(parquet())
    try:
        yield
    finally:
        parquet_files._parquet = parquet
        for name, function in real.items():
            setattr(os, name, function)


def in_child(work: Callable[[], object]) -> tuple[int, Any]:
    """Run ``work`` in a forked process: its end (0, or the signal that killed it) and its JSON answer."""
    reader, writer = os.pipe()
    sys.stdout.flush()
    process = os.fork()
    if process == 0:
        code = 1
        try:
            os.close(reader)
            os.write(writer, json.dumps(work()).encode())
            code = 0
        except BaseException as error:  # noqa: BLE001 whatever it is, the parent must know
            os.write(writer, json.dumps(f"{type(error).__name__}: {error}").encode())
        finally:
            os._exit(code)
    os.close(writer)
    with os.fdopen(reader, "rb") as file:
        data = file.read()
    _, status = os.waitpid(process, 0)
    return os.waitstatus_to_exitcode(status), json.loads(data) if data else None
