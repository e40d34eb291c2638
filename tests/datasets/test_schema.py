"""Tables as plain data."""

import subprocess
import sys
from pathlib import Path

import pytest

from foretell.datasets.schema import SCHEMA_VERSION, TABLES, VIEWS, name_number

DATA = Path(__file__).parents[2] / "data" / "h200"


def test_every_table_has_a_key_of_its_own_columns_and_a_campaign() -> None:
    for name, table in TABLES.items():
        assert table.name == name
        assert set(table.key) <= set(table.columns)
        assert "campaign_id" in table.columns or name == "kernel_names"
    assert not set(VIEWS) & set(TABLES)


def test_what_refers_to_a_name_comes_after_it() -> None:
    order = list(TABLES)
    assert order.index("kernel_names") < order.index("kernels")
    assert order.index("graphs") < order.index("kernel_nodes")


def test_version_1_is_still_covered() -> None:
    parquet = pytest.importorskip("pyarrow.parquet")
    for table in ("measurements", "kernels", "kernel_names"):
        schema = parquet.read_schema(DATA / "2026-11-15-1" / f"{table}.parquet")
        assert schema.metadata == {b"schema_version": b"1"} != {b"schema_version": str(SCHEMA_VERSION).encode()}
        mine = TABLES[table].columns
        changed = {field.name for field in schema if mine.get(field.name) != field.type}
        assert changed <= {"name_id"}, "an old column lost its place or its type"
    old = set(parquet.read_schema(DATA / "2026-11-15-1/measurements.parquet").names)
    assert set(TABLES["measurements"].columns) - old == {
        "process_state", "channels_last", "cudnn_benchmark", "cudnn_tf32", "reference_ms", "threads",
    }  # fmt: skip


def test_numbers_of_names_fit_and_differ() -> None:
    numbers = {name_number(f"kernel_{i}") for i in range(2000)}
    assert len(numbers) == 2000
    assert 0 <= min(numbers) < max(numbers) < 2**63


def test_the_schema_needs_no_library() -> None:
    libraries = {"pyarrow", "duckdb", "psycopg"}
    code = f"import sys; import foretell.datasets.schema; sys.exit(bool({libraries} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
