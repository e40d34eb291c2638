"""Datasets: the store interface, which a folder of Parquet files and a PostgreSQL database implement."""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Protocol

from foretell.datasets.schema import TABLES
from foretell.errors import DataError
from foretell.optional import require
from foretell.registry import did_you_mean

ROWS_AT_ONCE, DOCUMENTS_AT_ONCE = 200_000, 500


class Store(Protocol):
    """Tables of `schema.TABLES`; Arrow tables go in and come out."""

    def append(self, table: str, data: Any) -> int:
        """Add the rows whose key is not there yet, all or none; return their number."""

    def query(self, sql: str) -> Any:
        """The result of one SELECT over the tables and views, as an Arrow table."""

    def count(self, table: str) -> int:
        """How many rows a table has."""

    def tables(self) -> dict[str, int]:
        """The number of rows of every table that is not empty."""

    def rows(self, table: str, columns: Sequence[str] = (), at_once: int = ROWS_AT_ONCE) -> Iterator[Any]:
        """A table in pieces of at most ``at_once`` rows, so that it does not have to fit into memory."""

    def size_bytes(self) -> int:
        """The space that the store takes on disk."""

    def close(self) -> None:
        """Release files and connections."""


def merge(source: Store, target: Store, at_once: int = 0) -> dict[str, int]:
    """Append all tables of one store to another, piece by piece; return the number of new rows by table.

    A merge that was interrupted can be repeated: rows that have arrived are not added twice.
    """
    return {
        table: sum(target.append(table, piece) for piece in source.rows(table, at_once=at_once or rows_at_once(table)))
        for table in source.tables()
    }


def rows_at_once(table: str) -> int:
    """How many rows are moved together; a graph's document takes as much memory as a thousand kernels."""
    return DOCUMENTS_AT_ONCE if "document" in TABLES[table].columns else ROWS_AT_ONCE


def gathered(batches: Iterable[Any], at_once: int) -> Iterator[Any]:
    """Arrow tables of ``at_once`` rows (the last may have fewer) from batches of any size."""
    arrow = require("pyarrow", extra="data", purpose="Reading tables")
    pending: list[Any] = []
    for batch in batches:
        start = 0
        while start < batch.num_rows:
            missing = at_once - sum(piece.num_rows for piece in pending)
            # a slice copies nothing
            pending.append(batch.slice(start, missing))
            start += missing
            if sum(piece.num_rows for piece in pending) == at_once:
                yield arrow.Table.from_batches(pending)
                pending = []
    if pending:
        yield arrow.Table.from_batches(pending)


def check_table(table: str, columns: Sequence[str] = ()) -> tuple[str, ...]:
    """The columns wanted of a table (all where none are named); refuse unknown names."""
    if table not in TABLES:
        raise DataError(f"There is no table {table!r}.{did_you_mean(table, TABLES)}")
    known = TABLES[table].columns
    for name in columns:
        if name not in known:
            raise DataError(f"The table {table} has no column {name!r}.{did_you_mean(name, known)}")
    return tuple(columns) or tuple(known)
