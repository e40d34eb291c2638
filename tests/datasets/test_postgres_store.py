"""PostgreSQL: a real server, one transaction an append."""

import json
import threading
from pathlib import Path
from typing import Any

import psycopg
import pytest

from command_line import run
from foretell.datasets.parquet_store import ParquetStore
from foretell.datasets.postgres_store import PostgresStore
from foretell.errors import DataError


def test_two_at_once_lose_and_double_nothing(database: str, rows: Any) -> None:
    added: list[int] = []

    def append(start: int) -> None:
        store = PostgresStore(database)
        added.extend(store.append("slices", rows("slices", 50, start=start + 50 * i)) for i in range(3))
        store.close()

    threads = [threading.Thread(target=append, args=(start,)) for start in (0, 100)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sum(added) == 250
    store = PostgresStore(database)
    assert store.count("slices") == 250
    store.close()


def test_an_append_that_fails_adds_nothing(database: str, rows: Any) -> None:
    store = PostgresStore(database)
    store.append("slices", rows("slices", 3))
    with psycopg.connect(database) as connection:
        connection.execute("ALTER TABLE foretell_tables.slices ADD CHECK (percent < 2)")
    with pytest.raises(DataError, match=r"The database refuses.*Nothing was changed") as refused:
        store.append("slices", rows("slices", 10))
    assert "\n" not in str(refused.value)
    assert store.count("slices") == 3
    store.close()


def test_a_killed_connection_is_a_clear_line_and_the_next_call_works(database: str, rows: Any) -> None:
    store = PostgresStore(database)
    store.append("slices", rows("slices", 2))
    with psycopg.connect(database, autocommit=True) as connection:
        connection.execute("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE pid <> pg_backend_pid() "
                           "AND datname = current_database()")  # fmt: skip
    with pytest.raises(DataError, match="does not answer"):
        store.count("slices")
    assert store.count("slices") == 2
    store.close()


def test_a_missing_server_is_one_line() -> None:
    with pytest.raises(DataError, match=r"does not answer.*check --store") as refused:
        PostgresStore("postgresql://someone:secret@/none?host=/nowhere").tables()
    assert "secret" not in str(refused.value)
    assert "\n" not in str(refused.value)


def test_versions(database: str, rows: Any) -> None:
    store = PostgresStore(database)
    store.append("slices", rows("slices"))
    store.close()
    with psycopg.connect(database) as connection:
        connection.execute("UPDATE foretell_tables.info SET schema_version = 1")
        connection.execute("ALTER TABLE foretell_tables.slices DROP COLUMN alone_s CASCADE")
    answer = store.query("SELECT count(*) AS n, max(alone_s) AS m FROM slices")
    assert answer.to_pylist() == [{"n": 5, "m": None}], "an older database is brought up to date"
    store.close()
    with psycopg.connect(database) as connection:
        connection.execute("INSERT INTO foretell_tables.info VALUES (99)")
    with pytest.raises(DataError, match="version 99"):
        PostgresStore(database).tables()


def test_answers_have_types(database: str, rows: Any) -> None:
    store = PostgresStore(database)
    empty = store.query("SELECT workload_id, percent, sm_count, avg(sm_count) AS mean FROM slices GROUP BY 1, 2, 3")
    assert [str(kind) for kind in empty.schema.types] == ["string", "double", "int32", "double"]
    store.append("slices", rows("slices"))
    assert store.query("SELECT count(*) FROM slices WHERE method LIKE '%text%'").num_rows == 1
    assert store.query("SELECT 1 AS a, 2 AS a").column_names == ["a", "a"]
    store.close()


def test_a_folder_is_merged_through_the_command_line(
    database: str, tmp_path: Path, rows: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = ParquetStore(tmp_path / "data")
    folder.append("measurements", rows("measurements", 4, status="ok", latency_ms=1.0, memory_mib=2.0))
    folder.append("kernel_names", rows("kernel_names", 3))
    merged = json.loads(run(capsys, "data", "merge", str(tmp_path / "data"), "--store", database, "--json"))
    assert merged == {"measurements": 4, "kernel_names": 3}
    there, here = (
        json.loads(run(capsys, "data", "card", "--store", where, "--json")) for where in (database, str(tmp_path))
    )
    assert there["noise"] == pytest.approx(here["noise"])
    other = {"size_bytes": 0, "noise": {}}
    assert there | other == here | other
    assert there["measurements"] == 4


def test_half_a_character_is_one_line(database: str) -> None:
    store = PostgresStore(database)
    with pytest.raises(DataError, match="only valid text"):
        store.query("SELECT '\ud800' AS model")
    assert store.query("SELECT 1 AS one").to_pylist() == [{"one": 1}]
    store.close()
