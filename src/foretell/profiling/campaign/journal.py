"""Profiling: the journal of a campaign: each record is written as soon as it is known, as one line.

A line is appended with one write and forced to the disk. However a campaign ends, its journal has every finished record
once. A line that was not written completely is cut off when the journal is opened again.
"""

import gzip
import json
import os
import zlib
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

from foretell.errors import MeasurementError
from foretell.profiling.workload import Workload

Line = dict[str, object]

RECORDS, TRACES = "journal.jsonl", "traces.jsonl.gz"


def record_of(kind: str, campaign_id: str, workload: Workload, part: str, status: str) -> Line:
    """The first fields of every record of a workload."""
    line: Line = {"kind": kind, "campaign_id": campaign_id, "workload_id": workload.id}
    return line | workload.to_json() | {"part": part, "status": status, "measured_at": now_text()}


def now_text() -> str:
    """The current time in the format of records."""
    return datetime.now(UTC).isoformat(timespec="milliseconds")


class Journal:
    """The two append-only files of one campaign's folder."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._records = -1
        self._traces = -1

    def open(self) -> None:
        """Open or continue the journal; an incomplete last line is removed."""
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            _cut_torn_line(self._folder / RECORDS)
            _cut_torn_member(self._folder / TRACES)
            flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC
            self._records = os.open(self._folder / RECORDS, flags, 0o644)
            self._traces = os.open(self._folder / TRACES, flags, 0o644)
        except OSError as error:
            raise MeasurementError(
                f"Cannot write to {self._folder}: {error.strerror}. Choose another --out."
            ) from error

    def append(self, line: Line) -> None:
        """Write one record."""
        self._write(self._records, json.dumps(line, separators=(",", ":")).encode() + b"\n")

    def append_trace(self, line: Line) -> None:
        """Write the kernels of one run as a gzip member of its own, so that a torn write loses only this trace."""
        data = gzip.compress(json.dumps(line, separators=(",", ":")).encode() + b"\n", 6)
        self._write(self._traces, data)

    def _write(self, handle: int, data: bytes) -> None:
        size = os.fstat(handle).st_size
        try:
            if os.write(handle, data) != len(data):
                raise OSError(28, "No space left on device")
            os.fsync(handle)
        except OSError as error:
            os.ftruncate(handle, size)
            raise MeasurementError(
                f"Cannot write to {self._folder}: {error.strerror}. "
                "All earlier records are safe; free some space and resume."
            ) from error

    def close(self) -> None:
        """Close both files."""
        for handle in (self._records, self._traces):
            if handle >= 0:
                os.close(handle)
        self._records = self._traces = -1


def read_records(folder: Path) -> Iterator[Line]:
    """All complete lines of a journal."""
    path = folder / RECORDS
    if path.exists():
        with path.open("rb") as file:
            for line in file:
                if line.endswith(b"\n"):
                    yield json.loads(line)


def read_traces(folder: Path) -> Iterator[Line]:
    """All complete traces of a journal."""
    path = folder / TRACES
    if path.exists():
        data = path.read_bytes()
        for start, end in _members(data):
            yield json.loads(gzip.decompress(data[start:end]))


def _members(data: bytes) -> Iterator[tuple[int, int]]:
    """The positions at which each complete gzip member begins and ends."""
    start = 0
    while start < len(data):
        unpack = zlib.decompressobj(wbits=31)
        try:
            unpack.decompress(data[start:])
        except zlib.error:
            return
        if not unpack.eof:
            return
        end = len(data) - len(unpack.unused_data)
        yield start, end
        start = end


def _cut_torn_line(path: Path) -> None:
    if path.exists():
        data = path.read_bytes()
        complete_bytes = data.rfind(b"\n") + 1
        if complete_bytes < len(data):
            os.truncate(path, complete_bytes)


def _cut_torn_member(path: Path) -> None:
    if path.exists():
        data = path.read_bytes()
        complete_bytes = max((end for _, end in _members(data)), default=0)
        if complete_bytes < len(data):
            os.truncate(path, complete_bytes)
