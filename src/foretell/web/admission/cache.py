"""Web: answers that were given before: the latest ones in memory, and a folder that several servers may share."""

import errno
import hashlib
import os
from collections import OrderedDict
from collections.abc import Sequence
from contextlib import suppress
from importlib import metadata
from pathlib import Path

from foretell.errors import InputError
from foretell.files import write_whole
from foretell.units import GIB, MIB

MEMORY_BYTES = 32 * MIB
FOLDER_BYTES = GIB
_SUFFIX = ".answer"
_TRIM_EVERY = 256  # answers; looking at all files takes a while
_LIBRARIES = ("onnx", "onnxruntime", "numpy", "torch", "timm", "torchvision", "transformers")


class AnswerCache:
    """The most recently used answers, up to a number of characters."""

    def __init__(self, max_bytes: int = MEMORY_BYTES) -> None:
        self._max_bytes = max_bytes
        self._answers: OrderedDict[str, str] = OrderedDict()
        self._bytes = 0

    def get(self, key: str) -> str | None:
        """The cached answer, or None."""
        answer = self._answers.get(key)
        if answer is not None:
            self._answers.move_to_end(key)
        return answer

    def put(self, key: str, text: str) -> None:
        """Store an answer; the least recently used ones are removed."""
        self._bytes += len(text) - len(self._answers.pop(key, ""))
        self._answers[key] = text
        while self._bytes > self._max_bytes:
            self._bytes -= len(self._answers.popitem(last=False)[1])


class SharedCache:
    """A folder of answers, one file each. It holds no models; whoever has a model's bytes finds its answers."""

    def __init__(self, folder: Path, version: str, max_bytes: int = FOLDER_BYTES) -> None:
        self._folder = folder
        self._version = version
        self._max_bytes = max_bytes
        self._puts = 0
        try:
            folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            if not os.access(folder, os.W_OK):
                raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
        except OSError as error:
            raise InputError(f"Cannot write to --cache-dir {folder}: {error.strerror}.") from error

    def get(self, key: str) -> str | None:
        """The cached answer, or None. A file that is damaged is no answer."""
        path = self._path(key)
        try:
            digest, _, body = path.read_bytes().partition(b"\n")
        except OSError:
            return None
        if digest != _digest(body):
            with suppress(OSError):
                path.unlink()
            return None
        with suppress(OSError):
            os.utime(path)  # marks the answer as used
        return body.decode()

    def put(self, key: str, text: str) -> bool:
        """Store an answer, or return False: a full disk must not cost the client its answer."""
        body = text.encode()
        try:
            write_whole(self._path(key), _digest(body) + b"\n" + body)
        except OSError:
            return False
        self._puts += 1
        if self._puts % _TRIM_EVERY == 1:
            self.trim()
        return True

    def trim(self) -> None:
        """Delete the least recently used answers beyond the size of the folder."""
        found: list[tuple[float, int, Path]] = []
        for path in self._folder.glob(f"*/*{_SUFFIX}"):
            with suppress(OSError):  # another server has deleted it meanwhile
                state = path.stat()
                found.append((state.st_mtime, state.st_size, path))
        total = sum(size for _, size, _ in found)
        for _, size, path in sorted(found):
            if total <= self._max_bytes:
                break
            with suppress(OSError):
                path.unlink()
            total -= size

    def _path(self, key: str) -> Path:
        name = hashlib.sha256(f"{self._version} {key}".encode()).hexdigest()
        return self._folder / name[:2] / f"{name}{_SUFFIX}"


def code_version(libraries: Sequence[str] = _LIBRARIES) -> str:
    """What an answer depends on besides its question: all files of this package, and the versions of libraries."""
    digest = hashlib.sha256()
    root = Path(__file__).parents[2]
    for path in sorted(root.rglob("*")):
        if path.is_file() and "__pycache__" not in path.parts:
            digest.update(f"{path.relative_to(root)}\0".encode() + hashlib.sha256(path.read_bytes()).digest())
    for name in libraries:
        with suppress(metadata.PackageNotFoundError):
            digest.update(f"{name} {metadata.version(name)}\0".encode())
    return digest.hexdigest()


def _digest(body: bytes) -> bytes:
    return hashlib.sha256(body).hexdigest().encode()
