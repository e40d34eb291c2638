"""Nodes share a record where every rule gives the same answer, and only there."""

import pickle
from dataclasses import replace

import pytest

from foretell.graph import Graph, Node, Tensor, graph_costs
from foretell.graph import signatures as module
from foretell.graph.ir.layout import in_channels_last, layouts
from foretell.graph.ir.passes import in_tf32
from foretell.graph.ir.tensor import TensorClasses
from foretell.graph.signatures import ABSENT, Memo, current_memo
from foretell.testing import chain, one_node, tiny_graph


@pytest.fixture(autouse=True)
def own_memo(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_memo", Memo())


def record_of(graph: Graph, position: int = 0) -> object:
    return layouts(graph).records[position]


def test_equal_nodes_share_a_record_within_a_graph_and_across_graphs() -> None:
    nodes = [Node(f"n{i}", "Relu", (f"t{i}",), (f"t{i + 1}",)) for i in range(3)]
    graph = chain(nodes, {f"t{i}": (4, 8) for i in range(4)}, ["t0"], ["t3"])
    assert record_of(graph, 1) is record_of(graph, 2)
    assert record_of(graph, 0) is not record_of(graph, 1), "an input is no activation"
    other = chain([replace(nodes[1], name="other", module="elsewhere")], {"t1": (4, 8), "t2": (4, 8)}, ["t1"], ["t2"])
    assert record_of(other) is record_of(graph, 0)
    assert record_of(tiny_graph(2)) is record_of(tiny_graph(2))
    assert record_of(tiny_graph(2)) is not record_of(tiny_graph(3))


@pytest.mark.parametrize(
    "other",
    [
        one_node("Concat", [(2, 4), (2, 4)], [(4, 4)], axis=0),
        one_node("Concat", [(2, 4), (2, 4)], [(2, 8)], axis=1.0),
        one_node("Concat", [(2, 4), (2, 4)], [(2, 8)], axis=True),
        one_node("Concat", [(2, 4), (2, 4)], [(2, 8)], axis=1, dtype="fp16"),
        one_node("Concat", [(2, 4), (2, 4)], [(2, 8)], axis=1, weights=[1]),
        one_node("Concat", [(2, 4), None, (2, 4)], [(2, 8)], axis=1),
        one_node("Concat", [(2, 4), (2, 4)], [(2, 8)], axis=1, domain="org.example"),
        one_node("Stack", [(2, 4), (2, 4)], [(2, 8)], axis=1),
    ],
)
def test_whatever_a_rule_may_read_sets_nodes_apart(other: Graph) -> None:
    graph = one_node("Concat", [(2, 4), (2, 4)], [(2, 8)], axis=1)
    assert record_of(graph) is record_of(one_node("Concat", [(2, 4), (2, 4)], [(2, 8)], axis=1))
    assert record_of(graph) is not record_of(other)


def test_an_operand_that_occurs_twice_is_read_once() -> None:
    shapes = {"a": (64,), "b": (64,), "y": (64,)}
    apart, twice = (
        chain([Node("n", "Add", names, ("y",))], shapes, ["a", "b"], ["y"]) for names in (("a", "b"), ("a", "a"))
    )
    assert [graph_costs(graph).total.bytes_read for graph in (apart, twice, apart)] == [512, 256, 512]


def test_strides_set_nodes_apart() -> None:
    nodes = [Node("t", "Transpose", ("x",), ("t",), {"perm": (1, 0)}), Node("r", "Reshape", ("t",), ("y",))]
    plain = chain([Node("r", "Reshape", ("x",), ("y",))], {"x": (4, 4), "y": (16,)}, ["x"], ["y"])
    turned = chain(nodes, {"x": (4, 4), "t": (4, 4), "y": (16,)}, ["x"], ["y"])
    assert graph_costs(plain).total.bytes == 0
    assert graph_costs(turned).total.bytes == 128, "no view of a transposed tensor: a copy"


def test_what_a_graph_sets_for_all_its_nodes_sets_them_apart() -> None:
    graph = tiny_graph()
    variants = [graph, in_channels_last(graph), in_tf32(graph), in_tf32(in_channels_last(graph))]
    assert len({id(record_of(variant, 4)) for variant in variants}) == 4


def test_numbers_of_nodes_with_different_settings_never_meet() -> None:
    names = [f"t{i}" for i in range(40)]
    nodes = [Node(f"n{i}", f"Op{i}", (names[i],), (names[i + 1],)) for i in range(39)]
    graph = chain(nodes, dict.fromkeys(names, (4,)), names[:1], names[-1:])
    numbers = [number for flags in range(4) for number in current_memo().nodes_of(graph, flags)]
    assert len(set(numbers)) == 4 * 39


def test_nodes_with_bodies_are_never_shared() -> None:
    body = tiny_graph()
    graph = one_node("Loop", [(1,)], [(1,)], bodies=(body,), trips=2)
    assert record_of(graph) is not record_of(one_node("Loop", [(1,)], [(1,)], bodies=(body,), trips=2))


def test_a_full_memo_is_replaced_and_old_graphs_keep_theirs(monkeypatch: pytest.MonkeyPatch) -> None:
    graph = tiny_graph()
    first = layouts(graph).memo
    assert layouts(tiny_graph(3)).memo is first
    monkeypatch.setattr(module, "MAX_RECORDS", 4)
    later = tiny_graph(4)
    assert layouts(later).memo is not first
    assert layouts(graph).memo is first
    # numbers of the old memo mean nothing to the new one: a graph at another batch size is numbered again
    assert graph_costs(graph.with_batch(4)).nodes == graph_costs(later).nodes
    assert current_memo() is not first


def test_a_graph_at_another_batch_size_keeps_what_it_knows_of_its_structure() -> None:
    graph = tiny_graph()
    assert graph.with_batch(5).structure is graph.structure
    assert graph.with_dtype("fp16").consumers is graph.consumers
    assert graph.with_batch(5).with_dtype("fp16").structure is graph.structure
    assert replace(graph, nodes=graph.nodes[:1]).structure is not graph.structure


def test_a_graph_can_be_pickled_whatever_was_computed_from_it() -> None:
    graph = tiny_graph()
    graph_costs(graph)
    again = pickle.loads(pickle.dumps(graph))
    assert again == graph
    assert graph_costs(again).total == graph_costs(graph).total


def test_types_have_their_size() -> None:
    memo = Memo()
    tensors = (Tensor("a", (2, 3)), Tensor("b", (2, 3)), Tensor("c", (3,), "fp16"), Tensor("d", (2, 3), batch_axis=0))
    classes = TensorClasses.of({tensor.name: tensor for tensor in tensors})
    assert list(classes.numbers.values()) == [0, 0, 1, 2]
    ab, c, d = memo.types_of(classes)
    assert ab == d != c
    assert (memo.bytes[ab], memo.bytes[c], memo.bytes[ABSENT]) == (24, 6, 0)
