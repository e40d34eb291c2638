"""What is written to disk, step by step: prepared, done on a disk that fails, resumed, and looked at."""

import json
import os
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from foretell.datasets import journal_tables
from foretell.datasets.opening import open_store
from foretell.datasets.parquet_files import arrow_table, find_files, read_columns
from foretell.datasets.schema import TABLES
from foretell.datasets.store import merge
from foretell.errors import ForetellError
from foretell.files import write_whole
from foretell.frontends import cache
from foretell.predictors import fitted_files
from foretell.profiling.campaign.done import done_keys
from foretell.profiling.campaign.journal import DAMAGED, RECORDS, Journal, read_records, read_traces
from foretell.testing import tiny_graph

NUMBERS = range(4)
KERNEL = {
    "name": ["gemm", "relu"], "duration_us": [3.0, 1.0], "grid": [[4, 2, 1]] * 2, "block": [[128, 1, 1]] * 2,
    "registers": [40, 8], "shared_bytes": [512, 0], "occupancy_pct": [30.0, 50.0], "op_index": [0, 1],
    "op": ["a", "b"], "leaf_op": ["a", "b"], "module": ["0", "1"],
}  # fmt: skip
Found = dict[str, int]
_real_write, _real_open = os.write, os.open


@dataclass(frozen=True)
class Scenario:
    """``act`` calls its second argument with what is safe from then on. ``found`` counts what is there, by name.

    ``wanted`` has to be there once in the end. With ``whole`` a file is the old one or the new one: ``found`` then
    gives one of these names.
    """

    name: str
    prepare: Callable[[Path], object]
    act: Callable[[Path, Callable[[str], None]], object]
    found: Callable[[Path], Found]
    wanted: tuple[str, ...]
    before: tuple[str, ...] = ()
    whole: bool = False


def acknowledge(folder: Path, name: str) -> None:
    """Note that something is safe, past the disk that fails."""
    handle = _real_open(folder.with_name(folder.name + ".safe"), os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    _real_write(handle, f"{name}\n".encode())
    os.close(handle)


def acknowledged(folder: Path) -> list[str]:
    path = folder.with_name(folder.name + ".safe")
    return path.read_text().split() if path.exists() else []


def _record(number: int, campaign: str = "c") -> dict[str, object]:
    return {
        "kind": "measurement", "campaign_id": campaign, "workload_id": f"w{number}", "spec": "timm:resnet18",
        "input_shape": [3, 8, 8], "batch_size": 1, "dtype": "fp32", "mode": "inference", "status": "ok", "part": "p",
        "latency_ms": 1.5,
    }  # fmt: skip


def _trace(number: int, campaign: str = "c") -> dict[str, object]:
    return {"workload_id": f"w{number}", "campaign_id": campaign, "kernels": KERNEL}


def _header(campaign: str = "c") -> dict[str, object]:
    return {"kind": "campaign", "campaign_id": campaign, "device_name": "cpu"}


def _journal_found(folder: Path) -> Found:
    lines = [*read_records(folder), *read_traces(folder)]
    return Counter(
        f"{'record' if 'kind' in line else 'trace'}-{line['workload_id']}" for line in lines if "workload_id" in line
    )


def _write_journal(folder: Path, numbers: Sequence[int], safe: Callable[[str], None] = lambda _: None) -> None:
    journal = Journal(folder)
    journal.open()
    try:
        there = _journal_found(folder)
        if not any(line.get("kind") == "campaign" for line in read_records(folder)):
            journal.append(_header())
        for number in numbers:
            if f"trace-w{number}" not in there:
                journal.append_trace(_trace(number))
                safe(f"trace-w{number}")
            if f"record-w{number}" not in there:
                journal.append(_record(number))
                safe(f"record-w{number}")
    finally:
        journal.close()


def _keep_writing(folder: Path, safe: Callable[[str], None]) -> None:
    """A campaign that goes on after a write was refused: one record may be missing, the others may not."""
    journal = Journal(folder)
    journal.open()
    there, failed = _journal_found(folder), 0
    try:
        for number in NUMBERS:
            if f"record-w{number}" not in there:
                try:
                    journal.append(_record(number))
                    safe(f"record-w{number}")
                except ForetellError:
                    failed += 1
    finally:
        journal.close()
    if failed:
        raise OSError("refused")


def _damaged_journal(folder: Path) -> None:
    _write_journal(folder, NUMBERS)
    path = folder / RECORDS
    lines = path.read_bytes().splitlines(keepends=True)
    lines[2] = lines[2].replace(b"resnet18", b"resnet19")
    path.write_bytes(b"".join(lines) + b'{"kind":"torn')


def _open_journal(folder: Path, safe: Callable[[str], None]) -> None:
    journal = Journal(folder)
    journal.open()
    journal.close()
    safe("set-aside")


def _repaired_found(folder: Path) -> Found:
    notes = (folder / DAMAGED).read_text().splitlines() if (folder / DAMAGED).exists() else []
    return _journal_found(folder) | Counter({"set-aside": len({*notes})})


def _rows_found(folder: Path) -> Found:
    """Rows by table and key, in all Parquet files below a folder."""
    found: Found = Counter()
    for file in find_files(folder):
        if file.table in ("measurements", "kernels"):
            names = tuple(name for name in TABLES[file.table].key if name != "campaign_id")
            rows = read_columns(file, names).to_pylist()
            found += Counter("-".join([file.table, *(str(row[name]) for name in names)]) for row in rows)
    return found


def _expected_rows(numbers: Sequence[int]) -> tuple[str, ...]:
    kernels = [f"kernels-w{number}-{place}" for number in numbers for place in range(2)]
    return (*(f"measurements-w{number}" for number in numbers), *kernels)


def _tables(folder: Path) -> dict[str, int]:
    return journal_tables.write_tables(folder, read_records(folder), read_traces(folder), fewer="keep")


def _older_tables(folder: Path) -> None:
    _write_journal(folder, NUMBERS[:2])
    _tables(folder)
    _write_journal(folder, NUMBERS)


def _rows(number: int) -> Any:
    return arrow_table(TABLES["measurements"], {"campaign_id": ["c"] * 2, "workload_id": [f"w{number}", f"x{number}"]})


def _append(folder: Path, safe: Callable[[str], None], numbers: Sequence[int] = NUMBERS) -> None:
    store = open_store(folder)
    try:
        for number in numbers:
            store.append("measurements", _rows(number))
            safe(f"measurements-w{number}")
            safe(f"measurements-x{number}")
    finally:
        store.close()


def _source_and_store(folder: Path) -> None:
    _write_journal(folder / "source", NUMBERS)
    _tables(folder / "source")
    _append(folder / "store", lambda _: None, NUMBERS[:1])


def _merge(folder: Path, safe: Callable[[str], None]) -> None:
    source, target = open_store(folder / "source"), open_store(folder / "store")
    try:
        merge(source, target)
    finally:
        source.close()
        target.close()
    for name in _expected_rows(NUMBERS):
        safe(name)


def _campaign(folder: Path, safe: Callable[[str], None]) -> None:
    """All that a campaign writes: what is not done yet, then tables, then the store."""
    out, journal = folder / "out", Journal(folder / "out")
    journal.open()
    try:
        done = {str(key) for (key,) in done_keys([out], "measurements", ("workload_id",))}
        done |= {str(line["workload_id"]) for line in read_records(out) if line.get("kind") == "measurement"}
        traced = {str(line["workload_id"]) for line in read_traces(out)}
        campaign = f"c{len(list(read_records(out)))}"
        todo = [number for number in NUMBERS if f"w{number}" not in done]
        if todo:
            journal.append(_header(campaign))
        for number in todo:
            if f"w{number}" not in traced:
                journal.append_trace(_trace(number, campaign))
            journal.append(_record(number, campaign))
    finally:
        journal.close()
    _tables(out)
    source, target = open_store(out), open_store(folder / "store")
    try:
        merge(source, target)
    finally:
        source.close()
        target.close()
    for name in _expected_rows(NUMBERS):
        safe(name)


def _entry(folder: Path) -> Path:
    return folder / "graphs" / "entry.fgraph"


def _cached(folder: Path) -> Found:
    graph = cache.read(_entry(folder))
    return {"none" if graph is None else f"batch-{graph.batch_size}": 1}


def _fitted(folder: Path) -> Found:
    return {fitted_files._checked(folder, "fit.json").decode(): 1}


def _user_file(folder: Path) -> Found:
    return {str(json.loads((folder / "calibration.json").read_text())["host"]): 1}


def _write_user_file(folder: Path, host: str) -> None:
    write_whole(folder / "calibration.json", json.dumps({"host": host, "text": "x" * 5000}).encode())


def _names(kind: str, numbers: Sequence[int] = NUMBERS) -> tuple[str, ...]:
    return tuple(f"{kind}-w{number}" for number in numbers)


_STORED = tuple(f"measurements-{letter}{number}" for number in NUMBERS for letter in "wx")
SCENARIOS: tuple[Scenario, ...] = (
    Scenario(
        "journal", lambda folder: folder.mkdir(), lambda folder, safe: _write_journal(folder, NUMBERS, safe),
        _journal_found, _names("record") + _names("trace"),
    ),
    Scenario("journal goes on", lambda folder: folder.mkdir(), _keep_writing, _journal_found, _names("record")),
    Scenario(
        "set aside", _damaged_journal, _open_journal, _repaired_found,
        (*_names("record", (0, 2, 3)), *_names("trace"), "set-aside"), _names("record", (0, 2, 3)) + _names("trace"),
    ),
    Scenario(
        "tables", _older_tables, lambda folder, _: _tables(folder), _rows_found, _expected_rows(NUMBERS),
        _expected_rows(NUMBERS[:2]),
    ),
    Scenario(
        "store", lambda folder: _append(folder, lambda _: None, NUMBERS[:1]), _append, _rows_found, _STORED,
        _STORED[:2],
    ),
    Scenario(
        "merge", _source_and_store, _merge, lambda folder: _rows_found(folder / "store"),
        (*_expected_rows(NUMBERS), "measurements-x0"), _STORED[:2],
    ),
    Scenario(
        "campaign", lambda folder: folder.mkdir(), _campaign, lambda folder: _rows_found(folder / "store"),
        _expected_rows(NUMBERS),
    ),
    Scenario(
        "cached graph", lambda folder: cache.write(_entry(folder), tiny_graph()),
        lambda folder, _: cache.write(_entry(folder), tiny_graph().with_batch(7)), _cached, ("batch-7",),
        (f"batch-{tiny_graph().batch_size}",), whole=True,
    ),
    Scenario(
        "fitted file", lambda folder: fitted_files.write_fitted(folder, "fit.json", b"old"),
        lambda folder, _: fitted_files.write_fitted(folder, "fit.json", b"new"), _fitted, ("new",), ("old",),
        whole=True,
    ),
    Scenario(
        "user's file", lambda folder: _write_user_file(folder, "old"),
        lambda folder, _: _write_user_file(folder, "new"), _user_file, ("new",), ("old",), whole=True,
    ),
)  # fmt: skip
