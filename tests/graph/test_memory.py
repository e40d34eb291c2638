"""Peaks of small graphs whose liveness can be read off the page. Every tensor is one block of 512 bytes or more."""

import pytest

from foretell.graph import Node, Tensor, inference_peak
from foretell.graph.allocator import BLOCK_BYTES
from foretell.graph.layout import layouts
from foretell.graph.memory import deaths, state_bytes, working_blocks
from foretell.testing import chain, one_node

ONE = (128,)  # fp32: exactly one block


def blocks(graph: object) -> int:
    peak = inference_peak(graph)  # type: ignore[arg-type]
    assert peak.bytes % BLOCK_BYTES == 0
    return peak.bytes // BLOCK_BYTES


def test_a_chain_keeps_two_activations() -> None:
    nodes = [Node("a", "Relu", ("x",), ("a",)), Node("b", "Relu", ("a",), ("b",)), Node("c", "Relu", ("b",), ("c",))]
    graph = chain(nodes, dict.fromkeys(["x", "a", "b", "c"], ONE), ["x"], ["c"])
    assert blocks(graph) == 3  # the input, which the caller holds, and two neighbours


def test_a_skip_connection_stays_until_it_is_added() -> None:
    nodes = [
        Node("a", "Relu", ("x",), ("a",)),
        Node("b", "Relu", ("a",), ("b",)),
        Node("c", "Relu", ("b",), ("c",)),
        Node("d", "Add", ("c", "a"), ("d",)),
    ]
    graph = chain(nodes, dict.fromkeys(["x", "a", "b", "c", "d"], ONE), ["x"], ["d"])
    assert blocks(graph) == 4
    assert inference_peak(graph).node == "c"


def test_views_keep_their_storage_and_add_nothing() -> None:
    nodes = [
        Node("a", "Relu", ("x",), ("a",)),
        Node("v", "Reshape", ("a",), ("v",)),
        Node("b", "Relu", ("x",), ("b",)),
        Node("c", "Add", ("v", "b"), ("c",)),
    ]
    shapes = {"x": ONE, "a": ONE, "v": (2, 64), "b": ONE, "c": (2, 64)}
    assert blocks(chain(nodes, shapes, ["x"], ["c"])) == 4


def test_in_place_work_takes_no_memory() -> None:
    nodes = [Node("a", "Relu", ("x",), ("a",)), Node("b", "Relu", ("a",), ("b",), {"inplace": 1})]
    graph = chain(nodes, dict.fromkeys(["x", "a", "b"], ONE), ["x"], ["b"])
    assert blocks(graph) == 2


def test_a_module_holds_what_it_was_handed() -> None:
    def graph(module: str) -> object:
        nodes = [
            Node("a", "Relu", ("x",), ("a",)),
            Node("b", "Relu", ("a",), ("b",), module=module),
            Node("c", "Relu", ("b",), ("c",), module=module),
            Node("d", "Relu", ("c",), ("d",), module=module),
        ]
        return chain(nodes, dict.fromkeys(["x", "a", "b", "c", "d"], ONE), ["x"], ["d"])

    assert blocks(graph("")) == 3
    assert blocks(graph("block")) == 4  # the caller's frame holds `a` until the block returns


def test_what_is_concatenated_later_is_a_local_variable() -> None:
    def graph(module: str) -> object:
        nodes = [
            Node("a", "Relu", ("x",), ("a",), module=module and f"{module}.down"),
            Node("b", "Relu", ("a",), ("b",), module=module and f"{module}.deep"),
            Node("j", "Concat", ("b", "a"), ("j",), {"axis": 0}, module=module),
            Node("c", "Relu", ("j",), ("c",), module=module and f"{module}.up"),
        ]
        return chain(nodes, {"x": ONE, "a": ONE, "b": ONE, "j": (256,), "c": (256,)}, ["x"], ["c"])

    assert blocks(graph("")) == 5
    assert blocks(graph("net")) == 6


def test_dead_ends_and_absent_outputs() -> None:
    nodes = [Node("a", "TopK", ("x",), ("", "i")), Node("b", "Relu", ("x",), ("b",))]
    graph = chain(nodes, dict.fromkeys(["x", "i", "b"], ONE), ["x"], ["b"])
    assert blocks(graph) == 2  # `i` dies at once
    assert "i" in deaths(graph, layouts(graph))[0]


def test_state_is_there_before_and_after() -> None:
    graph = chain([Node("m", "MatMul", ("x", "w"), ("y",))], {"x": (1, 128), "w": (128, 1), "y": (1, 1)}, ["x"], ["y"])
    peak = inference_peak(graph)
    assert peak.state_bytes == state_bytes(graph) == 512
    assert peak.bytes == 3 * 512
    assert peak.activation_bytes == 1024
    body = one_node("Relu", [(128,)], [(128,)])
    control = one_node("Loop", [(128,)], [(128,)], bodies=(body,))
    assert inference_peak(control).bytes == 4 * 512


def test_an_empty_graph_holds_its_input() -> None:
    graph = chain([], {"x": ONE}, ["x"], ["x"])
    assert inference_peak(graph).bytes == 512


@pytest.mark.parametrize(
    ("perm", "copies"),
    [((0, 1, 2, 3), 0), ((0, 2, 1, 3), 1)],  # heads behind tokens: leading axes cannot be folded into one
)
def test_a_batched_product_copies_what_it_cannot_fold(perm: tuple[int, ...], copies: int) -> None:
    shape = (2, 4, 4, 16)
    nodes = [Node("t", "Transpose", ("x",), ("t",), {"perm": perm}), Node("m", "MatMul", ("t", "k"), ("y",))]
    graph = chain(nodes, {"x": shape, "t": shape, "k": (2, 4, 16, 4), "y": (2, 4, 4, 4)}, ["x", "k"], ["y"])
    assert sum(working_blocks(graph, graph.nodes[1], layouts(graph))) == copies * Tensor("", shape).bytes


def test_a_recurrence_transposes_and_keeps_what_lies_between_layers() -> None:
    graph = one_node("LSTM", [(2, 64, 4), (2, 2, 8), (2, 2, 8)], [(2, 64, 8)], batch_first=1, layers=2)
    assert working_blocks(graph, graph.nodes[0], layouts(graph)) == [2 * 64 * 4 * 4, 2 * 64 * 8 * 4]


def test_a_pool_finds_the_indices_of_its_maxima_too():
    plain = one_node("AveragePool", [(1, 64, 32, 32)], [(1, 64, 16, 16)], kernel_shape=(2, 2))
    maxima = one_node("MaxPool", [(1, 64, 32, 32)], [(1, 64, 16, 16)], kernel_shape=(2, 2))
    indices = 64 * 16 * 16 * 8
    assert inference_peak(maxima).bytes == inference_peak(plain).bytes + indices


def test_a_recurrence_of_one_layer_has_nothing_between_layers() -> None:
    graph = one_node("LSTM", [(64, 2, 4), (1, 2, 8), (1, 2, 8)], [(64, 2, 8)])
    assert working_blocks(graph, graph.nodes[0], layouts(graph)) == []
    first = one_node("LSTM", [(2, 64, 4), (1, 2, 8), (1, 2, 8)], [(2, 64, 8)], batch_first=1, layers=1)
    assert working_blocks(first, first.nodes[0], layouts(first)) == [2 * 64 * 4 * 4]


@pytest.mark.parametrize(
    ("op", "perm", "copies"),
    [
        ("MatMul", (1, 0, 2), 0),  # one leading axis: there is nothing to fold
        ("Gemm", (1, 0, 2), 1),  # a linear layer folds the rows too
        ("Gemm", (0, 1, 2), 0),
    ],
)
def test_of_rank_three_only_a_linear_layer_copies(op: str, perm: tuple[int, ...], copies: int) -> None:
    turned = {(0, 1, 2): (3, 5, 8), (1, 0, 2): (5, 3, 8)}[perm]
    nodes = [Node("t", "Transpose", ("x",), ("t",), {"perm": perm}), Node("m", op, ("t", "w"), ("y",))]
    weight = (8, 4) if op == "Gemm" else (5, 8, 4)
    graph = chain(nodes, {"x": (3, 5, 8), "t": turned, "w": weight, "y": (*turned[:2], 4)}, ["x"], ["y"])
    assert sum(working_blocks(graph, graph.nodes[1], layouts(graph))) == copies * Tensor("", turned).bytes


def test_the_outermost_module_that_was_handed_a_tensor_holds_it() -> None:
    nodes = [
        Node("a", "Relu", ("x",), ("a",)),
        Node("b", "Relu", ("a",), ("b",), module="outer.inner"),
        Node("c", "Relu", ("b",), ("c",), module="outer.inner"),
        Node("d", "Relu", ("c",), ("d",), module="outer"),
        Node("e", "Relu", ("d",), ("e",), module="outer"),
        Node("f", "Relu", ("e",), ("f",)),
    ]
    graph = chain(nodes, dict.fromkeys(["x", *"abcdef"], ONE), ["x"], ["f"])
    ends = {name: position for position, names in deaths(graph, layouts(graph)).items() for name in names}
    assert ends["a"] == 4  # `outer` was handed it, and returns after `e`
    assert ends["b"] == 2  # made and read within one module: dead after its reader
    assert ends["c"] == 3
    assert ends["x"] == ends["f"] == len(nodes)
