"""Profiling: what earlier campaigns have finished, so that nothing is measured twice."""

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from foretell.errors import MeasurementError
from foretell.optional import require
from foretell.profiling.journal import read_records, read_traces
from foretell.profiling.workload import shape_text

MEASUREMENTS, KERNELS = "measurements", "kernels"
_COLUMNS = (
    "workload_id", "status", "spec", "batch_size", "input_shape", "dtype", "mode", "optimizer", "family", "part",
    "energy_j",
)  # fmt: skip


def done_keys(folders: Iterable[Path], table: str, columns: Sequence[str]) -> set[tuple[object, ...]]:
    """The values of ``columns`` in all records of ``table``, in the journals and the Parquet files of ``folders``."""
    found: set[tuple[object, ...]] = set()
    for folder in folders:
        if not folder.exists():
            raise MeasurementError(f"There is nothing at {folder} to skip.")
        found |= {tuple(line[name] for name in columns) for line in read_records(folder) if line.get("kind") == table}
        for path in sorted(folder.rglob(f"{table}.parquet")):
            parquet = require("pyarrow.parquet", extra="profile", purpose="Reading Parquet")
            try:
                rows = parquet.read_table(path, columns=list(columns)).to_pydict()
            except (OSError, ValueError) as error:
                raise MeasurementError(f"Cannot read {path}: {error}. Remove or restore it.") from error
            found |= set(zip(*(rows[name] for name in columns), strict=True))
    return found


def done_measurements(path: Path) -> tuple[list[dict[str, Any]], set[str]]:
    """The rows already measured in a folder or a Parquet file, and the workloads that already have a trace."""
    if not path.exists():
        raise MeasurementError(f"There is nothing at {path} to skip.")
    rows: list[dict[str, Any]] = []
    traced: set[str] = set()
    if path.is_dir():
        rows += [_plain(line) for line in read_records(path) if line.get("kind") == "measurement"]
        traced |= {str(line["workload_id"]) for line in read_traces(path) if line.get("kind", KERNELS) == KERNELS}
    for file in sorted(path.rglob("*.parquet")) if path.is_dir() else [path]:
        table = file.stem.partition("-")[0]
        if table == MEASUREMENTS or (file == path and table not in (MEASUREMENTS, KERNELS)):
            rows += _table(file, _COLUMNS).to_pylist()
        elif table == KERNELS:
            traced |= set(_table(file, ("workload_id",)).column(0).unique().to_pylist())
    return rows, traced


def _plain(line: dict[str, Any]) -> dict[str, Any]:
    return {name: line.get(name) for name in _COLUMNS} | {"input_shape": shape_text(tuple(line["input_shape"]))}


def _table(path: Path, columns: Sequence[str]) -> Any:
    parquet = require("pyarrow.parquet", extra="profile", purpose="Reading Parquet")
    try:
        names = set(parquet.read_schema(path).names)
        if "workload_id" not in names:
            raise MeasurementError(f"{path} has no workloads: it is no table of measurements or kernels.")
        return parquet.read_table(path, columns=[name for name in columns if name in names])
    except (OSError, ValueError) as error:
        raise MeasurementError(f"Cannot read {path}: {error}. Remove it or restore it; nothing was changed.") from error
