"""Web: uploaded models in a private folder. Size and age are limited; all files are deleted when the server ends."""

import asyncio
import hashlib
import os
import re
import secrets
import shutil
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from foretell.errors import ModelError
from foretell.units import KIB, MIB, mib
from foretell.web.admission.clients import CLIENT, UNKNOWN
from foretell.web.questions import UPLOAD
from foretell.web.refusals import BusyError, TooLargeError, full_disk

SUFFIXES = (".onnx", ".pt2")
KEPT_S = 600.0
MAX_KEPT_UPLOADS = 8  # of the largest size
_CHUNK_BYTES = 256 * KIB
_SMALL_BYTES = MIB  # a form keeps a file of this size in memory, and its hash takes less than a millisecond
_MAX_NAME_CHARACTERS = 80


@dataclass(slots=True, eq=False)
class _Stored:
    """A file alone in its folder, and how many uploads have this content."""

    path: Path
    size_bytes: int
    owners: int = 1


@dataclass(slots=True, eq=False)
class Upload:
    """An uploaded file. On the disk it is called by the hash of its content; equal uploads share it."""

    ident: str
    path: Path
    name: str
    size_bytes: int
    stored_at: float
    client: str = UNKNOWN
    holders: int = 1
    remove: Callable[[], None] | None = None  # where others may have the same file

    def hold(self) -> None:
        """Keep the file until it is deleted once more."""
        self.holders += 1

    def delete(self) -> None:
        """Delete the file and its folder, unless somebody still holds it, or an equal upload needs it."""
        self.holders -= 1
        if self.holders > 0:
            return
        if self.remove is None:
            shutil.rmtree(self.path.parent, ignore_errors=True)
        elif self.holders == 0:
            self.remove()


class Uploads:
    """The private folder of uploads. A file that is kept stays until it expires or others need the space."""

    def __init__(self, max_bytes: int, clock: Callable[[], float] = time.monotonic) -> None:
        self.max_bytes = max_bytes
        self.folder = Path(tempfile.mkdtemp(prefix="foretell-serve-"))  # mkdtemp: only the owner may read it
        self._clock = clock
        self._kept: dict[str, Upload] = {}
        self._stored: dict[str, _Stored] = {}  # by name: the hash of the content

    async def take(self, file: BinaryIO, name: str) -> Upload:
        """Copy a received file into the private folder; the caller deletes it. What lies there already is shared."""
        ident, name = secrets.token_hex(16), safe_name(name)
        stored = self._known(file, Path(name).suffix)
        if stored is None:
            stored = await self._store(file, name, ident)
            self._stored.setdefault(stored.path.name, stored)
        else:
            stored.owners += 1
        upload = Upload(ident, stored.path, name, stored.size_bytes, self._clock(), CLIENT.get())
        upload.remove = lambda: self._remove(stored)
        return upload

    def _known(self, file: BinaryIO, suffix: str) -> _Stored | None:
        """The file of the same content, where one lies here; a large one is not looked for: its hash takes a while."""
        if file.seek(0, os.SEEK_END) > _SMALL_BYTES or not self._stored:
            file.seek(0)
            return None
        file.seek(0)
        digest = hashlib.sha256(file.read()).hexdigest()
        file.seek(0)
        return self._stored.get(f"{digest}{suffix}")

    async def _store(self, file: BinaryIO, name: str, ident: str) -> _Stored:
        folder = self.folder / ident
        try:
            folder.mkdir(mode=0o700)
            path, size_bytes = await asyncio.to_thread(_copy, file, folder, name, self.max_bytes)
        except OSError as error:
            shutil.rmtree(folder, ignore_errors=True)
            refusal = full_disk(error)
            if refusal is None:
                raise BusyError(f"The upload could not be stored: {error.strerror}. Try again later.") from error
            raise refusal from error
        except BaseException:  # also if the request is cancelled
            shutil.rmtree(folder, ignore_errors=True)
            raise
        return _Stored(path, size_bytes)

    def _remove(self, stored: _Stored) -> None:
        stored.owners -= 1
        if stored.owners <= 0:
            if self._stored.get(stored.path.name) is stored:
                del self._stored[stored.path.name]
            shutil.rmtree(stored.path.parent, ignore_errors=True)

    def keep(self, upload: Upload) -> None:
        """Keep a file for later questions; where space is short, whoever has the most there loses the oldest file."""
        self.sweep()
        self._kept[upload.ident] = upload
        while True:
            kept_bytes: Counter[str] = Counter()
            for other in self._kept.values():
                kept_bytes[other.client] += other.size_bytes
            if kept_bytes.total() <= MAX_KEPT_UPLOADS * self.max_bytes:
                return
            largest = max(kept_bytes, key=kept_bytes.__getitem__)
            self.drop(next(ident for ident, other in self._kept.items() if other.client == largest))

    def find(self, spec: str) -> Upload:
        """The kept file that ``upload:ID`` names."""
        self.sweep()
        ident = spec.removeprefix(UPLOAD)
        if ident not in self._kept:
            raise ModelError("The uploaded file was deleted: upload it again.")
        return self._kept[ident]

    def drop(self, ident: str) -> bool:
        """Delete a kept file; return whether there was one."""
        upload = self._kept.pop(ident, None)
        if upload is not None:
            upload.delete()
        return upload is not None

    def sweep(self) -> None:
        """Delete the files that have expired."""
        for ident in [key for key, upload in self._kept.items() if self._clock() - upload.stored_at > KEPT_S]:
            self.drop(ident)

    def close(self) -> None:
        """Delete everything."""
        self._kept.clear()
        self._stored.clear()
        shutil.rmtree(self.folder, ignore_errors=True)


def safe_name(name: str) -> str:
    """The name under which an upload is stored: no folders, plain characters, an allowed suffix.

    >>> safe_name("../../my net.ONNX")
    'my_net.onnx'
    """
    plain = re.sub(r"[^A-Za-z0-9_.\-]+", "_", re.split(r"[\\/]", name)[-1])
    stem, dot, suffix = plain.rpartition(".")
    stem = stem.lstrip(".-")
    # The suffix decides how a file is read, so only known ones pass.
    if not dot or f".{suffix.lower()}" not in SUFFIXES:
        raise ModelError(f"Got the file {name[:80]!r}; a model is uploaded as .onnx or .pt2.")
    return f"{stem[-_MAX_NAME_CHARACTERS:] or 'model'}.{suffix.lower()}"


def _copy(source: BinaryIO, folder: Path, name: str, max_bytes: int) -> tuple[Path, int]:
    digest, size_bytes = hashlib.sha256(), 0
    received = folder / "received"
    with received.open("xb") as target:
        while chunk := source.read(_CHUNK_BYTES):
            size_bytes += len(chunk)
            if size_bytes > max_bytes:
                raise TooLargeError(too_large(max_bytes))
            digest.update(chunk)
            target.write(chunk)
    if not size_bytes:
        raise ModelError(f"{name} is empty.")
    # Named by its content, so that equal files make equal answers whatever they are called.
    path = received.rename(folder / f"{digest.hexdigest()}{Path(name).suffix}")
    return path, size_bytes


def too_large(max_bytes: int) -> str:
    """The error message for an upload with too many bytes."""
    sentence = f"The upload has more than the {mib(max_bytes):g} MiB that are allowed"
    return f"{sentence}; an ONNX file does not need its weights here."


async def sweep_forever(uploads: Uploads, every_s: float = 30.0) -> None:
    """Delete expired files regularly, also when no request arrives."""
    while True:
        await asyncio.sleep(every_s)
        with suppress(OSError):
            uploads.sweep()
