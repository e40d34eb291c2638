"""Datasets: the PostgreSQL store: the same tables for a team.

Rows are in the schema ``foretell_tables``. The schema ``foretell`` has what people query: views with the names of the
tables, ``training``, ``llm``, and ``kernels`` with the names of the kernels. An append is one transaction.
"""

import io
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from decimal import Decimal
from typing import Any

from foretell.datasets.parquet_files import arrow_schema, fitted, pyarrow
from foretell.datasets.schema import SCHEMA_VERSION, TABLES, VIEWS, Table
from foretell.datasets.store import ROWS_AT_ONCE, check_table, gathered
from foretell.errors import DataError
from foretell.optional import require
from foretell.units import MIB

_SQL_TYPES: Mapping[str, str] = {
    "string": "text", "bool": "boolean", "int16": "smallint", "int32": "integer", "int64": "bigint",
    "float32": "real", "float64": "double precision",
}  # fmt: skip
_ARROW_TYPES: Mapping[str, str] = {sql: arrow for arrow, sql in _SQL_TYPES.items()} | {"numeric": "float64"}
_SETUP_LOCK = 7_301_944  # an arbitrary number for advisory locks; the numbers after it lock one table each
_BLOCK_BYTES = 64 * MIB  # of text at once; the document of one graph must fit


class PostgresStore:
    """A database that has the tables, or gets them on first use."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._connection: Any = None

    def append(self, table: str, data: Any) -> int:
        """Add the rows whose key is not there yet, in one transaction; return their number."""
        check_table(table)
        rows = fitted(TABLES[table], data)
        text = io.BytesIO()
        csv = require("pyarrow.csv", extra="data", purpose="Writing tables")
        # COPY of CSV is far faster than INSERT for a hundred thousand rows
        csv.write_csv(rows, text, csv.WriteOptions(include_header=False))
        names = _names(TABLES[table].columns)
        with self._transaction() as cursor:
            # one append at a time: two that add the same rows in different orders would deadlock
            cursor.execute("SELECT pg_advisory_xact_lock(%s)", (_SETUP_LOCK + 1 + list(TABLES).index(table),))
            cursor.execute(f"CREATE TEMP TABLE incoming ON COMMIT DROP AS SELECT {names} FROM {_table(table)} LIMIT 0")
            with cursor.copy(f"COPY incoming ({names}) FROM STDIN (FORMAT csv)") as copy:
                copy.write(text.getbuffer())
            cursor.execute(f"INSERT INTO {_table(table)} ({names}) SELECT {names} FROM incoming ON CONFLICT DO NOTHING")
            return int(cursor.rowcount)

    def query(self, sql: str) -> Any:
        """The result of one SELECT, as an Arrow table."""
        arrow = pyarrow()
        with self._transaction(read_only=True) as cursor:
            cursor.execute(sql, binary=True)  # the binary protocol accepts exactly one statement
            if cursor.description is None:
                raise DataError("A store answers only SELECT.")
            columns = list(zip(*cursor.fetchall(), strict=True)) or [()] * len(cursor.description)
            types = [self._arrow_type(column.type_code) for column in cursor.description]
            names = [column.name for column in cursor.description]
        arrays = [arrow.array([_plain(v) for v in column], type=kind) for column, kind in zip(columns, types)]
        return arrow.Table.from_arrays(arrays, names=names)

    def count(self, table: str) -> int:
        """How many rows a table has."""
        check_table(table)
        with self._transaction(read_only=True) as cursor:
            cursor.execute(f"SELECT count(*) FROM {_table(table)}")
            return int(cursor.fetchone()[0])

    def tables(self) -> dict[str, int]:
        """The number of rows of every table that is not empty."""
        return {table: rows for table in TABLES if (rows := self.count(table))}

    def rows(self, table: str, columns: Sequence[str] = (), at_once: int = ROWS_AT_ONCE) -> Iterator[Any]:
        """A table in Arrow tables of at most ``at_once`` rows."""
        names = check_table(table, columns)
        csv = require("pyarrow.csv", extra="data", purpose="Reading tables")
        schema = arrow_schema(TABLES[table])
        reading = csv.ReadOptions(column_names=names, block_size=_BLOCK_BYTES)
        converting = csv.ConvertOptions(
            column_types={name: schema.field(name).type for name in names},
            # PostgreSQL writes NULL as nothing and an empty text in quotes
            null_values=[""], strings_can_be_null=True, quoted_strings_can_be_null=False,
            true_values=["t"], false_values=["f"],
        )  # fmt: skip
        parsing = csv.ParseOptions(newlines_in_values=True)
        if not self.count(table):
            return
        sql = f"COPY (SELECT {_names(names)} FROM {_table(table)}) TO STDOUT (FORMAT csv)"
        with self._transaction(read_only=True) as cursor, cursor.copy(sql) as copy:
            yield from gathered(csv.open_csv(_CopyFile(copy), reading, parsing, converting), at_once)

    def size_bytes(self) -> int:
        """The space that tables and indexes take on the server."""
        with self._transaction(read_only=True) as cursor:
            places = " + ".join(f"pg_total_relation_size('{_table(table)}')" for table in TABLES)
            cursor.execute(f"SELECT {places}")
            return int(cursor.fetchone()[0])

    def close(self) -> None:
        """Close the connection."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _arrow_type(self, code: int) -> Any:
        info = self._connection.adapters.types.get(code)
        alias = _ARROW_TYPES.get(info.regtype) if info is not None else None
        return pyarrow().type_for_alias(alias) if alias is not None else None

    @contextmanager
    def _transaction(self, read_only: bool = False) -> Iterator[Any]:
        psycopg = require("psycopg", extra="postgres", purpose="A store on PostgreSQL")
        try:
            if self._connection is None or self._connection.closed:
                self._connection = psycopg.connect(self._url, autocommit=True, connect_timeout=15)
                try:
                    self._set_up()
                except BaseException:
                    self.close()
                    raise
            with self._connection.transaction(), self._connection.cursor() as cursor:
                cursor.execute("SET LOCAL search_path = foretell")
                if read_only:
                    cursor.execute("SET TRANSACTION READ ONLY")
                yield cursor
        except psycopg.OperationalError as error:
            raise DataError(
                f"The database does not answer: {_one_line(error)}. Nothing was changed; check --store and the server."
            ) from error
        except psycopg.Error as error:
            raise DataError(f"The database refuses: {_one_line(error)}. Nothing was changed.") from error
        except UnicodeError as error:  # half a character, as in the name of a file that is not UTF-8
            raise DataError(f"The database stores only valid text: {_one_line(error)}. Nothing was changed.") from error

    def _set_up(self) -> None:
        """Create the tables where there are none; where they exist, no rights to create anything are needed."""
        with self._connection.transaction(), self._connection.cursor() as cursor:
            version = _version(cursor)
            if version == SCHEMA_VERSION:
                return
            if version is not None and version > SCHEMA_VERSION:
                raise DataError(
                    f"The database has schema version {version}; this foretell knows up to {SCHEMA_VERSION}. "
                    "Install a newer foretell."
                )
            cursor.execute("SELECT pg_advisory_xact_lock(%s)", (_SETUP_LOCK,))
            # another process may have made the tables while we waited for the lock
            if _version(cursor) != SCHEMA_VERSION:
                for statement in _definitions():
                    cursor.execute(statement)


def _version(cursor: Any) -> int | None:
    cursor.execute("SELECT to_regclass('foretell_tables.info')")
    if cursor.fetchone()[0] is None:
        return None
    cursor.execute("SELECT max(schema_version) FROM foretell_tables.info")
    version = cursor.fetchone()[0]
    return int(version) if version is not None else None


def _definitions() -> Iterator[str]:
    """The statements that create the tables, or update older ones."""
    yield "CREATE SCHEMA IF NOT EXISTS foretell_tables"
    yield "CREATE TABLE IF NOT EXISTS foretell_tables.info (schema_version integer PRIMARY KEY)"
    for table in TABLES.values():
        yield f"CREATE TABLE IF NOT EXISTS {_table(table.name)} ({_columns(table)}, PRIMARY KEY ({_names(table.key)}))"
        for name, kind in table.columns.items():
            yield f'ALTER TABLE {_table(table.name)} ADD COLUMN IF NOT EXISTS "{name}" {_SQL_TYPES[kind]}'
    # it holds views only: they are made again from today's definitions
    yield "DROP SCHEMA IF EXISTS foretell CASCADE"
    yield "CREATE SCHEMA foretell"
    yield "SET LOCAL search_path = foretell"
    for name, table in TABLES.items():
        if name == "kernels":
            yield (
                f"CREATE VIEW kernels AS SELECT {_names(table.columns, 'k.')}, n.name AS kernel FROM {_table(name)} k "
                f"LEFT JOIN {_table('kernel_names')} n ON n.name_id = k.name_id"
            )
        else:
            yield f'CREATE VIEW "{name}" AS SELECT {_names(table.columns)} FROM {_table(name)}'
    for name, sql in VIEWS.items():
        yield f"CREATE VIEW {name} AS {sql}"
    yield f"INSERT INTO foretell_tables.info VALUES ({SCHEMA_VERSION}) ON CONFLICT DO NOTHING"


def _columns(table: Table) -> str:
    return ", ".join(f'"{name}" {_SQL_TYPES[kind]}' for name, kind in table.columns.items())


def _names(columns: Sequence[str] | Mapping[str, str], prefix: str = "") -> str:
    return ", ".join(f'{prefix}"{name}"' for name in columns)


def _table(table: str) -> str:
    return f'foretell_tables."{table}"'


def _plain(value: object) -> object:
    return float(value) if isinstance(value, Decimal) else value


def _one_line(error: Exception) -> str:
    lines = [line for line in str(error).splitlines() if not line.startswith("LINE ") and line.strip() != "^"]
    return " ".join(" ".join(lines).split()).rstrip(".?") or type(error).__name__


class _CopyFile(io.RawIOBase):
    """The data that the server sends, as a file that can be read once."""

    def __init__(self, copy: Any) -> None:
        self._chunks = iter(copy)
        self._buffer = b""

    def readable(self) -> bool:
        return True

    def read(self, count: int = -1) -> bytes:
        pieces = [self._buffer]
        have = len(self._buffer)
        while count < 0 or have < count:
            piece = next(self._chunks, None)
            if piece is None:
                break
            pieces.append(bytes(piece))
            have += len(piece)
        data = b"".join(pieces)
        cut = len(data) if count < 0 else count
        self._buffer = data[cut:]
        return data[:cut]
