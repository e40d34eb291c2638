import io
import zipfile

import numpy as np
import pytest

from foretell.errors import ModelError
from foretell.graph import Node
from foretell.predictors.boosting import TreeFit
from foretell.predictors.fusion.edges import EDGE_COLUMNS, Edges, extract_edges
from foretell.predictors.fusion.partitioner import Partitioner, fit_edges, is_fused, unite, write
from foretell.testing import chain, tiny_graph

SMALL = TreeFit(rounds=20, leaves=4, least_in_leaf=1)


@pytest.fixture(scope="module")
def fitted():
    pytest.importorskip("lightgbm")
    rows = np.concatenate([extract_edges(tiny_graph(), "onnxruntime").features] * 30)
    fused = rows[:, EDGE_COLUMNS.index("source_kind")] == rows[0, EDGE_COLUMNS.index("source_kind")]
    booster = fit_edges(rows, fused, SMALL)
    return booster, rows, fused


def test_trees_learn_edges_and_are_served_as_they_were_fitted(fitted):
    booster, rows, fused = fitted
    assert (is_fused(booster, rows) == fused).all()
    served = Partitioner.load(write({"onnxruntime": booster}, {"graphs": {"onnxruntime": 30}}))
    assert served.card["graphs"] == {"onnxruntime": 30}
    partition = served.partition(tiny_graph(), "onnxruntime")
    assert partition.fused.tolist() == fused[: len(partition.fused)].tolist()
    assert len(partition.kernels) == len(tiny_graph().nodes) - int(partition.fused.sum())


@pytest.mark.parametrize(("op", "is_one"), [("Gelu", True), ("LayerNormalization", True), ("Attention", False)])
def test_onnx_runtime_puts_together_what_a_file_spells_out(fitted, op, is_one):
    _, rows, fused = fitted
    never = Partitioner.load(write({"onnxruntime": fit_edges(rows, np.zeros_like(fused), SMALL)}, {}))
    nodes = [
        Node("div", "Div", ("x", "x"), ("a",), origin="erf", origin_op=op),
        Node("erf", "Erf", ("a",), ("b",), origin="erf", origin_op=op),
        Node("add", "Add", ("b", "x"), ("y",)),
    ]
    graph = chain(nodes, dict.fromkeys("xaby", (4, 4)), ["x"], ["y"])
    kernels = never.partition(graph, "onnxruntime").kernels
    assert kernels == ([(0, 1), (2,)] if is_one else [(0,), (1,), (2,)])


def test_equal_trees_give_equal_files(fitted):
    assert write({"inductor": fitted[0]}, {}) == write({"inductor": fitted[0]}, {})


def test_a_runtime_has_trees_of_its_own_and_one_without_is_refused(fitted):
    booster, rows, fused = fitted
    other = fit_edges(rows, ~fused, SMALL)
    served = Partitioner.load(write({"onnxruntime": booster, "inductor": other}, {}))
    graph = tiny_graph()
    assert (served.partition(graph, "inductor").fused != served.partition(graph, "onnxruntime").fused).all()
    with pytest.raises(ModelError, match="was not fitted to inductor, only to onnxruntime"):
        Partitioner.load(write({"onnxruntime": booster}, {})).partition(graph, "inductor")


def test_nodes_are_united_by_fused_edges_alone():
    edges = Edges(np.array([0, 1, 3, 2]), np.array([1, 2, 4, 5]), np.zeros((4, 1), np.float32))
    assert unite(6, edges, np.array([True, False, True, True])) == (0, 0, 2, 3, 3, 2)
    assert unite(3, edges, np.zeros(4, bool)) == (0, 1, 2)


def test_eager_runs_as_one_what_came_from_one_call(fitted):
    served = Partitioner.load(write({"inductor": fitted[0]}, {}))
    nodes = [
        Node("mm", "MatMul", ("x", "x"), ("a",), origin="linear", origin_op="aten.linear"),
        Node("add", "Add", ("a", "x"), ("b",), origin="linear", origin_op="aten.linear"),
        Node("relu", "Relu", ("b",), ("y",)),
    ]
    shapes = dict.fromkeys("xaby", (4, 4))
    assert served.partition(chain(nodes, shapes, ["x"], ["y"]), "eager").groups == (0, 0, 2)


def test_a_file_of_something_else_is_refused(fitted):
    with pytest.raises(ModelError, match="not a fitted partitioner"):
        Partitioner.load(b"PK nothing")
    data = io.BytesIO()
    with zipfile.ZipFile(data, "w") as archive:
        archive.writestr("card.json", '{"schema": "older"}')
        archive.writestr("edges-inductor.onnx", b"")
    with pytest.raises(ModelError, match="other features"):
        Partitioner.load(data.getvalue())


def test_the_shipped_one_fuses_a_convolution_with_its_activation():
    partition = Partitioner.shipped().partition(tiny_graph(channels=64), "onnxruntime")
    assert partition.groups[0] == partition.groups[1]
    assert len(partition.kernels) < len(partition.groups)


def test_a_package_without_it_says_what_to_do(tmp_path, monkeypatch):
    monkeypatch.setattr("foretell.predictors.fitted_files.TRAINED", tmp_path)
    with pytest.raises(ModelError, match=r"lacks partitioner\.zip: install foretell again"):
        Partitioner.shipped()
