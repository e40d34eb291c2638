"""What is saved for backward, node by node."""

import pytest

from foretell.graph import Node
from foretell.graph.ir.layout import layouts
from foretell.graph.memory.allocator import rounded
from foretell.graph.memory.autograd import (
    differentiates,
    extra_saved_blocks,
    gradient_passes,
    needing_gradients,
    saved_for_backward,
)
from foretell.testing import chain, one_node

SHAPES = {"x": (4, 8), "w": (8, 8), "wb": (8,), "h": (4, 8), "g": (4, 8), "y": (4, 8)}
FIRST = Node("first", "MatMul", ("x", "w"), ("h",))


def saved(node: Node, first: Node = FIRST) -> tuple[str, ...]:
    graph = chain([first, Node("second", "Sigmoid", ("x",), ("g",)), node], SHAPES, ["x"], ["y"])
    return saved_for_backward(graph, graph.nodes[-1], needing_gradients(graph))


@pytest.mark.parametrize(
    ("op", "inputs", "kept"),
    [
        ("Relu", ("h",), ("y",)),
        ("Gelu", ("h",), ("h",)),
        ("Clip", ("h",), ("h",)),
        ("Sigmoid", ("h",), ("y",)),
        ("Softmax", ("h",), ("y",)),
        ("Add", ("h", "g"), ()),
        ("Mul", ("h",), ()),  # by a number
        ("Mul", ("h", "g"), ("g",)),  # `g` needs no gradient, so `h` is not needed
        ("Mul", ("h", "h"), ("h",)),
        ("Div", ("h", "g"), ("g",)),
        ("Div", ("g", "h"), ("g", "h")),
        ("MatMul", ("h", "w"), ("h",)),
        ("Gemm", ("x", "w", "wb"), ("x",)),
        ("LayerNormalization", ("h", "wb", "wb"), ("h",)),
        ("MaxPool", ("h",), ("h",)),
        ("Concat", ("h", "g"), ()),
        ("ReduceMean", ("h",), ()),
        ("Relu", ("g",), ()),  # nothing to differentiate
    ],
)
def test_saved_activations(op: str, inputs: tuple[str, ...], kept: tuple[str, ...]) -> None:
    assert saved(Node("n", op, inputs, ("y",))) == kept


def test_attention_saves_its_operands_and_its_result() -> None:
    node = Node("n", "Attention", ("h", "h", "g"), ("y",))
    assert saved(node) == ("h", "g", "y")


def test_gradients_flow_from_parameters_through_floats_only() -> None:
    nodes = [
        Node("a", "MatMul", ("x", "w"), ("h",)),
        Node("s", "Shape", ("h",), ("n",)),
        Node("b", "Relu", ("x",), ("g",)),
        Node("c", "Add", ("h", "g"), ("y",)),
    ]
    graph = chain(nodes, {**SHAPES, "n": (2,)}, ["x"], ["y"])
    needing = needing_gradients(graph)
    assert needing == {"w", "wb", "h", "y"}
    assert [differentiates(n, needing) for n in nodes] == [True, False, False, True]


def extra(op: str, size: tuple[int, ...], **attributes: int | tuple[int, ...]) -> int:
    node = Node("n", op, ("h",), ("y",), attributes)
    graph = chain([Node("a", "Mul", ("x", "w"), ("h",)), node], dict.fromkeys(["x", "w", "h", "y"], size), ["x"], ["y"])
    return sum(map(rounded, extra_saved_blocks(graph, graph.nodes[1], needing_gradients(graph))))


def test_what_is_kept_beside_tensors() -> None:
    shape = (4, 32, 8, 8)
    elements = 4 * 32 * 64
    assert extra("MaxPool", shape) == elements * 8  # int64 indices
    assert extra("DropoutMask", shape) == elements
    assert extra("BatchNormalization", shape) == 2 * 512  # mean and inverse deviation of 32 channels
    assert extra("LayerNormalization", shape, shape=(8,)) == 2 * 4 * 32 * 8 * 4
    assert extra("GroupNormalization", shape, num_groups=4) == 2 * 512
    assert extra("Attention", shape) == 4 * 32 * 8 * 4  # a log-sum-exp a row
    assert extra("Relu", shape) == extra("Add", shape) == 0


def test_an_unfused_attention_keeps_its_scores() -> None:
    shape = (2, 3, 5, 7, 16)  # five axes: no kernel for that

    def kept(dtype: str) -> int:
        names = ["q", "k", "v"]
        nodes = [Node(n, "Mul", ("x", "w"), (n,)) for n in names] + [Node("n", "Attention", ("q", "k", "v"), ("y",))]
        graph = chain(nodes, dict.fromkeys(["x", "w", *names, "y"], shape), ["x"], ["y"]).with_dtype(dtype)
        return sum(extra_saved_blocks(graph, graph.nodes[-1], needing_gradients(graph)))

    scores, operand = 2 * 3 * 5 * 7 * 7 * 4, 2 * 3 * 5 * 7 * 16 * 4
    assert kept("fp32") == scores
    assert kept("bf16") == scores + 3 * operand  # multiplied in fp32


def test_working_in_place_clones_an_input_that_backward_needs() -> None:
    shape = (4, 32, 8, 8)
    assert extra("Silu", shape, inplace=1) == 4 * 32 * 64 * 4
    assert (
        extra("Relu", shape, inplace=1) == extra("LeakyRelu", shape, inplace=1) == extra("Add", shape, inplace=1) == 0
    )
    assert saved(Node("n", "Silu", ("h",), ("y",), {"inplace": 1})) == ()
    assert saved(Node("n", "LeakyRelu", ("h",), ("y",), {"inplace": 1})) == ("y",)


@pytest.mark.parametrize(
    ("op", "attributes", "out", "passes"),
    [
        ("Add", {}, (4, 8), True),
        ("Add", {}, (3, 4, 8), False),
        ("Concat", {"axis": 0}, (8, 8), True),
        ("ReduceSum", {}, (4,), True),
        ("Reshape", {}, (32,), True),
        ("Transpose", {"perm": (1, 0)}, (8, 4), True),
        ("Slice", {"axes": (0,)}, (2, 8), False),
        ("Expand", {}, (3, 4, 8), False),
        ("Relu", {}, (4, 8), False),
        ("ReduceMean", {}, (4,), False),
    ],
)
def test_gradients_that_pass_through(
    op: str, attributes: dict[str, int | tuple[int, ...]], out: tuple[int, ...], passes: bool
) -> None:
    graph = one_node(op, [(4, 8)], [out], **attributes)
    assert gradient_passes(graph, graph.nodes[0], "in0", layouts(graph)) is passes
