"""Web: uploaded models in a private folder: a bounded number of bytes, for a bounded time, deleted in any case."""

import asyncio
import hashlib
import re
import secrets
import shutil
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from foretell.errors import ModelError
from foretell.units import KIB, mib
from foretell.web.questions import UPLOAD
from foretell.web.refusals import BusyError, TooLargeError

SUFFIXES = (".onnx", ".pt2")
KEPT_S = 600.0
SHELF_UPLOADS = 8  # of the largest size
_CHUNK = 256 * KIB
_LONGEST_NAME = 80


@dataclass(frozen=True, slots=True)
class Upload:
    """A file in a folder of its own, and what its content is."""

    ident: str
    path: Path
    digest: str
    size_bytes: int
    kept_at: float

    def delete(self) -> None:
        """Remove it with its folder."""
        shutil.rmtree(self.path.parent, ignore_errors=True)


class Uploads:
    """The private folder. What is kept for later questions lies there until it is old, or others need the room."""

    def __init__(self, max_bytes: int, clock: Callable[[], float] = time.monotonic) -> None:
        self.max_bytes = max_bytes
        self.folder = Path(tempfile.mkdtemp(prefix="foretell-serve-"))  # readable by its owner alone
        self._clock = clock
        self._kept: dict[str, Upload] = {}

    async def take(self, file: BinaryIO, name: str) -> Upload:
        """Copy what was received to a file of its own; the caller deletes it."""
        ident = secrets.token_hex(16)
        path = self.folder / ident / safe_name(name)
        try:
            path.parent.mkdir(mode=0o700)
            digest, size_bytes = await asyncio.to_thread(_copy, file, path, self.max_bytes)
        except OSError as error:
            shutil.rmtree(path.parent, ignore_errors=True)
            raise BusyError(f"The upload could not be stored: {error.strerror}. Come back later.") from error
        except BaseException:
            shutil.rmtree(path.parent, ignore_errors=True)
            raise
        return Upload(ident, path, digest, size_bytes, self._clock())

    def keep(self, upload: Upload) -> None:
        """Keep a file for later questions; the oldest go where there is no room."""
        self.sweep()
        self._kept[upload.ident] = upload
        while sum(each.size_bytes for each in self._kept.values()) > SHELF_UPLOADS * self.max_bytes:
            self.drop(next(iter(self._kept)))

    def find(self, spec: str) -> Upload:
        """The kept file that ``upload:ID`` names."""
        self.sweep()
        ident = spec.removeprefix(UPLOAD)
        if ident not in self._kept:
            raise ModelError("The uploaded file is not here any more: upload it again.")
        return self._kept[ident]

    def drop(self, ident: str) -> bool:
        """Delete a kept file; says whether it was there."""
        upload = self._kept.pop(ident, None)
        if upload is not None:
            upload.delete()
        return upload is not None

    def sweep(self) -> None:
        """Delete what is too old."""
        for ident in [key for key, each in self._kept.items() if self._clock() - each.kept_at > KEPT_S]:
            self.drop(ident)

    def close(self) -> None:
        """Delete everything."""
        self._kept.clear()
        shutil.rmtree(self.folder, ignore_errors=True)


def safe_name(name: str) -> str:
    """The name of an upload as a file may have it: no folders, plain characters, a suffix that is taken.

    >>> safe_name("../../my net.ONNX")
    'my_net.onnx'
    """
    plain = re.sub(r"[^A-Za-z0-9_.\-]+", "_", re.split(r"[\\/]", name)[-1])
    stem, dot, suffix = plain.rpartition(".")
    stem = stem.lstrip(".-")
    if not dot or f".{suffix.lower()}" not in SUFFIXES:
        raise ModelError(f"Got the file {name[:80]!r}; a model is uploaded as .onnx or .pt2.")
    return f"{stem[-_LONGEST_NAME:] or 'model'}.{suffix.lower()}"


def _copy(source: BinaryIO, path: Path, max_bytes: int) -> tuple[str, int]:
    digest, size_bytes = hashlib.sha256(), 0
    with path.open("xb") as target:
        while chunk := source.read(_CHUNK):
            size_bytes += len(chunk)
            if size_bytes > max_bytes:
                raise TooLargeError(too_large(max_bytes))
            digest.update(chunk)
            target.write(chunk)
    if not size_bytes:
        raise ModelError(f"{path.name} is empty.")
    return digest.hexdigest(), size_bytes


def too_large(max_bytes: int) -> str:
    """What is said of an upload with too many bytes."""
    allowed = f"The upload has more than the {mib(max_bytes):g} MiB that are allowed"
    return f"{allowed}; an ONNX file may come without its weights."


async def sweep_forever(uploads: Uploads, every_s: float = 30.0) -> None:
    """Delete what is old while nobody asks."""
    while True:
        await asyncio.sleep(every_s)
        with suppress(OSError):
            uploads.sweep()
