"""Frontends: computes the small values that decide shapes while an ONNX graph is read.

Idea: exporters compute shapes inside the graph (Shape → Gather → Concat → Reshape). The shape of a Reshape is known
only if that arithmetic is done. `evaluate` runs one node on NumPy arrays if all its inputs are known;
`foretell.frontends.onnx.shapes` calls it for every node and keeps the results. It is constant folding, but only for
values that are small enough to be a shape.

Limits: arrays have at most `MAX_ELEMENTS` elements, so no weight is ever computed with. A file may be malicious, so
every rule checks the size of its result before it allocates it, and a node that fails is left unknown instead of
raising an error. Only the operators of the table at the end are known; they are those that occur in shape arithmetic.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

MAX_ELEMENTS = 4096
Array = NDArray[Any]
Attributes = Mapping[str, Any]


def evaluate(op: str, inputs: Sequence[Array | None], attributes: Attributes) -> list[Array] | None:
    """Return the outputs of a node whose inputs are known; None if they cannot or should not be computed."""
    # inputs are limited, too: an operator such as Gather may read a large one
    rule = _RULES.get(op)
    if rule is None or sum(i.size for i in inputs if i is not None) > 4 * MAX_ELEMENTS:
        return None
    try:
        with np.errstate(all="ignore"):
            result = rule(list(inputs), attributes)
    except (ValueError, IndexError, TypeError, KeyError, OverflowError, ZeroDivisionError, MemoryError):
        return None
    results = result if isinstance(result, list) else [result]
    return [np.asarray(r) for r in results] if all(np.size(r) <= MAX_ELEMENTS for r in results) else None


def _axes(inputs: list[Array | None], attributes: Attributes, position: int = 1) -> tuple[int, ...] | None:
    if len(inputs) > position and inputs[position] is not None:
        return tuple(int(a) for a in np.ravel(_need(inputs[position])))
    return tuple(attributes["axes"]) if "axes" in attributes else None


def _need(array: Array | None) -> Array:
    if array is None:
        raise TypeError("an input is absent")
    return array


def _elementwise(function: Callable[..., Any]) -> Callable[[list[Array | None], Attributes], Array]:
    """A rule that applies a NumPy function to all inputs, with broadcasting."""

    def rule(inputs: list[Array | None], _attributes: Attributes) -> Array:
        arrays = [_need(i) for i in inputs]
        if math.prod(np.broadcast_shapes(*(a.shape for a in arrays))) > MAX_ELEMENTS:
            raise ValueError("too large")
        return np.asarray(function(*arrays))

    return rule


def _divide(a: Array, b: Array) -> Array:
    if np.issubdtype(a.dtype, np.integer):
        # ONNX rounds towards zero, NumPy's // rounds down; a division of floats would not be exact
        return np.asarray(np.sign(a) * np.sign(b) * (np.abs(a) // np.abs(b))).astype(a.dtype)
    return np.asarray(a / b)


def _slice(inputs: list[Array | None], attributes: Attributes) -> Array:
    """Slice, with its limits as attributes or as inputs."""
    data = _need(inputs[0])
    if "starts" in attributes:  # before opset 10
        starts, ends = attributes["starts"], attributes["ends"]
        axes, steps = tuple(attributes.get("axes", range(len(starts)))), (1,) * len(starts)
    else:
        starts, ends = _need(inputs[1]).ravel(), _need(inputs[2]).ravel()
        axes = _axes(inputs, {}, 3) or tuple(range(len(starts)))
        steps = _axes(inputs, {}, 4) or (1,) * len(starts)
    index = [slice(None)] * data.ndim
    for axis, start, end, step in zip(axes, starts, ends, steps):
        stop: int | None = int(end)
        if int(step) < 0 and int(end) < -data.shape[int(axis)]:
            stop = None  # down to the first element; Python would read the number as counted from the end
        index[int(axis)] = slice(int(start), stop, int(step))
    return np.asarray(data[tuple(index)])


def _gather(inputs: list[Array | None], attributes: Attributes) -> Array:
    data, index, axis = _need(inputs[0]), _need(inputs[1]).astype(np.int64), int(attributes.get("axis", 0))
    if data.size // max(data.shape[axis], 1) * index.size > MAX_ELEMENTS:
        raise ValueError("too large")
    return np.take(data, index, axis=axis)


def _squeeze(inputs: list[Array | None], attributes: Attributes) -> Array:
    return np.squeeze(_need(inputs[0]), _axes(inputs, attributes))


def _unsqueeze(inputs: list[Array | None], attributes: Attributes) -> Array:
    return np.expand_dims(_need(inputs[0]), _axes(inputs, attributes) or ())


def _reshape(inputs: list[Array | None], attributes: Attributes) -> Array:
    data, shape = _need(inputs[0]), [int(d) for d in _need(inputs[1]).ravel()]
    return data.reshape(
        [data.shape[i] if d == 0 and not attributes.get("allowzero") else d for i, d in enumerate(shape)]
    )


def _expand(inputs: list[Array | None], _attributes: Attributes) -> Array:
    data, shape = _need(inputs[0]), [int(d) for d in _need(inputs[1]).ravel()]
    expanded = np.broadcast_shapes(data.shape, tuple(shape))
    if math.prod(expanded) > MAX_ELEMENTS:
        raise ValueError("too large")
    return np.broadcast_to(data, expanded)


def _constant_of_shape(inputs: list[Array | None], attributes: Attributes) -> Array:
    shape = [int(d) for d in _need(inputs[0]).ravel()]
    if math.prod(shape) > MAX_ELEMENTS or any(d < 0 for d in shape):
        raise ValueError("too large")
    # the value is a tensor of one element; its dtype is that of the result
    value = attributes.get("value", np.zeros(1, np.float32))
    return np.full(shape, np.ravel(value)[0])


def _range(inputs: list[Array | None], _attributes: Attributes) -> Array:
    start, limit, delta = (_need(i).ravel()[0] for i in inputs)
    # "not … <=" instead of ">": a NaN must be refused, too
    if not abs((float(limit) - float(start)) / float(delta)) <= MAX_ELEMENTS:
        raise ValueError("too large")
    return np.arange(start, limit, delta, dtype=_need(inputs[0]).dtype)


def _split(inputs: list[Array | None], attributes: Attributes) -> list[Array]:
    """Split, into given sizes or into equal pieces."""
    data, axis = _need(inputs[0]), int(attributes.get("axis", 0))
    sizes = _axes(inputs, {}, 1) or tuple(attributes.get("split", ()))
    if not sizes:
        pieces = int(attributes.get("num_outputs", 0))
        if not 0 < pieces <= MAX_ELEMENTS:
            raise ValueError("an unknown number of pieces")
        size = -(-data.shape[axis] // pieces)
        sizes = (size,) * pieces
    return list(np.split(data, np.cumsum(sizes)[:-1], axis))


def _reduce(function: Callable[..., Any]) -> Callable[[list[Array | None], Attributes], Array]:
    def rule(inputs: list[Array | None], attributes: Attributes) -> Array:
        return np.asarray(
            function(_need(inputs[0]), axis=_axes(inputs, attributes), keepdims=bool(attributes.get("keepdims", 1)))
        )

    return rule


def _cast(inputs: list[Array | None], attributes: Attributes) -> Array:
    """Cast to one of the types that occur in shape arithmetic."""
    kinds: dict[int, Any] = {
        1: np.float32,
        6: np.int32,
        7: np.int64,
        9: np.bool_,
        10: np.float16,
        11: np.float64,
        2: np.uint8,
        3: np.int8,
    }
    return _need(inputs[0]).astype(kinds[int(attributes["to"])])


def _clip(inputs: list[Array | None], attributes: Attributes) -> Array:
    # since opset 11 the limits are inputs, before they were attributes
    limits = [inputs[i] if len(inputs) > i else None for i in (1, 2)]
    low, high = (limit if limit is not None else attributes.get(key) for limit, key in zip(limits, ("min", "max")))
    data = _need(inputs[0])
    return np.asarray(data if low is None and high is None else np.clip(data, low, high)).astype(data.dtype)


_RULES: dict[str, Callable[[list[Array | None], Attributes], Any]] = {
    "Identity": _elementwise(lambda a: a),
    "Add": _elementwise(np.add),
    "Sub": _elementwise(np.subtract),
    "Mul": _elementwise(np.multiply),
    "Div": _elementwise(_divide),
    "Mod": _elementwise(np.mod),
    "Neg": _elementwise(np.negative),
    "Abs": _elementwise(np.abs),
    "Floor": _elementwise(np.floor),
    "Ceil": _elementwise(np.ceil),
    "Sqrt": _elementwise(np.sqrt),
    "Pow": _elementwise(np.power),
    "Max": _elementwise(lambda *a: np.maximum.reduce(a)),
    "Min": _elementwise(lambda *a: np.minimum.reduce(a)),
    "Equal": _elementwise(np.equal),
    "Greater": _elementwise(np.greater),
    "GreaterOrEqual": _elementwise(np.greater_equal),
    "Less": _elementwise(np.less),
    "LessOrEqual": _elementwise(np.less_equal),
    "And": _elementwise(np.logical_and),
    "Or": _elementwise(np.logical_or),
    "Not": _elementwise(np.logical_not),
    "Where": _elementwise(np.where),
    "Gather": _gather,
    "Clip": _clip,
    "Round": _elementwise(np.round),
    "Relu": _elementwise(lambda a: np.maximum(a, 0)),
    "Concat": lambda i, a: np.concatenate([_need(x) for x in i], axis=int(a["axis"])),
    "Transpose": lambda i, a: np.transpose(_need(i[0]), a.get("perm")),
    "Slice": _slice,
    "Squeeze": _squeeze,
    "Unsqueeze": _unsqueeze,
    "Reshape": _reshape,
    "Expand": _expand,
    "ConstantOfShape": _constant_of_shape,
    "Range": _range,
    "Split": _split,
    "ReduceProd": _reduce(np.prod),
    "ReduceSum": _reduce(np.sum),
    "ReduceMax": _reduce(np.max),
    "ReduceMin": _reduce(np.min),
    "Cast": _cast,
}
