"""Datasets: opening: the store at an address, a folder of Parquet files or a PostgreSQL database."""

from pathlib import Path

from foretell.datasets.parquet_store import ParquetStore
from foretell.datasets.postgres_store import PostgresStore
from foretell.datasets.store import Store
from foretell.errors import DataError

_POSTGRES = ("postgresql://", "postgres://")


def open_store(location: str | Path) -> Store:
    """The store at a folder or at ``postgresql://user@host/database``."""
    text = str(location)
    if text.startswith(_POSTGRES):
        return PostgresStore(text)
    if "://" in text:
        raise DataError(f"Cannot open the store {text!r}. Give a folder, or postgresql://user@host/database.")
    return ParquetStore(Path(text))
