"""The store at an address."""

from pathlib import Path

import pytest

from foretell.datasets.opening import open_store
from foretell.datasets.parquet_store import ParquetStore
from foretell.errors import DataError

pytest.importorskip("duckdb")
pytest.importorskip("pyarrow")


def test_a_folder_is_a_store_of_parquet_files(tmp_path: Path) -> None:
    for where in (tmp_path, str(tmp_path)):
        store = open_store(where)
        assert isinstance(store, ParquetStore)
        assert store.tables() == {}
        store.close()


def test_places_that_are_no_store_are_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="folder, or postgresql"):
        open_store("mysql://there")
    (tmp_path / "file").write_text("x")
    with pytest.raises(DataError, match="is a file"):
        open_store(tmp_path / "file").tables()
