"""Datasets: stored records: schema, stores (Parquet with DuckDB, PostgreSQL for a team), splits, cards."""

from foretell.datasets.opening import open_store
from foretell.datasets.schema import SCHEMA_VERSION, TABLES, VIEWS, Table
from foretell.datasets.store import Store

__all__ = ["SCHEMA_VERSION", "TABLES", "VIEWS", "Store", "Table", "open_store"]
