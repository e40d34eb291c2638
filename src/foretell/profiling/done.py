"""Profiling: what earlier campaigns have finished, so that nothing is measured twice."""

from collections.abc import Iterable, Sequence
from pathlib import Path

from foretell.errors import MeasurementError
from foretell.optional import require
from foretell.profiling.journal import read_records


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
