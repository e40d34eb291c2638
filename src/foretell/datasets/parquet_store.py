"""Datasets: the Parquet store: a folder of Parquet files, read through DuckDB; appending adds a file.

Files at any depth count: those that campaigns wrote (``<table>.parquet``) and those that were appended (``<table>-<hash
of the content>.parquet``). A file is written under another name, forced to disk and renamed; no file is ever changed. A
process that appends holds a lock, so two processes neither lose a row nor add one twice.
"""

import fcntl
import hashlib
import os
import re
import shutil
import tempfile
import weakref
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from foretell.datasets.graphs.stored import DOCUMENT, GRAPH, documents_of, graph_sql
from foretell.datasets.parquet_files import (
    TableFile,
    TableWriter,
    check_pages,
    file_signature,
    find_files,
    fitted,
    read_columns,
    rename,
    unwritable,
)
from foretell.datasets.schema import TABLES, VIEWS, name_number
from foretell.datasets.store import ROWS_AT_ONCE, check_table, gathered
from foretell.errors import DataError
from foretell.optional import require

MEMORY_LIMIT, THREADS = "2GB", 2
_DOCUMENT = "graph_document"  # the SQL function that turns the columns of a graph into a document
_SQL_TYPES: Mapping[str, str] = {
    "string": "VARCHAR", "bool": "BOOLEAN", "int16": "SMALLINT", "int32": "INTEGER", "int64": "BIGINT",
    "float32": "FLOAT", "float64": "DOUBLE",
}  # fmt: skip


class ParquetStore:
    """The tables below one folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._database: Any = None
        self._signature: tuple[tuple[str, int, int], ...] = ()
        self._table_files: list[TableFile] = []
        self._stale = True

    def append(self, table: str, data: Any) -> int:
        """Add the rows whose key is not there yet, as one new file; return their number."""
        check_table(table)
        rows = fitted(TABLES[table], data)
        with self.locked():
            new = self._only_new(table, rows)
            if new.num_rows:
                self._write(table, new)
        return int(new.num_rows)

    def query(self, sql: str) -> Any:
        """The result of one SELECT, as an Arrow table."""
        with self._connected() as (database, _):
            statements = database.extract_statements(sql)
            if len(statements) != 1 or statements[0].type.name != "SELECT":
                raise DataError("A store answers exactly one SELECT at a time; a query cannot change it.")
            return database.sql(sql).to_arrow_table()

    def count(self, table: str) -> int:
        """How many rows a table has."""
        check_table(table)
        return self.tables().get(table, 0)

    def tables(self) -> dict[str, int]:
        """The number of rows of every table that is not empty."""
        counts = dict.fromkeys(TABLES, 0)
        files = self._files()
        for file in files:
            counts[file.table] += file.rows
        if counts["kernel_names"]:  # every folder has its own names, and they overlap
            counts["kernel_names"] = len(set(_names(files)["name_id"].to_pylist()))
        return {table: rows for table, rows in counts.items() if rows}

    def rows(self, table: str, columns: Sequence[str] = (), at_once: int = ROWS_AT_ONCE) -> Iterator[Any]:
        """A table in Arrow tables of at most ``at_once`` rows."""
        names = ", ".join(f'"{name}"' for name in check_table(table, columns))
        with self._connected() as (database, _):
            yield from gathered(database.sql(f'SELECT {names} FROM "{table}"').to_arrow_reader(at_once), at_once)

    def size_bytes(self) -> int:
        """The space that the files of the tables take."""
        return sum(file.path.stat().st_size for file in self._files())

    def close(self) -> None:
        """Close the database in memory."""
        if self._database is not None:
            self._database.close()
            self._database = None

    def _files(self) -> list[TableFile]:
        """The files as they are now; footers are read again only when a file was added, removed or changed."""
        if self.folder.exists() and not self.folder.is_dir():
            raise DataError(f"{self.folder} is a file; a store is a folder of Parquet files, or postgresql://…")
        signature = file_signature(self.folder)
        if signature != self._signature:
            self._table_files = find_files(self.folder)
            self._signature = signature
            self._stale = True
        return self._table_files

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Hold the lock of the folder; the operating system releases it when the process ends."""
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            handle = os.open(self.folder / ".append.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        except OSError as error:
            raise unwritable(self.folder, error) from error
        try:
            fcntl.flock(handle, fcntl.LOCK_EX)
            for left in self.folder.glob(
                "*.part"
            ):  # left by a process that was killed: under the lock nobody else writes
                if left.name.startswith(".append-"):
                    with suppress(OSError):
                        left.unlink()
            yield
        except OSError as error:
            raise unwritable(self.folder, error) from error
        finally:
            os.close(handle)

    def _only_new(self, table: str, rows: Any) -> Any:
        """The rows whose key is neither in the store nor earlier in ``rows``."""
        key = ", ".join(f'"{name}"' for name in TABLES[table].key)
        is_first = f"row_number() OVER (PARTITION BY {key} ORDER BY number_) = 1"
        same_key = " AND ".join(f'old."{name}" = incoming_."{name}"' for name in TABLES[table].key)
        with self._connected() as (database, files):
            arrow = require("pyarrow", extra="data")
            numbered = rows.append_column("number_", arrow.array(range(rows.num_rows), arrow.int64()))
            database.register("incoming_", numbered)
            not_stored = f'WHERE NOT EXISTS (SELECT 1 FROM "{table}" old WHERE {same_key})'
            if not any(file.table == table for file in files):
                not_stored = ""
            new_numbers = database.sql(
                f"SELECT number_ FROM incoming_ {not_stored} QUALIFY {is_first} ORDER BY number_"
            ).to_arrow_table()
            return rows if new_numbers.num_rows == rows.num_rows else rows.take(new_numbers.column(0))

    def _write(self, table: str, rows: Any) -> None:
        partial = self.folder / f".append-{table}-{os.getpid()}.part"
        with TableWriter(partial, TABLES[table]) as writer:
            for start in range(0, rows.num_rows, ROWS_AT_ONCE):
                writer.write(rows.slice(start, ROWS_AT_ONCE))
            done = writer.finish()
            with done.open("rb") as file:
                # named by content: appending the same rows twice gives the same file
                digest = hashlib.file_digest(file, "sha256").hexdigest()[:16]
            rename(done, self.folder / f"{table}-{digest}.parquet")

    @contextmanager
    def _connected(self) -> Iterator[tuple[Any, list[TableFile]]]:
        """A database in memory with limits, whose views show the files as they are now."""
        duckdb = _duckdb()
        files = self._files()
        try:
            if self._database is None:
                self._database = self._open(duckdb)
            if self._stale:
                _make_views(self._database, files)
                self._stale = False
            # a cursor for each query: several results can be read at the same time
            with self._database.cursor() as cursor:
                yield cursor, files
        except duckdb.OutOfMemoryException as error:
            raise DataError(f"The query needs more than {MEMORY_LIMIT} of memory. Ask for less at once.") from error
        except duckdb.Error as error:
            # name the damaged file, if that is the cause, instead of DuckDB's message
            check_pages(files)
            raise DataError(f"Cannot answer the query: {_error_line(str(error))}") from error

    def _open(self, duckdb: Any) -> Any:
        # a query larger than its memory spills here
        spill = tempfile.mkdtemp(prefix="foretell-duckdb-")
        settings = {"memory_limit": MEMORY_LIMIT, "threads": THREADS, "temp_directory": spill}
        database = duckdb.connect(config=settings)
        database.create_function(
            _DOCUMENT, documents_of, [graph_sql(duckdb)], "VARCHAR", type="arrow", null_handling="special"
        )
        weakref.finalize(self, _dispose, database, spill)  # DuckDB complains at exit if it is still open
        database.execute("SET enable_progress_bar = false")
        # a name in a query is a view, never a Python variable
        database.execute("SET GLOBAL python_enable_replacements = false")
        # a query reads the files of this store and nothing else, whatever functions it calls
        folder = Path(os.path.abspath(self.folder))
        allowed = ", ".join(_quoted(f"{place}/") for place in dict.fromkeys((str(folder), _literal(folder))))
        database.execute(f"SET allowed_directories = [{allowed}]")
        database.execute("SET enable_external_access = false")
        database.execute("SET lock_configuration = true")
        self._stale = True
        return database


def _duckdb() -> Any:
    return require("duckdb", extra="data", purpose="Asking a folder of Parquet files")


def _dispose(database: Any, spill: str) -> None:
    database.close()
    shutil.rmtree(spill, ignore_errors=True)


def _error_line(text: str) -> str:
    """DuckDB's message in one line: its first line, and suggestions of what was meant."""
    first, *others = [line.strip() for line in text.strip().splitlines()]
    return " ".join((first, *(line for line in others if line.startswith(("Did you mean", "Candidate bindings")))))


def _make_views(database: Any, files: Sequence[TableFile]) -> None:
    for name in TABLES:
        if name not in ("kernels", "kernel_names"):
            own = [file for file in files if file.table == name]
            database.execute(f'CREATE OR REPLACE VIEW "{name}" AS {_select(name, own)}')
    database.register("names_", _names(files))
    database.execute("CREATE OR REPLACE TABLE kernel_names_ AS SELECT * FROM names_")
    database.unregister("names_")
    database.execute("CREATE OR REPLACE VIEW kernel_names AS SELECT DISTINCT name_id, name FROM kernel_names_")
    database.execute(f"CREATE OR REPLACE VIEW kernels AS {_select_kernels(files)}")
    for name, sql in VIEWS.items():
        database.execute(f"CREATE OR REPLACE VIEW {name} AS {sql}")


def _select(table: str, files: Sequence[TableFile], **replacements: str) -> str:
    """The rows of some files with the columns of the schema; a column that no file has is null."""
    present = frozenset[str]().union(*(file.columns for file in files))
    columns = []
    for name, kind in TABLES[table].columns.items():
        value = replacements.get(name) or (f'"{name}"' if name in present else "NULL")
        if name == DOCUMENT and GRAPH in present:
            # the cast adds fields that files of older versions lack
            graph = f'CAST("{GRAPH}" AS {graph_sql(_duckdb())})'
            value = f'coalesce("{DOCUMENT}", {_DOCUMENT}({graph}))'
        columns.append(f'CAST({value} AS {_SQL_TYPES[kind]}) AS "{name}"')
    selected = f"SELECT {', '.join(columns)}"
    if not files:
        return f"{selected} WHERE false"
    paths = ", ".join(_quoted(_literal(Path(os.path.abspath(file.path)))) for file in files)
    return f"{selected} FROM read_parquet([{paths}], union_by_name = true)"


def _select_kernels(files: Sequence[TableFile]) -> str:
    """Kernels with their names; those of version 1 get the campaign of their folder and global name numbers."""
    kernels = [file for file in files if file.table == "kernels"]
    # files of version 1 number kernel names by folder, so each needs a query of its own
    sources = [_select("kernels", [file for file in kernels if file.version > 1])]
    for file in kernels:
        if file.version == 1:
            campaign = _quoted(_campaign_of(file.path.parent, files))
            old = _select("kernels", [file], campaign_id=campaign)
            sources.append(
                f"SELECT old.* REPLACE (names.name_id AS name_id) FROM ({old}) old LEFT JOIN kernel_names_ names "
                f"ON names.old_id = old.name_id AND names.folder = {_quoted(file.path.parent)}"
            )
    rows = " UNION ALL ".join(sources)
    return f"SELECT k.*, n.name AS kernel FROM ({rows}) k LEFT JOIN kernel_names n ON n.name_id = k.name_id"


def _names(files: Sequence[TableFile]) -> Any:
    """All names of kernels with their global numbers and, for version 1, their numbers within the folder."""
    arrow = require("pyarrow", extra="data", purpose="Reading tables")
    columns: dict[str, list[object]] = {"folder": [], "old_id": [], "name_id": [], "name": []}
    for file in files:
        if file.table == "kernel_names":
            names = read_columns(file, ("name_id", "name")).to_pydict()
            is_local, count = file.version == 1, len(names["name"])
            columns["folder"] += [str(file.path.parent) if is_local else None] * count
            columns["old_id"] += names["name_id"] if is_local else [None] * count
            columns["name_id"] += [name_number(name) for name in names["name"]] if is_local else names["name_id"]
            columns["name"] += names["name"]
    types = (
        ("folder", arrow.string()),
        ("old_id", arrow.int64()),
        ("name_id", arrow.int64()),
        ("name", arrow.string()),
    )
    return arrow.table(columns, schema=arrow.schema(types))


def _campaign_of(folder: Path, files: Sequence[TableFile]) -> str:
    """The campaign of a folder of version 1: that of its first measurement, or else the folder's name."""
    for file in files:
        if file.table == "measurements" and file.path.parent == folder and file.rows:
            return str(read_columns(file, ("campaign_id",)).column(0)[0].as_py())
    return folder.name


def _literal(path: Path) -> str:
    """A path without glob patterns, for DuckDB."""
    return re.sub(r"([*?\[])", r"[\1]", str(path))


def _quoted(text: object) -> str:
    return "'" + str(text).replace("'", "''") + "'"
