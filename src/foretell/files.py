"""Files: writes a file completely or not at all, and locks folders."""

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path


def write_whole(path: Path, data: bytes, *, durable: bool = True) -> None:
    """Write a file and create its folders. A process that is killed meanwhile leaves the old file, or none.

    A file that is not ``durable`` may be lost or cut short when the machine itself stops soon after: waiting for the
    disk takes 10 ms and more, which a file that is checked when it is read, and made again, is not worth.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, partial = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        try:
            left = memoryview(data)
            while left:
                left = left[os.write(handle, left) :]
            if durable:
                os.fsync(handle)  # on the disk before the rename, else a crash could leave a name with an empty file
        finally:
            os.close(handle)
        os.chmod(partial, 0o644)  # mkstemp makes files that only their owner can read
        os.replace(partial, path)
    except BaseException:  # also on Ctrl-C: no partial file may stay
        with suppress(OSError):
            os.unlink(partial)
        raise
    if durable:
        sync_folder(path.parent)


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Hold a folder, which is made if it is absent; raise BlockingIOError if another process holds it.

    The lock of a process that dies is freed.
    """
    import fcntl  # Unix only, as what needs it

    folder.mkdir(parents=True, exist_ok=True)
    handle = os.open(folder / ".lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    finally:
        os.close(handle)


def sync_folder(folder: Path) -> None:
    """Force the names of a folder to the disk, where the file system can do that."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        with suppress(OSError):
            os.fsync(handle)
    finally:
        os.close(handle)
