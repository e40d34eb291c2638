"""Datasets: graphs: stored as columns of Parquet files, in a sixth of the space of JSON."""
