"""The batch is found through every kind of operator: marking at one size and scaling gives the graph of another."""

from collections.abc import Callable

import pytest

from foretell.graph import Graph, Node, Tensor
from foretell.graph.ir.batch import mark_batch_axes
from foretell.graph.ir.node import Attribute

B = 11  # a size that nothing else has


def marked(
    op: str, inputs: list[tuple[tuple[int, ...], int | None]], out: tuple[int, ...], **attributes: Attribute
) -> int | None:
    """The batch axis of a node's output; each input is a shape and its batch axis (None: a weight)."""
    tensors = {"out": Tensor("out", out)}
    for i, (shape, axis) in enumerate(inputs):
        tensors[f"in{i}"] = Tensor(f"in{i}", shape, kind="parameter" if axis is None else "input", batch_axis=axis)
    names = tuple(f"in{i}" for i in range(len(inputs)))
    free = [n for n in names if tensors[n].kind == "input"]
    graph = Graph.build("g", [Node("n", op, names, ("out",), attributes)], tensors, free, ["out"], batch_size=B)
    return mark_batch_axes(graph).tensors["out"].batch_axis


@pytest.mark.parametrize(
    ("op", "inputs", "out", "attributes", "axis"),
    [
        ("Relu", [((B, 4), 0)], (B, 4), {}, 0),
        ("Conv", [((B, 3, 8, 8), 0), ((4, 3, 3, 3), None)], (B, 4, 6, 6), {}, 0),
        ("Add", [((4,), None), ((B, 4), 0)], (B, 4), {}, 0),
        ("Add", [((1, 5, 4), None), ((B, 1, 4), 0)], (B, 5, 4), {}, 0),
        ("Transpose", [((B, 3, 4), 0)], (3, 4, B), {"perm": (1, 2, 0)}, 2),
        ("Transpose", [((B, 3), 0)], (3, B), {}, 1),
        ("Reshape", [((B, 8, 8, 3), 0)], (B * 4, 4, 4, 3), {}, 0),
        ("Reshape", [((5, B, 4), 1)], (5, 1, B, 4), {}, 2),
        ("Reshape", [((6, B, 4), 1)], (6 * B, 4), {}, 0),
        ("Squeeze", [((1, B, 4), 1)], (B, 4), {}, 0),
        ("Unsqueeze", [((B, 4), 0)], (1, B, 4), {}, 1),
        ("ReduceMean", [((B, 5, 4), 0)], (B, 4), {"axes": (1,), "keepdims": 0}, 0),
        ("ReduceMean", [((5, B, 4), 1)], (B, 4), {"axes": (0,), "keepdims": 0}, 0),
        ("ReduceMean", [((B, 5), 0)], (1, 5), {"axes": (0,)}, None),
        ("ReduceSum", [((B, 5), 0)], (), {}, None),
        ("Select", [((5, B, 4), 1)], (B, 4), {"axis": 0}, 0),
        ("Select", [((B, 4), 0)], (4,), {"axis": 0}, None),
        ("Gather", [((100, 8), None), ((B, 7), 0)], (B, 7, 8), {"axis": 0}, 0),
        ("Gather", [((5, B, 4), 1), ((2, 3), None)], (2, 3, B, 4), {"axis": 0}, 2),
        ("MatMul", [((B, 7, 4), 0), ((4, 5), None)], (B, 7, 5), {}, 0),
        ("MatMul", [((7, 4), None), ((B, 4, 5), 0)], (B, 7, 5), {}, 0),
        ("Gemm", [((4, B), 1), ((4, 5), None)], (B, 5), {"transA": 1}, 0),
        ("Einsum", [((B, 8), 0), ((8, 16, 4), None)], (B, 16, 4), {"equation": "...i,iok->...ok"}, 0),
        ("Einsum", [((5, 4), None), ((B, 7, 4), 0)], (7, 5, B), {"equation": "jk,bok->ojb"}, 2),
        ("Einsum", [((B, 4), 0), ((B, 4), 0)], (4,), {"equation": "bi,bi->i"}, None),
        ("Concat", [((B, 4), 0), ((B, 4), 0)], (B, 8), {"axis": 1}, 0),
        ("Concat", [((B, 4), 0), ((B, 4), 0)], (2 * B, B, 4), {}, 1),  # PyTorch's stack makes a new axis
        ("Concat", [((4, B), 1), ((4, B), 1)], (4, B, B), {"axis": -1}, 1),
        ("LSTM", [((7, B, 5), 1), ((1, 12, 5), None), ((1, 12, 3), None)], (7, 1, B, 3), {"hidden_size": 3}, 2),
        ("GRU", [((B, 7, 5), 0)], (B, 7, 3), {"batch_first": 1}, 0),
        ("Softmax", [((B, 4), 0)], (B, 4), {}, 0),
        ("Shape", [((B, 4), 0)], (2,), {}, None),
        ("Expand", [((1, 1, 8), None)], (B, 1, 8), {}, 0),
        ("ConstantOfShape", [], (2, B, 8), {}, 1),
        ("Relu", [((8, 8), None)], (8, 8), {}, None),
        ("Mystery", [((B, 4), 0)], (B, 9), {}, 0),
    ],
)
def test_one_operator(
    op: str,
    inputs: list[tuple[tuple[int, ...], int | None]],
    out: tuple[int, ...],
    attributes: dict[str, Attribute],
    axis: int | None,
) -> None:
    assert marked(op, inputs, out, **attributes) == axis


def class_token(batch: int) -> Graph:
    """A token that is expanded over the batch and joined with patches."""
    tensors = [
        Tensor("x", (batch, 4, 8), kind="input", batch_axis=0),
        Tensor("token", (1, 1, 8), kind="parameter"),
        Tensor("wide", (batch, 1, 8)),
        Tensor("copy", (batch, 1, 8)),
        Tensor("y", (batch, 5, 8)),
    ]
    nodes = [
        Node("expand", "Expand", ("token",), ("wide",)),
        Node("copy", "Copy", ("wide",), ("copy",)),
        Node("join", "Concat", ("copy", "x"), ("y",), {"axis": 1}),
    ]
    return Graph.build("g", nodes, {t.name: t for t in tensors}, ["x"], ["y"], batch_size=batch)


def first_states(batch: int) -> Graph:
    """A recurrence over windows whose first states are zeros of a multiple of the batch."""
    tensors = [
        Tensor("x", (batch * 3, 7, 8), kind="input", batch_axis=0),
        Tensor("h", (1, batch * 3, 4)),
        Tensor("w", (12, 8), kind="parameter"),
        Tensor("y", (batch * 3, 7, 4)),
    ]
    nodes = [
        Node("zeros", "ConstantOfShape", (), ("h",)),
        Node("gru", "GRU", ("x", "h", "w"), ("y",), {"batch_first": 1}),
    ]
    return Graph.build("g", nodes, {t.name: t for t in tensors}, ["x"], ["y"], batch_size=batch)


@pytest.mark.parametrize("make", [class_token, first_states])
def test_scaling_gives_what_building_gives(make: Callable[[int], Graph]) -> None:
    assert mark_batch_axes(make(B)).with_batch(5).hash == make(5).hash


def test_a_batch_of_one_does_not_spread_to_what_it_does_not_touch() -> None:
    scaled = mark_batch_axes(class_token(1)).with_batch(6)
    assert scaled.tensors["y"].shape == (6, 5, 8)
    assert scaled.tensors["token"].shape == (1, 1, 8)
