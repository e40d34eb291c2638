"""Profiling: lines with a checksum: which records of a file are whole, which are damaged, and where its end is torn.

A line of a journal is JSON whose last field is a CRC-32 of the line without that field. A trace is a gzip member, which
has a CRC-32 of its own. Journals from before there were checksums are still read.
"""

import json
import re
import zlib
from collections.abc import Iterator
from dataclasses import dataclass

Line = dict[str, object]

_SEALED = re.compile(rb',"crc":"([0-9a-f]{8})"}\n\Z')
_MAGIC = b"\x1f\x8b\x08"
_CHUNK = 1 << 16
TORN = "torn end"


@dataclass(frozen=True)
class Piece:
    """A record as it is in a file: its bytes, and its content or why it has none.

    ``why`` is `TORN` where the writer was stopped at the end of the file. Everything else is damage.
    """

    start: int
    data: bytes
    line: Line | None = None
    why: str = ""


def seal(line: Line) -> bytes:
    """A record as one line with its checksum.

    >>> seal({"kind": "campaign"})
    b'{"kind":"campaign","crc":"577c4fc5"}\\n'
    """
    data = json.dumps(line, separators=(",", ":")).encode()
    return data[:-1] + b',"crc":"%08x"}\n' % zlib.crc32(data)


def split_lines(data: bytes) -> Iterator[Piece]:
    """Every line of a journal."""
    start, sealed = 0, False
    while start < len(data):
        end = data.find(b"\n", start) + 1
        if not end:
            yield Piece(start, data[start:], why=TORN)
            return
        piece = _piece(start, data[start:end], sealed)
        # lines without a checksum are from an older foretell, so they come before all others
        sealed = sealed or _SEALED.search(piece.data) is not None
        yield piece
        start = end


def _piece(start: int, data: bytes, sealed: bool) -> Piece:
    match = _SEALED.search(data)
    if match:
        content = data[: match.start()] + b"}"
        if zlib.crc32(content) != int(match.group(1), 16):
            return Piece(start, data, why="the checksum does not match")
    elif sealed:
        return Piece(start, data, why="the checksum is missing")
    else:
        content = data
    try:
        line = json.loads(content)
    except (ValueError, RecursionError):
        return Piece(start, data, why="not JSON")
    return Piece(start, data, line) if isinstance(line, dict) else Piece(start, data, why="not a record")


def split_members(data: bytes) -> Iterator[Piece]:
    """Every gzip member of a file of traces. After a damaged one, the next whole one is searched."""
    view, start = memoryview(data), 0
    while start < len(data):
        content, end, why = _member(view, start)
        if content is None:
            end = next(_members_after(data, view, start + 1), len(data))
            why = why or ("cut short" if end < len(data) else TORN)
        yield Piece(start, data[start:end], content, why)
        start = end


def _members_after(data: bytes, view: memoryview, start: int) -> Iterator[int]:
    """Where whole members begin."""
    while (start := data.find(_MAGIC, start)) >= 0:
        if _member(view, start)[0] is not None:
            yield start
        start += 1


def _member(view: memoryview, start: int) -> tuple[Line | None, int, str]:
    """The record of the gzip member at ``start``, its end, and what is wrong with it; "" where it is only cut short."""
    unpack = zlib.decompressobj(wbits=31)
    parts: list[bytes] = []
    position = start
    try:
        while not unpack.eof and position < len(view):
            chunk = view[position : position + _CHUNK]
            parts.append(unpack.decompress(chunk))
            position += len(chunk)
    except zlib.error:
        return None, position, "the checksum does not match"
    if not unpack.eof:
        return None, position, ""
    try:
        line = json.loads(b"".join(parts))
    except (ValueError, RecursionError):
        return None, position, "not JSON"
    if not isinstance(line, dict):
        return None, position, "not a record"
    return line, position - len(unpack.unused_data), ""
