"""Profiling: the journal of a campaign: each record is written as soon as it is known, as one line.

A line is appended with one write and forced to the disk. However a campaign ends, its journal has every finished record
once. A line that was not written completely is cut off when the journal is opened again. A record that was damaged
later is moved to another file, so that its workload is measured again.
"""

import gzip
import json
import logging
import os
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path

from foretell.errors import MeasurementError
from foretell.files import sync_folder, write_whole
from foretell.profiling.campaign.checked import TORN, Line, Piece, seal, split_lines, split_members
from foretell.profiling.workload import Workload

log = logging.getLogger("foretell.profiling")

RECORDS, TRACES = "journal.jsonl", "traces.jsonl.gz"
# the headers once more: without its header, a record does not know its machine
HEADERS = "campaigns.jsonl"
DAMAGED = "damaged.jsonl"
_SPLITTERS: dict[str, Callable[[bytes], Iterator[Piece]]] = {
    RECORDS: split_lines,
    TRACES: split_members,
    HEADERS: split_lines,
}


def record_of(kind: str, campaign_id: str, workload: Workload, part: str, status: str) -> Line:
    """The first fields of every record of a workload."""
    line: Line = {"kind": kind, "campaign_id": campaign_id, "workload_id": workload.id}
    return line | workload.to_json() | {"part": part, "status": status, "measured_at": now_text()}


def now_text() -> str:
    """The current time in the format of records."""
    return datetime.now(UTC).isoformat(timespec="milliseconds")


class Journal:
    """The append-only files of one campaign's folder."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._handles: dict[str, int] = {}
        self._torn: dict[str, int] = {}  # a file that could not be cut after a failed write → its right size

    def open(self) -> None:
        """Open or continue the journal; an incomplete last line is removed, damaged records are set aside."""
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            for name in _SPLITTERS:
                _repair(self._folder, name)
            flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC
            for name in _SPLITTERS:
                self._handles[name] = os.open(self._folder / name, flags, 0o644)
            sync_folder(self._folder)
        except OSError as error:
            self.close()
            raise MeasurementError(
                f"Cannot write to {self._folder}: {error.strerror}. Choose another --out."
            ) from error

    def append(self, line: Line) -> None:
        """Write one record."""
        self._write(RECORDS, seal(line))
        if line.get("kind") == "campaign":
            self._write(HEADERS, seal(line))

    def append_trace(self, line: Line) -> None:
        """Write the kernels of one run as a gzip member of its own, so that damage loses only this trace."""
        self._write(TRACES, gzip.compress(json.dumps(line, separators=(",", ":")).encode() + b"\n", 6))

    def _write(self, name: str, data: bytes) -> None:
        handle = self._handles[name]
        try:
            if name in self._torn:
                os.ftruncate(handle, self._torn[name])
                del self._torn[name]
            self._torn[name] = os.fstat(handle).st_size
            if os.write(handle, data) != len(data):
                raise OSError(28, "No space left on device")
            os.fsync(handle)
            del self._torn[name]
        except OSError as error:
            self._cut(name)
            raise MeasurementError(
                f"Cannot write to {self._folder}: {error.strerror}. "
                "All earlier records are safe; free some space and resume."
            ) from error

    def _cut(self, name: str) -> None:
        """Remove what a failed write left. If that fails, too, the next write or the next campaign does it."""
        if name in self._torn:
            try:
                os.ftruncate(self._handles[name], self._torn[name])
            except OSError:
                return
            del self._torn[name]

    def close(self) -> None:
        """Close all files."""
        for name in list(self._handles):
            self._cut(name)
            os.close(self._handles.pop(name))
        self._torn.clear()


def read_records(folder: Path) -> Iterator[Line]:
    """All whole records of a journal; damaged ones are left out and counted on stderr."""
    yield from _missing_headers(folder)
    yield from _read(folder / RECORDS)


def read_traces(folder: Path) -> Iterator[Line]:
    """All whole traces of a journal; damaged ones are left out and counted on stderr."""
    yield from _read(folder / TRACES)


def pieces(path: Path) -> Iterator[Piece]:
    """Every record of one file of a journal, whole or not."""
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        return
    except OSError as error:
        raise MeasurementError(f"Cannot read {path}: {error.strerror}.") from error
    yield from _SPLITTERS[path.name](data)


def _read(path: Path) -> Iterator[Line]:
    damaged = 0
    for piece in pieces(path):
        if piece.line is not None:
            yield piece.line
        else:
            damaged += piece.why != TORN
    if damaged:
        log.warning("%s: %d damaged records are left out. Run: foretell data check %s", path, damaged, path.parent)


def _missing_headers(folder: Path) -> Iterator[Line]:
    """The headers that are damaged or gone in the journal, from their second copy."""
    copies = {str(piece.line["campaign_id"]): piece.line for piece in pieces(folder / HEADERS) if piece.line}
    if copies:
        lines = (piece.line for piece in pieces(folder / RECORDS) if piece.line)
        known = {str(line["campaign_id"]) for line in lines if line.get("kind") == "campaign"}
        yield from (line for campaign_id, line in copies.items() if campaign_id not in known)


def _repair(folder: Path, name: str) -> None:
    """Cut a torn end, and move damaged records to `DAMAGED`."""
    path = folder / name
    damaged: list[Piece] = []
    torn_at = -1
    for piece in pieces(path):
        if piece.why == TORN:
            torn_at = piece.start
        elif piece.line is None:
            damaged.append(piece)
    if damaged:
        _set_aside(folder, name, damaged)
        data = path.read_bytes()
        # from the end, so that the places of the others stay right
        for start, end in [(torn_at, len(data))] * (torn_at >= 0) + [
            (piece.start, piece.start + len(piece.data)) for piece in reversed(damaged)
        ]:
            data = data[:start] + data[end:]
        write_whole(path, data)
        log.warning("%s: %d damaged records were moved to %s; they are measured again", path, len(damaged), DAMAGED)
    elif torn_at >= 0:
        os.truncate(path, torn_at)


def _set_aside(folder: Path, name: str, damaged: list[Piece]) -> None:
    path = folder / DAMAGED
    lines = path.read_bytes().splitlines() if path.exists() else []
    for piece in damaged:
        note = {"file": name, "at_byte": piece.start, "why": piece.why, "hex": piece.data.hex()}
        line = json.dumps(note, separators=(",", ":")).encode()
        # a process that was killed before it could shorten the journal has written it already
        if line not in lines:
            lines.append(line)
    write_whole(path, b"".join(line + b"\n" for line in lines))
