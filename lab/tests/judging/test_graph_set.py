"""The graphs of all captured workloads: extracted once, exactly the same from the file, and small."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from foretell.errors import DataError
from foretell.predictors.sample import Sample
from foretell.training.examples.samples import read_samples
from foretell.training.examples.workloads import read_examples
from lab.judging import graph_set
from lab.judging.graph_set import read_graph_set
from lab.papers.graph_networks.arrays import GraphArrays, extract_graph_arrays
from small.small_samples import H200
from small.small_store import SETTINGS, write_store
from small.tiny_workloads import tiny_graphs

pytest.importorskip("pyarrow")

WIDTHS = (8, 32, 64)


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_store(tmp_path_factory.mktemp("store"), WIDTHS)


@pytest.fixture(scope="module")
def samples(store: Path, tmp_path_factory: pytest.TempPathFactory) -> list[Sample]:
    return read_samples(store, "h200", tmp_path_factory.mktemp("samples"))


def assert_same(actual: GraphArrays, expected: GraphArrays) -> None:
    for name, value in vars(expected).items():
        other = getattr(actual, name)
        assert (other.dtype, other.shape) == (value.dtype, value.shape), name
        np.testing.assert_array_equal(other, value)


def test_the_file_gives_back_what_was_extracted(
    samples: list[Sample], store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = read_graph_set(samples, store, "h200", tmp_path / "deep")
    (file,) = (tmp_path / "deep").iterdir()
    assert file.name.startswith("graphs-h200-")
    assert file.suffix == ".npz"

    def refuse(*_: object) -> None:
        raise AssertionError("the file must be used")

    monkeypatch.setattr(graph_set, "read_graphs", refuse)
    again = read_graph_set(samples, store, "h200", tmp_path / "deep")
    expected = {
        str(example.row["workload_id"]): extract_graph_arrays(example.workload)
        for example in read_examples(store, H200)
    }
    assert set(expected) == set(first) == set(again)
    assert len(expected) == len(WIDTHS) * len(SETTINGS)
    for workload_id, graph in expected.items():
        assert_same(first[workload_id], graph)
        assert_same(again[workload_id], graph)


def test_edges_forks_and_modes_survive(tmp_path: Path) -> None:
    graphs = {f"w{number}": graph for number, graph in enumerate(tiny_graphs())}
    np.savez(tmp_path / "g.npz", **graph_set.pack(graphs))
    with np.load(tmp_path / "g.npz") as arrays:
        loaded = graph_set.unpack(arrays)
    assert list(loaded) == list(graphs)
    for workload_id, graph in graphs.items():
        assert_same(loaded[workload_id], graph)


def test_what_workloads_share_is_stored_once() -> None:
    graph = tiny_graphs()[3]
    larger = replace(graph, output_shapes=graph.output_shapes * np.float32([2, 1, 1, 1, 1, 1]))
    many = {f"w{number}": larger if number % 2 else graph for number in range(100)}
    one, all_of_them = (len(graph_set.pack(graphs)["values"]) for graphs in ({"a": graph}, many))
    assert all_of_them < 2 * one


def test_what_was_not_captured_has_no_graph_here(samples: list[Sample], store: Path, tmp_path: Path) -> None:
    bench = [replace(sample, captured=number % 2 == 0) for number, sample in enumerate(samples)]
    graphs = read_graph_set(bench, store, "h200", tmp_path)
    assert set(graphs) == {sample.workload_id for sample in bench if sample.captured}


def test_a_workload_without_a_graph_is_an_error_and_nothing_is_written(
    samples: list[Sample], store: Path, tmp_path: Path
) -> None:
    lost = [*samples, replace(samples[0], workload_id="lost")]
    with pytest.raises(DataError, match="1 of 25 workloads have no graph"):
        read_graph_set(lost, store, "h200", tmp_path)
    assert not list(tmp_path.iterdir())


def test_a_graph_that_cannot_be_read_is_reported(
    samples: list[Sample], store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise DataError("no such batch")

    messages: list[str] = []
    monkeypatch.setattr(graph_set, "extract_graph_arrays", fail)
    with pytest.raises(DataError, match="24 of 24"):
        read_graph_set(samples, store, "h200", tmp_path, messages.append)
    assert messages == ["24 workloads have no graph: no such batch"]
