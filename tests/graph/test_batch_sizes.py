"""Records at a new batch size, computed from three others, are those that the rules give."""

import random

import pytest

from foretell.graph import Graph, Node, Tensor, graph_costs, signatures
from foretell.graph.batch_sizes import KNOWN, family_of
from foretell.graph.ir.layout import in_channels_last, layouts
from foretell.graph.memory.liveness import inference_tape
from foretell.testing import tiny_graph


def activation(name, *shape, kind="activation", axis=0):
    return Tensor(name, shape, "fp32", kind, axis)


def weight(name, *shape):
    return Tensor(name, shape, "fp32", "parameter")


def network():
    """A convolution, norm, activation, a sum with a parameter, a pool, a transposed product and a linear layer."""
    tensors = [
        activation("x", 1, 3, 8, 8, kind="input"), weight("w", 16, 3, 3, 3), activation("a", 1, 16, 8, 8),
        *(weight(name, 16) for name in ("scale", "bias", "mean", "variance")),
        activation("b", 1, 16, 8, 8), activation("c", 1, 16, 8, 8), weight("p", 64, 16, 8, 8),
        activation("d", 1, 16, 8, 8), activation("e", 1, 16, 4, 4), activation("f", 1, 256),
        weight("v", 256, 10), activation("g", 1, 10),
        activation("h", 10, 1, axis=1), activation("i", 10, 1, axis=1),
    ]  # fmt: skip
    nodes = [
        Node("a", "Conv", ("x", "w"), ("a",), {"kernel_shape": (3, 3), "pads": (1, 1, 1, 1)}),
        Node("b", "BatchNormalization", ("a", "scale", "bias", "mean", "variance"), ("b",)),
        Node("c", "Relu", ("b",), ("c",)),
        Node("d", "Add", ("c", "p"), ("d",)),
        Node("e", "MaxPool", ("d",), ("e",), {"kernel_shape": (2, 2), "strides": (2, 2)}),
        Node("f", "Reshape", ("e",), ("f",)),
        Node("g", "MatMul", ("f", "v"), ("g",)),
        Node("h", "Transpose", ("g",), ("h",), {"perm": (1, 0)}),
        Node("i", "Relu", ("h",), ("i",)),
    ]
    return Graph("network", tuple(nodes), {tensor.name: tensor for tensor in tensors}, ("x",), ("i",), 1)


def facts(graph):
    laid_out = layouts(graph)
    strides = [laid_out.memo.strides[operand] for operand in laid_out.operands]
    return strides, laid_out.storages, graph_costs(graph).nodes, inference_tape(graph, cuda=True).events


@pytest.fixture(autouse=True)
def _fresh_memo(monkeypatch):
    monkeypatch.setattr(signatures, "_memo", signatures.Memo())


@pytest.mark.parametrize("make", [network, tiny_graph, lambda: in_channels_last(network())])
@pytest.mark.parametrize("dtype", ["fp32", "fp16"])
def test_they_are_what_the_rules_give(make, dtype, monkeypatch):
    graph, rng = make(), random.Random(3)
    for size in rng.sample(range(2, 20), KNOWN):
        facts(graph.at(size, dtype))
    for size in (1, 20, 33, 64, 100):
        sized = graph.at(size, dtype)
        found = facts(sized)
        if size > 1:
            assert layouts(sized).sized.made, "at least one record is computed"
        with monkeypatch.context() as alone:
            alone.setattr(signatures, "_memo", signatures.Memo())
            assert found == facts(make().at(size, dtype))


def test_rules_are_asked_where_they_could_answer_otherwise():
    graph = network()
    for size in (2, 3, 4):
        facts(graph.with_batch(size))
    assert layouts(graph.with_batch(1)).sized is None, "an axis of size 1 has no order"
    assert layouts(graph.with_batch(3)).sized is None, "it is known"

    def computed(size):
        laid_out = layouts(graph.with_batch(size))
        return {graph.nodes[laid_out.sized.family.positions[number]].op for number in laid_out.sized.made}

    usual = {"Conv", "BatchNormalization", "Relu", "Add", "MaxPool", "MatMul"}
    assert computed(10) == usual, "not the view, and not what has its batch elsewhere"
    assert computed(64) == usual - {"Add"}, "the parameter is as large as the result"


def test_dtypes_and_memory_formats_are_families_of_their_own():
    graph = network()
    memo = signatures.current_memo()
    half = graph.at(2, "fp16")
    assert family_of(graph.with_batch(2), memo, 0) is family_of(graph.with_batch(3), memo, 0)
    assert family_of(graph.with_batch(2), memo, 0) is not family_of(half, memo, 0)
    assert family_of(graph.with_batch(2), memo, 0) is not family_of(graph.with_batch(2), memo, 1)


def test_nodes_that_were_equal_may_differ_at_another_batch_size(monkeypatch):
    """Images lie channels-last, constants row-major: a sum with a constant of its own size takes over its order."""

    def make():
        images = [activation(name, 1, 8, 4, 4) for name in ("a", "b", "c", "d")]
        constants = [Tensor(f"k{size}", (size, 8, 4, 4), "fp32", "constant") for size in (40, 50)]
        nodes = [
            Node("a", "Add", ("k40", "x"), ("a",)),
            Node("b", "Add", ("k50", "x"), ("b",)),
            Node("c", "Relu", ("a",), ("c",)),
            Node("d", "Relu", ("b",), ("d",)),
        ]
        tensors = [activation("x", 1, 8, 4, 4, kind="input"), *images, *constants]
        names = {tensor.name: tensor for tensor in tensors}
        return in_channels_last(Graph("sums", tuple(nodes), names, ("x",), ("c", "d"), 1))

    graph = make()
    for size in (2, 3, 4):
        facts(graph.with_batch(size))
    for size in (30, 40, 50):
        found = layouts(graph.with_batch(size))
        lie_alike = found["c"].strides == found["d"].strides
        assert lie_alike == (size == 30)
        assert (found.records[2] is found.records[3]) == lie_alike
        facts_here = facts(graph.with_batch(size))
        with monkeypatch.context() as alone:
            alone.setattr(signatures, "_memo", signatures.Memo())
            assert facts_here == facts(make().with_batch(size))
