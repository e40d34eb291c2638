"""What is saved for backward, node by node."""

from dataclasses import replace

import pytest

from foretell.graph import Graph, Node, Tensor
from foretell.graph.ir.layout import layouts
from foretell.graph.memory.allocator import rounded
from foretell.graph.memory.autograd import (
    differentiates,
    extra_saved_blocks,
    gradient_passes,
    loss_output,
    needing_gradients,
    overwritten,
    reached_by_loss,
    saved_for_backward,
)
from foretell.testing import chain, one_node

SHAPES = {"x": (4, 8), "w": (8, 8), "wb": (8,), "h": (4, 8), "g": (4, 8), "y": (4, 8)}
FIRST = Node("first", "MatMul", ("x", "w"), ("h",))


def saved(node: Node, first: Node = FIRST) -> tuple[str, ...]:
    graph = chain([first, Node("second", "Sigmoid", ("x",), ("g",)), node], SHAPES, ["x"], ["y"])
    return saved_for_backward(graph, graph.nodes[-1], needing_gradients(graph))


@pytest.mark.parametrize(
    ("op", "inputs", "expected"),
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
def test_saved_activations(op: str, inputs: tuple[str, ...], expected: tuple[str, ...]) -> None:
    assert saved(Node("n", op, inputs, ("y",))) == expected


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


def test_blocks_that_autograd_keeps_besides_tensors() -> None:
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

    def saved_bytes(dtype: str) -> int:
        names = ["q", "k", "v"]
        nodes = [Node(n, "Mul", ("x", "w"), (n,)) for n in names] + [Node("n", "Attention", ("q", "k", "v"), ("y",))]
        graph = chain(nodes, dict.fromkeys(["x", "w", *names, "y"], shape), ["x"], ["y"]).with_dtype(dtype)
        return sum(extra_saved_blocks(graph, graph.nodes[-1], needing_gradients(graph)))

    scores, operand = 2 * 3 * 5 * 7 * 7 * 4, 2 * 3 * 5 * 7 * 16 * 4
    assert saved_bytes("fp32") == scores
    assert saved_bytes("bf16") == scores + 3 * operand  # multiplied in fp32


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


@pytest.mark.parametrize(
    ("op", "inputs", "expected"),
    [
        ("MatMul", ("h", "g"), ("g",)),  # the other one needs no gradient
        ("MatMul", ("g", "h"), ("g",)),
        ("Einsum", ("h", "g"), ("g",)),
        ("Einsum", ("h", "g", "h"), ("h", "g")),  # three: nothing is left out
        ("Gather", ("h", "g"), ("g",)),
        ("GatherElements", ("h", "g"), ("h", "g")),
        ("ScatterElements", ("h", "g", "h"), ("g",)),
        ("DFT", ("h",), ("h",)),
        ("Pad", ("h",), ()),
        ("Bilinear", ("h", "g", "w"), ("h", "g")),
        ("MoE", ("h", "w"), ("h",)),
        ("Addcmul", ("h", "g", "g"), ("g",)),
        ("Lerp", ("g", "g", "h"), ("g",)),
        ("Div", ("h",), ()),  # by a number
        ("Where", ("h", "h", "g"), ()),  # what it chooses by is no boolean here: nothing is kept
        ("LSTM", ("h", "g"), ("h", "g", "y")),
        ("Attention", ("h", "h", "h", "g"), ("h", "y")),  # whether it keeps its mask is decided elsewhere
        ("RMSNormalization", ("h", "wb"), ("h",)),
        ("LogSoftmax", ("h",), ("y",)),
        ("Max", ("h", "g"), ("h", "g")),
    ],
)
def test_more_saved_activations(op: str, inputs: tuple[str, ...], expected: tuple[str, ...]) -> None:
    assert saved(Node("n", op, inputs, ("y",))) == expected


@pytest.mark.parametrize(
    ("op", "expected", "cloned"),
    [
        ("Clip", ("y",), 0), ("Elu", ("y",), 0), ("Tanh", ("y",), 0), ("Exp", ("y",), 0), ("Sqrt", ("y",), 0),
        ("Selu", ("y",), 0), ("Celu", ("y",), 0), ("ThresholdedRelu", ("y",), 0), ("Sigmoid", ("y",), 0),
        ("Rsqrt", ("y",), 0), ("Gelu", (), 1), ("HardSwish", (), 1), ("Mish", (), 1), ("Add", (), 0),
    ],
)  # fmt: skip
def test_in_place_operators_keep_their_result_or_a_clone(op: str, expected: tuple[str, ...], cloned: int) -> None:
    shape = (4, 32, 8, 8)
    assert saved(Node("n", op, ("h",), ("y",), {"inplace": 1})) == expected
    assert extra(op, shape, inplace=1) == cloned * 4 * 32 * 64 * 4
    assert extra(op, shape) == 0


@pytest.mark.parametrize(("op", "expected"), [("Mul", ("g",)), ("Div", ("g",))])
def test_products_in_place_clone_nothing(op: str, expected: tuple[str, ...]) -> None:
    node = Node("n", op, ("h", "g"), ("y",), {"inplace": 1})
    assert saved(node) == expected
    graph = chain([FIRST, Node("second", "Sigmoid", ("x",), ("g",)), node], SHAPES, ["x"], ["y"])
    assert extra_saved_blocks(graph, node, needing_gradients(graph)) == []


def test_where_saves_its_condition() -> None:
    tensors = [
        Tensor("x", (4,), kind="input"), Tensor("w", (4,), kind="parameter"), Tensor("h", (4,)),
        Tensor("mask", (4,), "bool"), Tensor("y", (4,)),
    ]  # fmt: skip
    nodes = [
        Node("a", "Mul", ("x", "w"), ("h",)),
        Node("m", "Greater", ("x", "w"), ("mask",)),
        Node("c", "Where", ("mask", "h", "x"), ("y",)),
    ]
    graph = Graph.build("g", nodes, {t.name: t for t in tensors}, ["x"], ["y"])
    needing = needing_gradients(graph)
    assert needing == {"w", "h", "y"}, "no gradient flows to what is no number"
    assert saved_for_backward(graph, nodes[2], needing) == ("mask",)
    assert not differentiates(nodes[1], needing)


def test_integers_have_no_gradients() -> None:
    tensors = [Tensor("x", (4,), kind="input"), Tensor("w", (4,), "int64", "parameter"), Tensor("y", (4,))]
    node = Node("a", "Mul", ("x", "w"), ("y",))
    assert needing_gradients(Graph.build("g", [node], {t.name: t for t in tensors}, ["x"], ["y"])) == set()


@pytest.mark.parametrize(
    ("op", "shape", "attributes", "count"),
    [
        ("BatchNormalization", (4, 32, 8, 8), {}, 32),
        ("BatchNormalization", (4, 32), {}, 32),
        ("BatchNormalization", (4,), {}, 1),
        ("InstanceNormalization", (4, 32, 8, 8), {}, 4 * 32),
        ("GroupNormalization", (4, 32, 8, 8), {"num_groups": 8}, 4 * 8),
        ("GroupNormalization", (4, 32, 8, 8), {}, 4 * 32),
        ("LayerNormalization", (4, 32, 8, 8), {}, 4 * 32 * 8),
        ("LayerNormalization", (4, 32, 8, 8), {"shape": (8, 8)}, 4 * 32),
        ("RMSNormalization", (4, 32), {"shape": (32,)}, 4),
    ],
)
def test_a_normalisation_keeps_two_numbers_for_every_mean(
    op: str, shape: tuple[int, ...], attributes: dict[str, int | tuple[int, ...]], count: int
) -> None:
    node = Node("n", op, ("h",), ("y",), attributes)
    graph = chain(
        [Node("a", "Mul", ("x", "w"), ("h",)), node], dict.fromkeys(["x", "w", "h", "y"], shape), ["x"], ["y"]
    )
    assert extra_saved_blocks(graph, node, needing_gradients(graph)) == [count * 4] * 2
    assert extra_saved_blocks(graph, node, frozenset()) == []


@pytest.mark.parametrize(("op", "numbers"), [("LSTMCell", 4), ("GRUCell", 5)])
def test_the_gates_of_a_cell_keep_a_workspace(op: str, numbers: int) -> None:
    graph = one_node(op, [(2, 12), (2, 12), (2, 3), (12,)], [(2, 3)], weights=[3])
    assert extra_saved_blocks(graph, graph.nodes[0], needing_gradients(graph)) == [numbers * 2 * 3 * 4]


def test_a_plain_cell_keeps_no_workspace() -> None:
    graph = one_node("RNNCell", [(2, 5), (2, 3), (3, 5), (3, 3)], [(2, 3)], weights=[2, 3])
    assert extra_saved_blocks(graph, graph.nodes[0], needing_gradients(graph)) == [0]


def test_attributes_say_what_else_is_kept() -> None:
    assert saved(Node("n", "Pad", ("h",), ("y",), {"mode": "reflect"})) == ("h",)
    assert saved(Node("n", "Pad", ("h",), ("y",), {"mode": "circular"})) == ()
    assert saved(Node("n", "ScatterElements", ("h", "g", "h"), ("y",), {"rows": 1})) == ("g", "h")


def test_the_loss_reaches_only_what_its_output_depends_on() -> None:
    nodes = [
        Node("a", "Mul", ("x", "w"), ("h",)),
        Node("b", "Mul", ("h", "wb"), ("g",)),  # a second output: no loss is taken on it
        Node("d", "Identity", ("h",), ("k",), {"detached": 1}),
        Node("c", "Add", ("h", "k"), ("y",)),
    ]
    graph = chain(nodes, dict.fromkeys(["x", "w", "wb", "h", "g", "k", "y"], (4,)), ["x"], ["y", "g"])
    needing = needing_gradients(graph)
    assert "k" not in needing
    assert loss_output(graph, needing) == "y"
    assert reached_by_loss(graph, needing) == {"y", "h", "w"}


def test_gradients_flow_through_complex_numbers() -> None:
    nodes = [Node("a", "Mul", ("x", "w"), ("h",)), Node("b", "DFT", ("h",), ("z",)), Node("c", "DFT", ("z",), ("y",))]
    graph = chain(nodes, dict.fromkeys(["x", "w", "h", "z", "y"], (4,)), ["x"], ["y"])
    graph = replace(graph, tensors={**graph.tensors, "z": replace(graph.tensors["z"], dtype="complex64")})
    assert {"z", "y"} <= needing_gradients(graph)


def test_a_write_into_a_part_makes_the_whole_need_a_gradient() -> None:
    nodes = [
        Node("z", "ConstantOfShape", (), ("base",)),
        Node("a", "Mul", ("x", "w"), ("h",)),
        Node("s", "Slice", ("base",), ("part",), {"axes": (0,), "steps": (1,)}),
        Node("c", "CopyTo", ("part", "h"), ("filled",), {"inplace": 1}),
        Node("r", "Relu", ("base",), ("y",)),
    ]
    shapes = dict.fromkeys(["x", "w", "h", "part", "filled"], (4,)) | {"base": (8,), "y": (8,)}
    graph = chain(nodes, shapes, ["x"], ["y"])
    needing = needing_gradients(graph)
    assert overwritten(graph, nodes[3]) == "base"
    assert {"base", "y"} <= needing
    assert {"base", "filled", "h", "w"} <= reached_by_loss(graph, needing)


@pytest.mark.parametrize(("op", "numbers"), [("LSTM", 6), ("GRU", 5), ("RNN", 2)])
def test_a_recurrence_keeps_gates_and_states_of_every_layer(op: str, numbers: int) -> None:
    for layers in (1, 3):
        graph = one_node(op, [(7, 2, 5), (1, 2, 3), (12, 5)], [(7, 2, 3)], weights=[2], layers=layers)
        assert extra_saved_blocks(graph, graph.nodes[0], needing_gradients(graph)) == [numbers * 7 * 2 * 3 * 4 * layers]
    single = one_node(op, [(7, 2, 5), (1, 2, 3), (12, 5)], [(7, 2, 3)], weights=[2])
    assert extra_saved_blocks(single, single.nodes[0], needing_gradients(single)) == [numbers * 7 * 2 * 3 * 4]


def test_a_pool_that_gives_its_indices_keeps_no_others() -> None:
    for op in ("MaxPool", "AdaptiveMaxPool"):
        one = one_node(op, [(1, 1, 4, 4)], [(1, 1, 2, 2)], weights=[0])
        assert extra_saved_blocks(one, one.nodes[0], needing_gradients(one)) == [4 * 8]
        two = one_node(op, [(1, 1, 4, 4)], [(1, 1, 2, 2), (1, 1, 2, 2)], weights=[0])
        assert extra_saved_blocks(two, two.nodes[0], needing_gradients(two)) == []


def test_a_fused_attention_keeps_a_number_a_row_and_a_padded_mask() -> None:
    graph = one_node("Attention", [(2, 4, 19, 8)] * 3 + [(1, 4, 19, 19)], [(2, 4, 19, 8)], weights=[0])
    assert extra_saved_blocks(graph, graph.nodes[0], needing_gradients(graph)) == [2 * 4 * 19 * 4, 4 * 19 * 24 * 4]
    narrow = one_node("Attention", [(2, 4, 19, 1)] * 3, [(2, 4, 19, 1)], weights=[0])
    assert extra_saved_blocks(narrow, narrow.nodes[0], needing_gradients(narrow)) == [2 * 4 * 19 * 4, 0]


@pytest.mark.parametrize(
    ("op", "outputs", "passes"),
    [
        ("Sub", [(4, 8)], True), ("Sum", [(4, 8)], True), ("CopyTo", [(4, 8)], True), ("Identity", [(4, 8)], True),
        ("Dropout", [(4, 8)], True), ("Mul", [(4, 8)], False), ("Split", [(2, 8), (2, 8)], False),
        ("Squeeze", [(4, 8)], True), ("Select", [(8,)], False), ("Unfold", [(4, 2, 4)], False),
        ("Diagonal", [(4,)], False), ("Dropout", [(4, 9)], False),
    ],
)  # fmt: skip
def test_more_gradients_that_pass_through(op: str, outputs: list[tuple[int, ...]], passes: bool) -> None:
    graph = one_node(op, [(4, 8)], outputs)
    assert gradient_passes(graph, graph.nodes[0], "in0", layouts(graph)) is passes


def test_no_gradient_passes_through_a_cast_or_a_reshape_that_copies_back() -> None:
    tensors = [Tensor("x", (4,), kind="input"), Tensor("y", (4,), "fp16")]
    cast = Graph.build("g", [Node("i", "Identity", ("x",), ("y",))], {t.name: t for t in tensors}, ["x"], ["y"])
    assert not gradient_passes(cast, cast.nodes[0], "x", layouts(cast))
    nodes = [
        Node("t", "Transpose", ("x",), ("t",), {"perm": (1, 0, 2)}),
        Node("r", "Reshape", ("t",), ("r",)),
        Node("u", "Unsqueeze", ("t",), ("u",)),
    ]
    graph = chain(nodes, {"x": (4, 8, 2), "t": (8, 4, 2), "r": (8, 4, 2, 1), "u": (1, 8, 4, 2)}, ["x"], ["r", "u"])
    assert not gradient_passes(graph, nodes[1], "t", layouts(graph)), "the result does not lie row-major"
    assert gradient_passes(graph, nodes[2], "t", layouts(graph))


def test_absent_operands_are_not_saved_and_a_mask_is_not_copied() -> None:
    assert saved(Node("n", "LSTM", ("h", "", "g"), ("y", ""))) == ("h", "g", "y")
    shape = (2, 3, 5, 7, 16)
    graph = one_node("Attention", [*[shape] * 3, (7, 7)], [shape], weights=[0], dtype="bf16")
    scores, operand = 2 * 3 * 5 * 7 * 7 * 4, 2 * 3 * 5 * 7 * 16 * 4
    assert extra_saved_blocks(graph, graph.nodes[0], needing_gradients(graph)) == [scores, *[operand] * 3]
