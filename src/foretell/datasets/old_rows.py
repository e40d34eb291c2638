"""Datasets: old rows: what a table has that its successor would lack, so that no record is lost in silence."""

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from foretell.datasets.graphs.stored import DOCUMENT, GRAPH, StoredGraphs
from foretell.datasets.parquet_files import TableFile, look, pyarrow, read_columns
from foretell.datasets.schema import TABLES, Table

Key = tuple[object, ...]
Records = Counter[Key]
# the rest of the key is the same for all rows of one record
_PLACES = frozenset({"sequence", "node", "source", "target", "op_index", "member"})
_WITH_CAMPAIGNS = 2  # the first version in which kernels have their campaign, and names numbers that hold everywhere


def record_key(table: Table) -> tuple[str, ...]:
    """The columns that name the record to which a row belongs; a trace has many rows."""
    # numbers of names are local to a folder in old files
    return ("name",) if table.name == "kernel_names" else tuple(name for name in table.key if name not in _PLACES)


def count_records(names: Sequence[str], columns: Mapping[str, Sequence[object]]) -> Records:
    """How many rows each record has."""
    return Counter(zip(*(columns[name] for name in names), strict=True))


class OldTable:
    """A table that is about to be replaced."""

    def __init__(self, path: Path) -> None:
        self.file: TableFile = look(path)
        self._table = TABLES[self.file.table]
        self._key = tuple(name for name in record_key(self._table) if name in self.file.columns)
        self.records = count_records(self._key, read_columns(self.file, self._key).to_pydict())

    def rows_lost(self, new: Records) -> int:
        """How many rows a table with the records ``new`` would lack."""
        known = self._reduced(new)
        return sum(max(0, rows - known[key]) for key, rows in self.records.items())

    def missing(self, new: Records) -> dict[str, list[object]] | None:
        """All columns of the records that ``new`` lacks; None where they cannot be kept."""
        known = self._reduced(new)
        if self.file.version < _WITH_CAMPAIGNS and self._table.name in ("kernels", "kernel_names"):
            return None
        if any(known[key] not in (0, rows) and known[key] < rows for key, rows in self.records.items()):
            return None  # a part of a record: neither the old nor the new one is right
        data = read_columns(self.file, (*self._table.columns, GRAPH))
        keys = zip(*(data.column(name).to_pylist() for name in self._key), strict=True)
        places = [place for place, key in enumerate(keys) if not known[key]]
        rows = data.take(pyarrow().array(places, pyarrow().int64()))
        columns: dict[str, list[Any]] = {
            name: rows.column(name).to_pylist() if name in rows.column_names else [None] * len(places)
            for name in self._table.columns
        }
        if GRAPH in rows.column_names:
            graphs = StoredGraphs(rows.select([GRAPH]), str(self.file.path))
            columns[DOCUMENT] = [
                text if text is not None else graphs.document(place) for place, text in enumerate(columns[DOCUMENT])
            ]
        return columns

    def _reduced(self, new: Records) -> Records:
        """The records of the other table, by the columns that this one has."""
        names = record_key(self._table)
        if names == self._key:
            return new
        kept = [names.index(name) for name in self._key]
        reduced: Records = Counter()
        for key, rows in new.items():
            reduced[tuple(key[place] for place in kept)] += rows
        return reduced
