"""Reading graphs from columns against reading them from JSON texts, and the size of both, in one run.

python benchmarks/graph_columns.py [FOLDER] [--at-most N]    the graphs of FOLDER, data by default; needs foretell[data]

Each file of graphs is written in both forms to a temporary folder and read back, by turns; every graph is compared.
"""

import argparse
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from foretell.datasets.parquet_files import TableFile, TableWriter, find_files, read_graphs
from foretell.datasets.schema import TABLES
from foretell.graph import Graph
from foretell.graph.ir.serde import from_document, to_document


def read_columns_form(path: Path, rows: int) -> list[Graph]:
    """The graphs of a file of today."""
    graphs = read_graphs(TableFile(path, "graphs", 0, frozenset(pq.read_schema(path).names), rows))
    return [graphs[place] for place in range(rows)]


def read_text_form(path: Path) -> list[Graph]:
    """The graphs of a file of version 3."""
    return [from_document(text) for text in pq.read_table(path, columns=["document"]).column(0).to_pylist()]


def timed(work: Callable[[], list[Graph]]) -> tuple[float, list[Graph]]:
    started = time.perf_counter()
    found = work()
    return time.perf_counter() - started, found


def write_both(file: TableFile, folder: Path, at_most: int) -> tuple[Path, Path, int]:
    """The first graphs of a file as columns and as texts."""
    stored = read_graphs(file)
    rows = min(len(stored), at_most)
    names = {name: pa.type_for_alias(kind) for name, kind in TABLES["graphs"].columns.items()}
    documents = pa.array([to_document(stored[place]) for place in range(rows)], pa.string())
    data = pa.table({name: documents if name == "document" else pa.nulls(rows, kind) for name, kind in names.items()})
    columns, texts = folder / "columns.parquet", folder / "texts.parquet"
    with TableWriter(folder / "columns.part", TABLES["graphs"]) as writer:
        writer.write(data)
        writer.finish().rename(columns)
    pq.write_table(data, texts, compression="zstd", compression_level=19, use_dictionary=False, data_page_size=8 << 20)
    return columns, texts, rows


def main() -> None:
    """Print sizes, seconds and their ratios."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("folder", nargs="?", type=Path, default=Path("data"))
    parser.add_argument("--at-most", type=int, default=100, help="graphs of each file")
    given = parser.parse_args()
    count, columns_s, texts_s, columns_bytes, texts_bytes = 0, 0.0, 0.0, 0, 0
    for file in find_files(given.folder):
        if file.table != "graphs":
            continue
        with tempfile.TemporaryDirectory() as folder:
            columns, texts, rows = write_both(file, Path(folder), given.at_most)
            texts_took, old = timed(lambda path=texts: read_text_form(path))
            columns_took, new = timed(lambda path=columns, rows=rows: read_columns_form(path, rows))
            if old != new:
                raise SystemExit(f"{file.path}: columns and texts give other graphs.")
            count += rows
            columns_s += columns_took
            texts_s += texts_took
            columns_bytes += columns.stat().st_size
            texts_bytes += texts.stat().st_size
    print(f"{count:,} graphs, equal in both forms")
    print(f"bytes: columns {columns_bytes:,}, JSON {texts_bytes:,}: {columns_bytes / texts_bytes:.3f}")
    print(f"reading: columns {columns_s:.2f} s, JSON {texts_s:.2f} s: {columns_s / texts_s:.2f} of the time")


if __name__ == "__main__":
    main()
