"""Files written again: smaller, the same rows, nothing lost where something goes wrong."""

import hashlib
from pathlib import Path
from typing import Any

import pytest

from foretell.datasets.graphs import repacking
from foretell.datasets.graphs.repacking import repack
from foretell.datasets.parquet_files import find_files, read_graphs
from foretell.datasets.parquet_store import ParquetStore
from foretell.errors import DataError
from foretell.graph import Graph, Node
from foretell.graph.ir.serde import to_document
from foretell.testing import chain

pa = pytest.importorskip("pyarrow")
parquet = pytest.importorskip("pyarrow.parquet")


def deep(width: int, layers: int = 80) -> Graph:
    """A chain of many layers."""
    names = [f"out_{layer}" for layer in range(layers)]
    nodes = [
        Node(f"node_{after}", "Gemm", (before, f"w.{after}"), (after,), module=f"layers.{place}")
        for place, (before, after) in enumerate(zip(["x", *names], names))
    ]
    shapes: dict[str, Any] = {"x": (1, width)} | dict.fromkeys(names, (1, width))
    return chain(nodes, shapes | {f"w.{name}": (width, width) for name in names}, ["x"], names[-1:])


def old_files(folder: Path, rows: Any) -> list[Graph]:
    """Kernels of version 1 with not-a-number among them, and graphs of version 3 as documents."""
    kernels = rows("kernels", 3000, module="blocks.0.norm").drop_columns(["campaign_id"])
    durations = pa.array([float("nan"), 0.5, None] * 1000, pa.float32())
    kernels = kernels.set_column(kernels.column_names.index("duration_us"), "duration_us", durations)
    parquet.write_table(kernels.replace_schema_metadata(None), folder / "kernels.parquet")
    graphs = [deep(width) for width in range(2, 42)]
    data = rows("graphs", len(graphs))
    texts = pa.array([to_document(graph) for graph in graphs])
    data = data.set_column(data.column_names.index("document"), "document", texts)
    named = folder / "graphs-0123456789abcdef.parquet"
    parquet.write_table(data.replace_schema_metadata({"schema_version": "3"}), named, compression="none")
    return graphs


def test_files_become_smaller_and_stay_the_same(tmp_path: Path, rows: Any) -> None:
    graphs = old_files(tmp_path, rows)
    store = ParquetStore(tmp_path)
    before = [store.query(f"SELECT * FROM {table} ORDER BY ALL").to_pydict() for table in ("kernels", "graphs")]
    done = repack(tmp_path)
    assert all(file.after_bytes < file.before_bytes for file in done)
    files = {file.table: file for file in find_files(tmp_path)}
    assert files["kernels"].version == 1, "its numbers of names are still those of its folder"
    path = files["graphs"].path
    assert path.name == f"graphs-{hashlib.sha256(path.read_bytes()).hexdigest()[:16]}.parquet"
    assert [read_graphs(files["graphs"])[place] for place in range(len(graphs))] == graphs
    again = [store.query(f"SELECT * FROM {table} ORDER BY ALL").to_pydict() for table in ("kernels", "graphs")]
    store.close()
    assert repr(again) == repr(before)
    assert sorted(path.suffix for path in tmp_path.iterdir()) == [".lock", ".parquet", ".parquet"]


def test_small_files_are_not_rewritten(tmp_path: Path, rows: Any) -> None:
    old_files(tmp_path, rows)
    repack(tmp_path)
    before = {path: path.read_bytes() for path in tmp_path.glob("*.parquet")}
    done = repack(tmp_path)
    assert {path: path.read_bytes() for path in tmp_path.glob("*.parquet")} == before
    assert {file.path for file in done} == set(before)
    assert all(file.after_bytes == file.before_bytes for file in done)


@pytest.mark.parametrize("table", ["kernels", "graphs"])
def test_a_file_that_would_not_come_back_is_left_as_it_is(
    tmp_path: Path, rows: Any, monkeypatch: pytest.MonkeyPatch, table: str
) -> None:
    old_files(tmp_path, rows)
    for path in tmp_path.iterdir():
        if not path.name.startswith(table):
            path.unlink()
    before = {path: path.read_bytes() for path in tmp_path.iterdir()}

    def cut(path: Path, name: str) -> Any:
        yield parquet.read_table(path).slice(1)

    monkeypatch.setattr(repacking, "_batches", cut)
    with pytest.raises(DataError, match="was not the same after rewriting"):
        repack(tmp_path)
    assert {path: path.read_bytes() for path in tmp_path.glob("*.parquet")} == before
    assert not list(tmp_path.glob(".*.part"))
