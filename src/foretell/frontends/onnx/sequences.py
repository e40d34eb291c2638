"""Frontends: replaces ONNX sequences and optionals by their tensors, so that the graph has tensors only."""

from typing import Any

import numpy as np
from onnx import NodeProto, helper

from foretell.errors import ModelError
from foretell.frontends.onnx.shapes import Shapes

MAX_PIECES = 4096  # of one SplitToSequence
OPERATORS = frozenset(
    [
        "SequenceConstruct",
        "SequenceEmpty",
        "SequenceInsert",
        "SequenceErase",
        "SequenceAt",
        "SequenceLength",
        "SplitToSequence",
        "ConcatFromSequence",
        "Optional",
        "OptionalGetElement",
        "OptionalHasElement",
    ]
)


def lower(node: NodeProto, attributes: dict[str, Any], shapes: Shapes) -> NodeProto | None:
    """Return the tensor operator that a sequence operator amounts to; None if it only assigns tensors to sequences."""
    op, sequences = node.op_type, shapes.sequences
    if op in ("Optional", "OptionalGetElement") and node.input:
        if node.input[0] in sequences:
            sequences[node.output[0]] = sequences[node.input[0]]
            return None
        return helper.make_node("Identity", [node.input[0]], [node.output[0]], name=node.name)
    if op == "OptionalHasElement":
        shapes.keep(node.output[0], np.array(bool(node.input and node.input[0])))
        shapes.enter(node.output[0], (), 9)
        return None
    if op == "SequenceConstruct":
        sequences[node.output[0]] = tuple(node.input)
    elif op == "SequenceEmpty":
        sequences[node.output[0]] = ()
    elif op == "SplitToSequence":
        return _split(node, attributes, shapes)
    elif not node.input or node.input[0] not in sequences:
        raise ModelError(
            f"The sequence that {node.op_type} {node.name!r} reads depends on data. Export the model without sequences."
        )
    else:
        return _read(node, attributes, shapes)
    return None


def _read(node: NodeProto, attributes: dict[str, Any], shapes: Shapes) -> NodeProto | None:
    """Replace an operator that reads a known sequence."""
    items, output = shapes.sequences[node.input[0]], node.output[0]
    # every sequence is a tuple of its own: a thousand insertions would copy a million items
    shapes.budget.draw("elements", len(items))
    if node.op_type == "SequenceLength":
        shapes.keep(output, np.array(len(items), np.int64))
        shapes.enter(output, (), 7)
        return None
    if node.op_type == "ConcatFromSequence":
        shapes.budget.draw("edges", len(items))
        shapes.budget.draw_names(items)
        if attributes.get("new_axis"):
            return _stacked(items, output, attributes, node.name, shapes)
        return helper.make_node("Concat", items, [output], name=node.name, axis=int(attributes["axis"]))
    if node.op_type == "SequenceInsert":
        at = _position(node, 2, shapes, len(items)) if len(node.input) > 2 and node.input[2] else len(items)
        shapes.sequences[output] = (*items[:at], node.input[1], *items[at:])
        return None
    if node.op_type == "SequenceErase":
        at = _position(node, 1, shapes, len(items)) if len(node.input) > 1 and node.input[1] else len(items) - 1
        shapes.sequences[output] = (*items[:at], *items[at + 1 :])
        return None
    at = _position(node, 1, shapes, len(items))
    if not 0 <= at < len(items):
        raise ModelError(f"Node {node.name or output!r} (SequenceAt) reads item {at} of a sequence of {len(items)}.")
    return helper.make_node("Identity", [items[at]], [output], name=node.name)


def _position(node: NodeProto, index: int, shapes: Shapes, length: int) -> int:
    value = shapes.values.get(node.input[index])
    if value is None:
        raise ModelError(f"The position at which {node.op_type} {node.name!r} accesses a sequence depends on data.")
    at = int(value.ravel()[0])
    return at + length if at < 0 else at


def _stacked(items: tuple[str, ...], output: str, attributes: dict[str, Any], name: str, shapes: Shapes) -> NodeProto:
    shape, kind = shapes.known[items[0]]
    axis = int(attributes["axis"]) % (len(shape) + 1)
    shapes.enter(output, (*shape[:axis], len(items), *shape[axis:]), kind)
    return helper.make_node("Concat", items, [output], name=name, axis=axis)


def _split(node: NodeProto, attributes: dict[str, Any], shapes: Shapes) -> NodeProto:
    """Split a tensor into named pieces. Without ``keepdims``, pieces of size 1 lose the axis: a Select, not a Split."""
    if node.input[0] not in shapes.known:
        raise ModelError(f"Node {node.name!r} (SplitToSequence) reads a tensor without a shape.")
    shape, kind = shapes.known[node.input[0]]
    axis = int(attributes.get("axis", 0)) % max(len(shape), 1)
    if not shape:
        raise ModelError(f"Node {node.name!r} (SplitToSequence) splits a tensor without axes.")
    pieces, step, sizes = shape[axis], 1, None
    if len(node.input) > 1 and node.input[1]:
        value = shapes.values.get(node.input[1])
        if value is None:
            raise ModelError(f"The sizes that SplitToSequence {node.name!r} splits into depend on data.")
        if value.ndim == 0:
            step = max(int(value), 1)
            pieces = -(-shape[axis] // step)
        else:
            sizes = [int(v) for v in value.ravel()]
            pieces = len(sizes)
    if pieces > MAX_PIECES:
        raise ModelError(
            f"Node {node.name!r} (SplitToSequence) makes {pieces} pieces; at most {MAX_PIECES} are allowed."
        )
    shapes.budget.draw("edges", pieces)
    shapes.budget.draw_names(node.output[:1], pieces)
    sizes = sizes if sizes is not None else [min(step, shape[axis] - at) for at in range(0, shape[axis], step)]
    drops_axis = len(node.input) < 2 and not attributes.get("keepdims", 1)
    names = [f"{node.output[0]}.{i}" for i in range(len(sizes))]
    for name, size in zip(names, sizes):
        shapes.enter(name, shape[:axis] + (() if drops_axis else (size,)) + shape[axis + 1 :], kind)
    shapes.sequences[node.output[0]] = tuple(names)
    return helper.make_node("Select" if drops_axis else "Split", [node.input[0]], names, name=node.name, axis=axis)
