"""Seals: a checksum inside a Parquet file, which readers of Parquet do not see."""

from pathlib import Path

import pytest

from foretell.datasets.seals import seal, seal_matches

pa = pytest.importorskip("pyarrow")
parquet = pytest.importorskip("pyarrow.parquet")


@pytest.fixture
def table(tmp_path: Path) -> Path:
    path = tmp_path / "table.parquet"
    parquet.write_table(pa.table({"latency": list(range(100)), "name": ["a"] * 100}), path)
    return path


def test_a_sealed_file_is_read_as_before(table: Path) -> None:
    rows, size = parquet.read_table(table), table.stat().st_size
    assert seal_matches(table), "older files have no seal"
    seal(table)
    assert table.stat().st_size == size + 48
    assert parquet.read_table(table).equals(rows)
    assert seal_matches(table)


def test_a_renamed_column_breaks_the_seal(table: Path) -> None:
    seal(table)
    table.write_bytes(table.read_bytes().replace(b"latency", b"latencx"))
    assert parquet.read_table(table).column_names == ["latencx", "name"], "the checksums of Parquet do not see it"
    assert not seal_matches(table)


def test_a_changed_page_breaks_the_seal(table: Path) -> None:
    seal(table)
    content = bytearray(table.read_bytes())
    content[40] ^= 1
    table.write_bytes(content)
    assert not seal_matches(table)


def test_what_is_no_parquet_has_no_seal(tmp_path: Path) -> None:
    for content in (b"", b"x", b"PAR1" * 4, b"\xff" * 100):
        path = tmp_path / "table.parquet"
        path.write_bytes(content)
        assert seal_matches(path)
