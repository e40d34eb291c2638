"""Datasets: seals: a checksum of a whole Parquet file, inside the file.

The checksums of Parquet cover its pages. One bit in the footer renames a column, and a reader takes it for one that the
file never had. The seal lies between the pages and the footer, where no reader of Parquet looks, and covers all other
bytes. Files without one are older.
"""

import hashlib
import os
from pathlib import Path

from foretell.units import MIB

_MARK = b"foretell-sha256:"
_SEAL_BYTES = len(_MARK) + hashlib.sha256().digest_size
_TAIL_BYTES = 8  # the length of the footer, and four letters


def seal(path: Path) -> None:
    """Add the seal to a file that was just written."""
    footer_start = _footer_start(path)
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").digest()
        file.seek(footer_start)
        left = memoryview(_MARK + digest + file.read())
    handle = os.open(path, os.O_WRONLY)
    try:
        os.lseek(handle, footer_start, os.SEEK_SET)
        while left:
            left = left[os.write(handle, left) :]
    finally:
        os.close(handle)


def seal_matches(path: Path) -> bool:
    """Whether a file is as it was sealed; true for one without a seal."""
    start = _footer_start(path) - _SEAL_BYTES
    if start < 0:
        return True
    with path.open("rb") as file:
        file.seek(start)
        found = file.read(_SEAL_BYTES)
        if not found.startswith(_MARK):
            return True
        footer = file.read()
        file.seek(0)
        digest, left = hashlib.sha256(), start
        while left > 0 and (block := file.read(min(left, MIB))):
            digest.update(block)
            left -= len(block)
    digest.update(footer)
    return found == _MARK + digest.digest()


def _footer_start(path: Path) -> int:
    size = path.stat().st_size
    with path.open("rb") as file:
        file.seek(max(0, size - _TAIL_BYTES))
        return size - _TAIL_BYTES - int.from_bytes(file.read(4), "little")
