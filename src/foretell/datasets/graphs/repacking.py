"""Datasets: repacking: rewrite the files of a store in today's encoding: row for row the same, and smaller.

A file of graphs gets columns instead of documents; every other file keeps its schema and its version. A file is
replaced only after the new one has been read back and compared, and only if it is smaller.
"""

import hashlib
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from foretell.datasets.graphs.stored import DOCUMENT, GRAPH
from foretell.datasets.parquet_files import (
    TableFile,
    TableWriter,
    find_files,
    fitted,
    open_parquet,
    pyarrow,
    read_columns,
    read_graphs,
    rename,
)  # fmt: skip
from foretell.datasets.parquet_store import ParquetStore
from foretell.datasets.schema import TABLES
from foretell.datasets.store import rows_at_once
from foretell.errors import DataError


@dataclass(frozen=True)
class Repacked:
    """The outcome for one file."""

    path: Path
    table: str
    rows: int
    before_bytes: int
    after_bytes: int


def repack(folder: Path) -> list[Repacked]:
    """Rewrite all files below ``folder``; other processes that append wait until it is done."""
    with ParquetStore(folder).locked():
        return [_repack(file) for file in find_files(folder)]


def _repack(file: TableFile) -> Repacked:
    before = file.path.stat().st_size
    partial = file.path.with_name(f".{file.path.name}.part")
    is_graphs = DOCUMENT in TABLES[file.table].columns
    if GRAPH in file.columns:  # already in columns
        return Repacked(file.path, file.table, file.rows, before, before)
    with open_parquet(file.path) as opened:
        # other tables keep their old schema, so that readers of that version still understand them
        schema = None if is_graphs else opened.schema_arrow
    with TableWriter(partial, TABLES[file.table], schema) as writer:
        for piece in _batches(file.path, file.table):
            writer.write(fitted(TABLES[file.table], piece) if is_graphs else piece)
        writer.finish()
        _compare(file, partial)
        after = partial.stat().st_size
        if after >= before:
            return Repacked(file.path, file.table, file.rows, before, before)
        digest = hashlib.sha256(partial.read_bytes()).hexdigest()[:16]
        rename(partial, file.path)
    path = file.path
    if path.stem != file.table:  # an appended file: its name contains the hash of its content
        path = path.with_name(f"{file.table}-{digest}.parquet")
        rename(file.path, path)
    return Repacked(path, file.table, file.rows, before, after)


def _batches(path: Path, table: str) -> Iterator[Any]:
    with open_parquet(path) as opened:
        for batch in opened.iter_batches(rows_at_once(table)):
            yield pyarrow().Table.from_batches([batch])


def _compare(file: TableFile, partial: Path) -> None:
    """Raise an error unless both files have the same rows; one column is in memory at a time."""
    written = TableFile(partial, file.table, file.version, file.columns | {GRAPH}, file.rows)
    is_equal = all(
        _bits(read_columns(file, (name,)).column(0)).equals(_bits(read_columns(written, (name,)).column(0)))
        for name in file.columns - {DOCUMENT}
    )
    if is_equal and DOCUMENT in file.columns:
        old, new = read_graphs(file), read_graphs(written)
        is_equal = all(_plain(old.document(place)) == _plain(new.document(place)) for place in range(len(old)))
    if not is_equal:
        raise DataError(f"{file.path} was not the same after rewriting; the old file was kept.")


def _bits(column: Any) -> Any:
    """A column with floats viewed as integers of the same bits, so that NaN equals NaN."""
    arrow = pyarrow()
    as_integers = {arrow.float32(): arrow.int32(), arrow.float64(): arrow.int64()}
    column_array = column.combine_chunks()
    return column_array.view(as_integers[column.type]) if column.type in as_integers else column_array


def _plain(document: str | None) -> Any:
    return None if document is None else json.loads(document)
