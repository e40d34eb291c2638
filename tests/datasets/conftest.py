"""Stores of both kinds, and a few rows for every table."""

import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from foretell.datasets.opening import open_store
from foretell.datasets.parquet_files import arrow_table
from foretell.datasets.schema import TABLES
from foretell.datasets.store import Store
from postgres_server import fresh_database, running_server

_numbers = itertools.count()


@pytest.fixture(scope="session")
def server() -> Iterator[str]:
    with running_server() as folder:
        yield folder


@pytest.fixture
def database(server: str) -> Iterator[str]:
    with fresh_database(server, f"test_{next(_numbers)}") as address:
        yield address


@pytest.fixture(params=["parquet", "postgres"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Store]:
    """One test, both stores."""
    where = tmp_path / "store" if request.param == "parquet" else request.getfixturevalue("database")
    opened = open_store(where)
    yield opened
    opened.close()


VALUES: dict[str, Any] = {
    "string": lambda i: f'text "{i}", with\na line' if i else "",
    "bool": lambda i: i % 2 == 0,
    "int16": lambda i: i - 3,
    "int32": lambda i: i * 1001,
    "int64": lambda i: i * 10**15,
    "float32": lambda i: i / 4,
    "float64": lambda i: i / 3,
}


def make_rows(table: str, count: int = 5, start: int = 0, **values: object) -> Any:
    """Rows with distinct keys; every third value that is no key is absent."""
    columns: dict[str, list[object]] = {}
    for place, (name, kind) in enumerate(TABLES[table].columns.items()):
        absent = name not in TABLES[table].key
        make = VALUES[kind]
        columns[name] = [
            values[name] if name in values else None if absent and (i + place) % 3 == 0 else make(i)
            for i in range(start, start + count)
        ]
    return arrow_table(TABLES[table], columns)


@pytest.fixture
def rows() -> Any:
    return make_rows
