"""Datasets: the Parquet files of a folder: found, checked, and written completely or not at all. Needs only pyarrow.

The encoding of a column is chosen for zstd, which finds runs of bytes that repeat. Dictionary encoding packs bits and
so hides repeats of numbers; numbers get other encodings. Texts keep the dictionary, although they would be smaller
without it, because queries on them are faster; paths of modules, which are long, do not.
"""

import os
import re
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

from foretell.datasets.graphs.columns import INTEGERS
from foretell.datasets.graphs.stored import DOCUMENT, GRAPH, StoredGraphs, graph_type, with_columns
from foretell.datasets.schema import SCHEMA_VERSION, TABLES, Table
from foretell.datasets.seals import seal
from foretell.errors import DataError
from foretell.optional import require
from foretell.units import MIB

_NAME = re.compile(rf"({'|'.join(TABLES)})(-[0-9a-f]{{8,64}})?\.parquet")
_VERSION = b"schema_version"
# columns that grow slowly from row to row: their differences are small
_COUNTING = frozenset({"sequence", "op_index", "node", "source", "target"})
# small numbers in patterns: their upper bytes are 0, and this encoding stores them apart from the lower bytes
_SPLIT = frozenset({"grid_x", "grid_y", "grid_z", "block_x", "block_y", "block_z", "registers", "group"})
# paths of modules: each begins as the one before it
_PATHS = frozenset({"module"})
_PLAIN = frozenset({"document", "name_id", "shared_bytes", "occupancy_pct", "name"})
_REMEDY = "Restore it from a copy (git checkout) or move it away; nothing was changed."


def pyarrow() -> Any:
    """The module pyarrow."""
    return require("pyarrow", extra="data", purpose="Reading and writing tables")


def open_parquet(path: Path) -> Any:
    """A Parquet reader of a file; the caller closes it."""
    return _parquet().ParquetFile(path)


def _parquet() -> Any:
    return require("pyarrow.parquet", extra="data", purpose="Reading and writing Parquet")


def unreadable() -> tuple[type[Exception], ...]:
    """What pyarrow raises about a damaged file."""
    return OSError, ValueError, pyarrow().ArrowException


@dataclass(frozen=True)
class TableFile:
    """A file of one table, and what its footer says."""

    path: Path
    table: str
    version: int
    columns: frozenset[str]
    rows: int


def table_of(path: Path) -> str | None:
    """The table that a file belongs to by its name, or None.

    >>> table_of(Path("data/kernels.parquet")), table_of(Path("slices-0123456789abcdef.parquet"))
    ('kernels', 'slices')
    >>> table_of(Path("notes.parquet")) is None
    True
    """
    match = _NAME.fullmatch(path.name)
    return match.group(1) if match else None


def find_files(folder: Path) -> list[TableFile]:
    """The files of all tables at any depth below ``folder``; refuse one that is damaged or too new."""
    return [look(path) for path in _paths(folder)]


def file_signature(folder: Path) -> tuple[tuple[str, int, int], ...]:
    """Name, time and size of these files; equal as long as no file was added, removed or changed."""
    stats = [(str(path), path.stat()) for path in _paths(folder)]
    return tuple((path, stat.st_mtime_ns, stat.st_size) for path, stat in stats)


def _paths(folder: Path) -> list[Path]:
    try:
        return sorted(path for path in folder.rglob("*.parquet") if table_of(path) is not None)
    except OSError as error:
        raise DataError(f"Cannot read the folder {folder}: {error.strerror}.") from error


def look(path: Path) -> TableFile:
    """What the footer of a file says; refuse one that is damaged or too new."""
    try:
        with _parquet().ParquetFile(path) as file:
            schema, rows = file.schema_arrow, file.metadata.num_rows
    except unreadable() as error:
        raise DataError(f"{path} is damaged or cannot be read ({_first_line(error)}). {_REMEDY}") from error
    # files of version 1 have no mark
    text = (schema.metadata or {}).get(_VERSION, b"1").decode(errors="replace")
    if not text.isdigit() or int(text) > SCHEMA_VERSION:
        raise DataError(
            f"{path} has schema version {text}; this foretell reads up to {SCHEMA_VERSION}. Install a newer foretell."
        )
    return TableFile(path, str(table_of(path)), int(text), frozenset(schema.names), rows)


def check_pages(files: Iterable[TableFile]) -> None:
    """Read every value; raise an error that names the first file with a damaged page."""
    for file in files:
        try:
            with _parquet().ParquetFile(file.path, page_checksum_verification=True) as opened:
                for _ in opened.iter_batches():
                    pass
        except unreadable() as error:
            raise DataError(f"{file.path} is damaged ({_first_line(error)}). {_REMEDY}") from error


def read_columns(file: TableFile, columns: Sequence[str]) -> Any:
    """Some columns of a file as an Arrow table; columns that the file lacks are left out."""
    try:
        return _parquet().read_table(file.path, columns=[name for name in columns if name in file.columns])
    except unreadable() as error:
        raise DataError(f"{file.path} is damaged ({_first_line(error)}). {_REMEDY}") from error


def read_graphs(file: TableFile) -> StoredGraphs:
    """The graphs of a file of any version, in the order of its rows."""
    return StoredGraphs(read_columns(file, (GRAPH, DOCUMENT)), str(file.path))


def arrow_schema(table: Table) -> Any:
    """The Arrow schema of a table, marked with the schema version."""
    arrow = pyarrow()
    fields = [(name, arrow.type_for_alias(kind)) for name, kind in table.columns.items()]
    return arrow.schema(fields, metadata={_VERSION: str(SCHEMA_VERSION)})


def arrow_table(table: Table, columns: Mapping[str, Sequence[object]]) -> Any:
    """Python columns as an Arrow table of the schema; a missing column is filled with nulls."""
    arrow = pyarrow()
    rows = max((len(values) for values in columns.values()), default=0)
    schema = arrow_schema(table)
    try:
        arrays = [arrow.array(columns.get(field.name, [None] * rows), type=field.type) for field in schema]
    except (ValueError, TypeError, OverflowError) as error:
        raise DataError(f"A record does not fit the table {table.name}: {_first_line(error)}.") from error
    return arrow.Table.from_arrays(arrays, schema=schema)


def fitted(table: Table, data: Any) -> Any:
    """An Arrow table cast to the schema of a table; unknown columns are dropped, missing ones are null."""
    arrow = pyarrow()
    missing = [name for name in table.key if name not in data.column_names or data.column(name).null_count]
    if missing:
        raise DataError(f"Rows of {table.name} need a value in {', '.join(missing)}: these columns are the key.")
    schema = arrow_schema(table)
    arrays = []
    for field in schema:
        present = field.name in data.column_names
        column = data.column(field.name) if present else arrow.nulls(data.num_rows, field.type)
        try:
            arrays.append(column.cast(field.type))
        except (ValueError, TypeError) as error:
            raise DataError(f"{table.name}.{field.name} must be {field.type}: {_first_line(error)}.") from error
    return arrow.Table.from_arrays(arrays, schema=schema)


class TableWriter:
    """Writes one Parquet file: rows go to a partial file, which gets its final name when all are on disk."""

    def __init__(self, partial: Path, table: Table, schema: Any = None) -> None:
        self._partial = partial
        self._table = table
        self._schema = schema  # of an older version, where the rows keep it
        self._writer: Any = None

    def __enter__(self) -> "TableWriter":
        schema = self._schema or arrow_schema(self._table)
        encodings = {name: "DELTA_BINARY_PACKED" for name in schema.names if name in _COUNTING}
        encodings |= {name: "BYTE_STREAM_SPLIT" for name in schema.names if name in _SPLIT}
        encodings |= {name: "DELTA_BYTE_ARRAY" for name in schema.names if name in _PATHS}
        # columns with other encodings and with many distinct values get no dictionary
        dictionary = [name for name in schema.names if name not in _PLAIN and name not in encodings]
        if DOCUMENT in schema.names:
            schema = schema.append(pyarrow().field(GRAPH, graph_type()))
            encodings |= {f"{GRAPH}.{name}.list.element": "BYTE_STREAM_SPLIT" for name in INTEGERS}
        try:
            self._writer = _parquet().ParquetWriter(
                self._partial,
                schema,
                compression="zstd",
                # graphs are written once and read often; beyond 15 other tables shrink by almost nothing
                compression_level=19 if DOCUMENT in schema.names else 15,
                use_dictionary=dictionary,
                column_encoding=encodings or None,
                data_page_size=8 * MIB,
                dictionary_pagesize_limit=8 * MIB,
                write_page_checksum=True,
            )
        except OSError as error:
            raise unwritable(self._partial.parent, error) from error
        return self

    def write(self, data: Any) -> None:
        """Add rows."""
        try:
            self._writer.write_table(with_columns(data) if DOCUMENT in data.column_names else data)
        except OSError as error:
            raise unwritable(self._partial.parent, error) from error

    def finish(self) -> Path:
        """Close the partial file, seal it and force it to disk; `rename` then gives it its name."""
        try:
            self._writer.close()
            seal(self._partial)
            # on the disk before the rename, else a crash could leave a name with an empty file
            handle = os.open(self._partial, os.O_RDONLY)
            try:
                os.fsync(handle)
            finally:
                os.close(handle)
        except OSError as error:
            raise unwritable(self._partial.parent, error) from error
        return self._partial

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        # after `rename` there is no partial file any more; after a failure none must be left
        with suppress(OSError, ValueError):
            self._writer.close()
        with suppress(OSError):
            self._partial.unlink(missing_ok=True)


def rename(partial: Path, path: Path) -> None:
    """Give a finished file its name, and force the folder to disk."""
    try:
        # atomic: a reader sees the old file or the new one, never a part
        os.replace(partial, path)
        handle = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
    except OSError as error:
        raise unwritable(path.parent, error) from error


def unwritable(folder: Path, error: OSError) -> DataError:
    """The error for a disk that refuses to write."""
    why = error.strerror or _first_line(error)
    return DataError(
        f"Cannot write to {folder}: {why}. Nothing was changed; free some space, or choose a folder you may write to."
    )


def _first_line(error: Exception) -> str:
    return str(error).strip().partition("\n")[0].rstrip(".") or type(error).__name__
