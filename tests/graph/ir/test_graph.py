"""A graph is sorted, validated, hashable by what it computes, and can be had at another batch size or dtype."""

from dataclasses import replace

import pytest

from foretell.errors import GraphError, InputError
from foretell.graph import Graph, Node, Tensor
from foretell.graph.ir.graph import sort_nodes
from foretell.testing import chain, one_node, tiny_graph

X, Y, Z = Tensor("x", (4,), kind="input"), Tensor("y", (4,)), Tensor("z", (4,))
FIRST, SECOND = Node("first", "Relu", ("x",), ("y",)), Node("second", "Relu", ("y",), ("z",))


def build(nodes: list[Node], *tensors: Tensor, outputs: tuple[str, ...] = ("z",)) -> Graph:
    return Graph.build("g", nodes, {t.name: t for t in tensors}, ["x"], outputs)


def test_nodes_are_sorted_and_stay_when_sorted() -> None:
    assert build([SECOND, FIRST], X, Y, Z).nodes == (FIRST, SECOND)
    assert sort_nodes((FIRST, SECOND)) == (FIRST, SECOND)


@pytest.mark.parametrize(
    ("nodes", "tensors", "says"),
    [
        ([FIRST, replace(SECOND, inputs=("z",))], (X, Y, Z), "cycle"),
        ([replace(FIRST, inputs=("z",)), SECOND], (X, Y, Z), "cycle"),
        ([FIRST, SECOND], (X, Z), "shape is unknown"),
        ([FIRST, SECOND], (X, Y), "shape is unknown"),
        ([SECOND], (X, Y, Z), "no earlier node makes"),
        ([FIRST], (X, Y, Z), "nothing makes it"),
        ([FIRST, SECOND, replace(SECOND, name="third")], (X, Y, Z), "made twice"),
        ([FIRST, SECOND], (X, replace(Y, shape=(-1,)), Z), "impossible shape"),
        ([FIRST, SECOND], (X, replace(Y, dtype="odd"), Z), "unknown dtype"),
    ],
)
def test_impossible_graphs_are_refused(nodes: list[Node], tensors: tuple[Tensor, ...], says: str) -> None:
    with pytest.raises(GraphError, match=says):
        build(nodes, *tensors)


def test_misfiled_tensors_and_empty_batches_are_refused() -> None:
    with pytest.raises(GraphError, match="stored under"):
        Graph.build("g", [], {"a": X}, [], [])
    with pytest.raises(GraphError, match="batch size is 0"):
        Graph.build("g", [], {"x": X}, ["x"], ["x"], batch_size=0)


def test_producers_and_consumers() -> None:
    graph = build([FIRST, SECOND], X, Y, Z)
    assert graph.consumers == {"x": (0,), "y": (1,)}
    assert graph.producers == {"y": 0, "z": 1}
    assert graph.operator_counts == {"Relu": 2}


def test_parameters_count_bodies_and_shared_weights_once() -> None:
    body = one_node("MatMul", [(2, 4), (4, 4)], [(2, 4)], weights=[1])
    assert one_node("Loop", [(2, 4)], [(2, 4)], bodies=(body,)).parameter_count == 16
    assert tiny_graph(channels=8).parameter_count == 248


def test_batches() -> None:
    graph = tiny_graph(batch_size=2)
    four = graph.with_batch(4)
    assert four.tensors["conv"].shape == (4, 8, 14, 14)
    assert four.tensors["fc.weight"] == graph.tensors["fc.weight"]
    assert four.batch_size == 4
    assert graph.with_batch(2) is graph
    assert graph.tensors["conv"].shape == (2, 8, 14, 14), "nothing is changed in place"
    with pytest.raises(InputError, match="must be 1 or more"):
        graph.with_batch(0)
    odd = replace(graph, tensors={**graph.tensors, "y": Tensor("y", (3, 4), batch_axis=0)})
    with pytest.raises(InputError, match="does not divide"):
        odd.with_batch(4)


def test_dtypes() -> None:
    graph = tiny_graph()
    half = graph.with_dtype("fp16")
    assert {t.dtype for t in half.tensors.values()} == {"fp16"}
    assert half.dtype == "fp16"
    assert half.with_dtype("fp16") is half
    with pytest.raises(InputError, match="Unknown dtype 'int8'"):
        graph.with_dtype("int8")
    assert one_node("Relu", [(4,)], [(4,)], dtype="bf16").dtype == "bf16"
    assert one_node("Add", [(4,)], [(4,)], dtype="int64").dtype == "fp32"


def test_an_absent_output_does_not_leak_into_absent_inputs() -> None:
    """Two branches in either order: an absent output of one must not colour an absent input of the other."""
    one = Node("one", "TopK", ("x",), ("y", ""))
    two = Node("two", "Clip", ("x", "", ""), ("z",))
    shapes = {"x": (4,), "y": (4,), "z": (4,)}
    assert chain([one, two], shapes, ["x"], ["y", "z"]).hash == chain([two, one], shapes, ["x"], ["y", "z"]).hash
