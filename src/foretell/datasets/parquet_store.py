"""Datasets: a folder of Parquet files, read through DuckDB and appended to by adding files.

Files of any depth count: those that campaigns wrote (``<table>.parquet``) and those that were appended
(``<table>-<hash of the content>.parquet``). A file is written beside, forced to the disk and renamed; none is ever
changed. Whoever appends holds a lock, so two processes neither lose a row nor add one twice.
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
_DOCUMENT = "graph_document"  # the function that makes a graph's columns a document
_SQL_TYPES: Mapping[str, str] = {
    "string": "VARCHAR", "bool": "BOOLEAN", "int16": "SMALLINT", "int32": "INTEGER", "int64": "BIGINT",
    "float32": "FLOAT", "float64": "DOUBLE",
}  # fmt: skip


class ParquetStore:
    """The tables below one folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._database: Any = None
        self._seen: tuple[tuple[str, int, int], ...] = ()
        self._known: list[TableFile] = []
        self._stale = True

    def append(self, table: str, data: Any) -> int:
        """Add the rows whose key is not there yet, as one new file; returns how many those were."""
        check_table(table)
        rows = fitted(TABLES[table], data)
        with self.locked():
            new = self._only_new(table, rows)
            if new.num_rows:
                self._write(table, new)
        return int(new.num_rows)

    def query(self, sql: str) -> Any:
        """The answer to one SELECT, as an Arrow table."""
        with self._connected() as (database, _):
            statements = database.extract_statements(sql)
            if len(statements) != 1 or statements[0].type.name != "SELECT":
                raise DataError("Only one SELECT can be asked of a store; nothing in it is changed by a query.")
            return database.sql(sql).to_arrow_table()

    def count(self, table: str) -> int:
        """How many rows a table has."""
        check_table(table)
        return self.tables().get(table, 0)

    def tables(self) -> dict[str, int]:
        """The rows of every table that has any."""
        found = dict.fromkeys(TABLES, 0)
        files = self._files()
        for file in files:
            found[file.table] += file.rows
        if found["kernel_names"]:  # every folder has its own, and they overlap
            found["kernel_names"] = len(set(_names(files)["name_id"].to_pylist()))
        return {table: rows for table, rows in found.items() if rows}

    def rows(self, table: str, columns: Sequence[str] = (), at_once: int = ROWS_AT_ONCE) -> Iterator[Any]:
        """A table in Arrow tables of at most ``at_once`` rows."""
        wanted = ", ".join(f'"{name}"' for name in check_table(table, columns))
        with self._connected() as (database, _):
            yield from gathered(database.sql(f'SELECT {wanted} FROM "{table}"').to_arrow_reader(at_once), at_once)

    def size_bytes(self) -> int:
        """What the files of the tables take."""
        return sum(file.path.stat().st_size for file in self._files())

    def close(self) -> None:
        """Let go of the database in memory."""
        if self._database is not None:
            self._database.close()
            self._database = None

    def _files(self) -> list[TableFile]:
        """The files as they are now; looked into again only when one has come, gone or changed."""
        if self.folder.exists() and not self.folder.is_dir():
            raise DataError(f"{self.folder} is a file; a store is a folder of Parquet files, or postgresql://…")
        seen = file_signature(self.folder)
        if seen != self._seen:
            self._known = find_files(self.folder)
            self._seen = seen
            self._stale = True
        return self._known

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Alone among those who append; whatever ends the process ends the lock."""
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            handle = os.open(self.folder / ".append.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        except OSError as error:
            raise unwritable(self.folder, error) from error
        try:
            fcntl.flock(handle, fcntl.LOCK_EX)
            for left in self.folder.glob("*.part"):  # of a process that was killed: nobody else writes now
                if left.name.startswith(".append-"):
                    with suppress(OSError):
                        left.unlink()
            yield
        except OSError as error:
            raise unwritable(self.folder, error) from error
        finally:
            os.close(handle)

    def _only_new(self, table: str, rows: Any) -> Any:
        key = ", ".join(f'"{name}"' for name in TABLES[table].key)
        first = f"row_number() OVER (PARTITION BY {key} ORDER BY number_) = 1"
        same = " AND ".join(f'old."{name}" = incoming_."{name}"' for name in TABLES[table].key)
        with self._connected() as (database, files):
            arrow = require("pyarrow", extra="data")
            numbered = rows.append_column("number_", arrow.array(range(rows.num_rows), arrow.int64()))
            database.register("incoming_", numbered)
            there = f'WHERE NOT EXISTS (SELECT 1 FROM "{table}" old WHERE {same})'
            if not any(file.table == table for file in files):
                there = ""
            found = database.sql(
                f"SELECT number_ FROM incoming_ {there} QUALIFY {first} ORDER BY number_"
            ).to_arrow_table()
            return rows if found.num_rows == rows.num_rows else rows.take(found.column(0))

    def _write(self, table: str, rows: Any) -> None:
        partial = self.folder / f".append-{table}-{os.getpid()}.part"
        with TableWriter(partial, TABLES[table]) as writer:
            for start in range(0, rows.num_rows, ROWS_AT_ONCE):
                writer.write(rows.slice(start, ROWS_AT_ONCE))
            done = writer.finish()
            with done.open("rb") as file:
                digest = hashlib.file_digest(file, "sha256").hexdigest()[:16]
            rename(done, self.folder / f"{table}-{digest}.parquet")

    @contextmanager
    def _connected(self) -> Iterator[tuple[Any, list[TableFile]]]:
        """A database in memory, bounded, whose views are the files as they are now."""
        duckdb = require("duckdb", extra="data", purpose="Asking a folder of Parquet files")
        files = self._files()
        try:
            if self._database is None:
                self._database = self._open(duckdb)
            if self._stale:
                _make_views(self._database, files)
                self._stale = False
            with self._database.cursor() as cursor:
                cursor.execute("SET python_enable_replacements = false")  # a table is a view, never a variable
                yield cursor, files
        except duckdb.OutOfMemoryException as error:
            raise DataError(f"The query needs more than {MEMORY_LIMIT} of memory. Ask for less at once.") from error
        except duckdb.Error as error:
            check_pages(files)
            raise DataError(f"Cannot answer the query: {_complaint(str(error))}") from error

    def _open(self, duckdb: Any) -> Any:
        spill = tempfile.mkdtemp(prefix="foretell-duckdb-")
        settings = {"memory_limit": MEMORY_LIMIT, "threads": THREADS, "temp_directory": spill}
        database = duckdb.connect(config=settings)
        database.create_function(
            _DOCUMENT, documents_of, [graph_sql(duckdb)], "VARCHAR", type="arrow", null_handling="special"
        )
        weakref.finalize(self, _forget, database, spill)  # DuckDB complains at the end of a process if it is left open
        database.execute("SET enable_progress_bar = false")
        self._stale = True
        return database


def _forget(database: Any, spill: str) -> None:
    database.close()
    shutil.rmtree(spill, ignore_errors=True)


def _complaint(text: str) -> str:
    """What DuckDB says, in one line: its first, and the one that offers what was meant."""
    first, *others = [line.strip() for line in text.strip().splitlines()]
    return " ".join((first, *(line for line in others if line.startswith(("Did you mean", "Candidate bindings")))))


def _make_views(database: Any, files: Sequence[TableFile]) -> None:
    for name in TABLES:
        if name not in ("kernels", "kernel_names"):
            mine = [file for file in files if file.table == name]
            database.execute(f'CREATE OR REPLACE VIEW "{name}" AS {_select(name, mine)}')
    database.register("names_", _names(files))
    database.execute("CREATE OR REPLACE TABLE kernel_names_ AS SELECT * FROM names_")
    database.unregister("names_")
    database.execute("CREATE OR REPLACE VIEW kernel_names AS SELECT DISTINCT name_id, name FROM kernel_names_")
    database.execute(f"CREATE OR REPLACE VIEW kernels AS {_select_kernels(files)}")
    for name, sql in VIEWS.items():
        database.execute(f"CREATE OR REPLACE VIEW {name} AS {sql}")


def _select(table: str, files: Sequence[TableFile], **instead: str) -> str:
    """The rows of some files with the schema's columns; what no file has is empty."""
    present = frozenset[str]().union(*(file.columns for file in files))
    columns = []
    for name, kind in TABLES[table].columns.items():
        value = instead.get(name) or (f'"{name}"' if name in present else "NULL")
        if name == DOCUMENT and GRAPH in present:
            value = f'coalesce("{DOCUMENT}", {_DOCUMENT}("{GRAPH}"))'
        columns.append(f'CAST({value} AS {_SQL_TYPES[kind]}) AS "{name}"')
    selected = f"SELECT {', '.join(columns)}"
    if not files:
        return f"{selected} WHERE false"
    paths = ", ".join(_quoted(_literal(file.path)) for file in files)
    return f"{selected} FROM read_parquet([{paths}], union_by_name = true)"


def _select_kernels(files: Sequence[TableFile]) -> str:
    """Kernels with their names; those of version 1 get their folder's campaign and the numbers of names everywhere."""
    kernels = [file for file in files if file.table == "kernels"]
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
    """All kernels' names with their numbers everywhere, and for version 1 their numbers in their folder."""
    arrow = require("pyarrow", extra="data", purpose="Reading tables")
    columns: dict[str, list[object]] = {"folder": [], "old_id": [], "name_id": [], "name": []}
    for file in files:
        if file.table == "kernel_names":
            found = read_columns(file, ("name_id", "name")).to_pydict()
            local, count = file.version == 1, len(found["name"])
            columns["folder"] += [str(file.path.parent) if local else None] * count
            columns["old_id"] += found["name_id"] if local else [None] * count
            columns["name_id"] += [name_number(name) for name in found["name"]] if local else found["name_id"]
            columns["name"] += found["name"]
    types = (
        ("folder", arrow.string()),
        ("old_id", arrow.int64()),
        ("name_id", arrow.int64()),
        ("name", arrow.string()),
    )
    return arrow.table(columns, schema=arrow.schema(types))


def _campaign_of(folder: Path, files: Sequence[TableFile]) -> str:
    """The campaign of a folder of version 1: the first of its measurements; without any, the folder's name."""
    for file in files:
        if file.table == "measurements" and file.path.parent == folder and file.rows:
            return str(read_columns(file, ("campaign_id",)).column(0)[0].as_py())
    return folder.name


def _literal(path: Path) -> str:
    """A path in which DuckDB finds no pattern."""
    return re.sub(r"([*?\[])", r"[\1]", str(path))


def _quoted(text: object) -> str:
    return "'" + str(text).replace("'", "''") + "'"
