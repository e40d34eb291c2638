"""What LILOU's networks are fitted to: kept in small files, read back as it was."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from foretell.errors import DataError
from foretell.predictors.fusion.edges import RUNTIMES, edges_of
from foretell.testing import tiny_graph
from foretell.training.examples.kernel_labels import read_labels
from foretell.training.examples.samples import read_samples
from foretell.training.fusion import fold_of, read_edges
from lab.papers.lilou import sets as lilou_sets
from lab.papers.lilou.features import describe_nodes
from lab.papers.lilou.sets import load_edges, load_units, prepare_edges, prepare_units, summed_samples
from small.small_fusion import write_fusion
from small.small_store import SETTINGS, WIDTHS, write_store, write_table

pytest.importorskip("pyarrow")


def test_graphs_are_kept_with_their_labels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = write_fusion(tmp_path / "store")
    file = prepare_edges(store, tmp_path / "cache")
    loaded, edges = load_edges(file), read_edges(store)
    assert np.array_equal(loaded.fused, edges.fused)  # the same order: what is said of edges can be compared
    assert np.array_equal(np.repeat(loaded.fold, loaded.edge_counts), edges.fold)
    graph = tiny_graph(channels=8 * 4)
    nodes = slice(3 * len(graph.nodes), 4 * len(graph.nodes))
    assert np.array_equal(loaded.nodes.of(loaded.rows[nodes]).sizes, describe_nodes(graph).sizes)
    edges_per_graph = len(edges_of(graph))
    assert loaded.edges[:, 3 * edges_per_graph : 4 * edges_per_graph].T.tolist() == [
        list(pair) for pair in edges_of(graph)
    ]
    assert loaded.runtime.tolist()[:2] == [RUNTIMES.index("onnxruntime"), RUNTIMES.index("inductor")]
    assert not loaded.same_origin.any()
    monkeypatch.setattr(lilou_sets, "_read_edges", lambda *_: pytest.fail("read again"))
    write_table(store / "two", "graphs", [])  # other graphs change nothing
    assert prepare_edges(store, tmp_path / "cache") == file


def test_nothing_collected_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="No fusion was collected"):
        prepare_edges(tmp_path, tmp_path / "cache")
    write_fusion(tmp_path)
    write_table(tmp_path / "one", "fusion_edges", [])
    with pytest.raises(DataError, match="0 labels; collect it again"):
        prepare_edges(tmp_path, tmp_path / "cache")


def test_units_are_kept_with_what_was_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = write_store(tmp_path / "store", WIDTHS[:4])
    write_table(store / "one", "kernel_names", [{"name_id": 1, "name": "splitKreduce_kernel"}])
    loaded = load_units(prepare_units(store, "NVIDIA H200", tmp_path / "cache"))
    labels = read_labels(store, "h200", tmp_path / "cache")
    samples = summed_samples(read_samples(store, "h200", tmp_path / "cache"))
    inference = sum(mode == "inference" for *_, mode in SETTINGS)
    assert len(samples) == len(loaded.lengths) == 4 * inference
    assert loaded.lengths.tolist() == [len(sample.units) for sample in samples]
    assert loaded.ids.tolist() == [sample.workload_id for sample in samples]
    assert loaded.summed_fold.tolist() == [fold_of(sample.spec) for sample in samples]
    assert np.allclose(loaded.time_us, labels.time_us / labels.counts)
    assert loaded.classes.tolist() == list(labels.classes)
    assert len(loaded.summed) == loaded.lengths.sum()
    many = labels.features.copy()
    many[0, lilou_sets._NODES] = 2
    monkeypatch.setattr(lilou_sets, "read_labels", lambda *_: replace(labels, features=many))
    with pytest.raises(DataError, match="has 2 nodes"):
        prepare_units(store, "h200", tmp_path / "other")


def test_no_traced_inference_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = write_store(tmp_path / "store", WIDTHS[:2])
    write_table(store / "one", "kernel_names", [{"name_id": 1, "name": "splitKreduce_kernel"}])
    labels = read_labels(store, "h200", tmp_path)
    monkeypatch.setattr(lilou_sets, "read_labels", lambda *_: replace(labels, training=labels.counts > 0))
    with pytest.raises(DataError, match="0 units of inference are traced"):
        prepare_units(store, "h200", tmp_path)
