"""Graphs at rest: as columns of Parquet files, which take a sixth of their JSON."""
