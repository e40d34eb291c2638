"""Profiling: what earlier campaigns have finished, so that nothing is measured twice."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from foretell.devices.cpu_runs import RUN_COLUMNS, CpuRun, runs_of_campaigns
from foretell.errors import MeasurementError
from foretell.optional import require
from foretell.profiling.campaign.journal import read_records, read_traces
from foretell.profiling.workload import shape_text

MEASUREMENTS, KERNELS = "measurements", "kernels"
# These may be the fault of the campaign and not of the workload, so a later campaign tries them again.
TRIED_AGAIN = ("crash", "timeout")
_COLUMNS = (
    "workload_id", "status", "spec", "batch_size", "input_shape", "dtype", "mode", "optimizer", "family", "part",
    "energy_j", "channels_last", *RUN_COLUMNS,
)  # fmt: skip


@dataclass(frozen=True)
class Trace:
    """The traces that belong to a table: the kind of their lines, and the column of a record that says it has one."""

    kind: str
    column: str

    def lost(self, folder: Path, lines: Iterable[Mapping[str, object]], key: str) -> set[object]:
        """The keys of the records in a journal that had a trace which is gone."""
        found = {line.get(key) for line in read_traces(folder) if line.get("kind") == self.kind}
        for path in find_tables(folder, self.kind):
            found |= set(read_table(path, (key,)).column(0).unique().to_pylist())
        return {line[key] for line in lines if line.get("status") == "ok" and line.get(self.column)} - found


def done_keys(
    folders: Iterable[Path], table: str, columns: Sequence[str], *, trace: Trace | None = None
) -> set[tuple[object, ...]]:
    """The values of ``columns`` in all records of ``table``, in the journals and the Parquet files of ``folders``.

    With ``trace``, a record that had a trace is done only if a journal or a table of the folder still has it: a damaged
    one was set aside, and is measured again.
    """
    keys: set[tuple[object, ...]] = set()
    for folder in folders:
        if not folder.exists():
            raise MeasurementError(f"There is nothing at {folder} to skip.")
        lines = [line for line in read_records(folder) if line.get("kind") == table]
        lost = trace.lost(folder, lines, columns[0]) if trace else set()
        keys |= {tuple(line[name] for name in columns) for line in lines if line[columns[0]] not in lost}
        for path in find_tables(folder, table):
            rows = read_table(path, columns).to_pydict()
            keys |= {key for key in zip(*(rows[name] for name in columns), strict=True) if key[0] not in lost}
    return keys


def find_tables(folder: Path, table: str) -> list[Path]:
    """The files of a table: ``slices.parquet`` of a campaign, ``slices-0123456789abcdef.parquet`` of a store."""
    return sorted(path for path in folder.rglob(f"{table}*.parquet") if _table_of(path) == table)


def _table_of(path: Path) -> str:
    return path.stem.partition("-")[0]


def read_table(path: Path, columns: Sequence[str], optional: Sequence[str] = ()) -> Any:
    """``columns`` of a Parquet file, and those of the ``optional`` columns that it has."""
    parquet = require("pyarrow.parquet", extra="profile", purpose="Reading Parquet")
    try:
        names = set(parquet.read_schema(path).names)
        missing = [name for name in columns if name not in names]
        if missing:
            raise MeasurementError(f"{path} has no column {missing[0]!r}: it is not the expected table.")
        return parquet.read_table(path, columns=[*columns, *(name for name in optional if name in names)])
    except (OSError, ValueError) as error:
        raise MeasurementError(f"Cannot read {path}: {error}. Remove it or restore it; nothing was changed.") from error


def done_measurements(path: Path, run: CpuRun | None = None) -> tuple[list[dict[str, Any]], set[str]]:
    """The rows already measured in a folder or a Parquet file, and the workloads that already have a trace.

    With a ``run``, what Parquet files have of other runs does not count: another runtime, or another number of threads.
    """
    if not path.exists():
        raise MeasurementError(f"There is nothing at {path} to skip.")
    rows: list[dict[str, Any]] = []
    traced: set[str] = set()
    if path.is_dir():
        rows += [_plain(line) for line in read_records(path) if line.get("kind") == "measurement"]
        traced |= {str(line["workload_id"]) for line in read_traces(path) if line.get("kind", KERNELS) == KERNELS}
    files = sorted(path.rglob("*.parquet")) if path.is_dir() else [path]
    stored = [
        row
        for file in files
        if _table_of(file) == MEASUREMENTS or (file == path and _table_of(file) != KERNELS)
        for row in read_table(file, _COLUMNS[:1], _COLUMNS[1:]).to_pylist()
    ]
    others = {name for name, own in runs_of_campaigns(stored).items() if run is not None and own != run}
    rows += [row for row in stored if run is None or run.has(row)]
    for file in files:
        if _table_of(file) == KERNELS:
            kernels = read_table(file, ("workload_id",), ("campaign_id",)).to_pydict()
            of = kernels.get("campaign_id") or [""] * len(kernels["workload_id"])
            traced |= {name for name, owner in set(zip(kernels["workload_id"], of, strict=True)) if owner not in others}
    return rows, traced


def _plain(line: dict[str, Any]) -> dict[str, Any]:
    return {name: line.get(name) for name in _COLUMNS} | {"input_shape": shape_text(tuple(line["input_shape"]))}
