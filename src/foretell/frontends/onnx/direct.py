"""Frontends: shapes of the operators that most vision models consist of, without asking ONNX.

ONNX's inference takes 11 to 16 ms before its first answer: it registers all versions of all operators. A model of the
operators below never needs it. A rule answers only where it is certain of ONNX's answer, in an opset in which all of
them exist; whatever is unusual (padding by name, a mismatch, an open value) is left to ONNX and its errors.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

LEAST_OPSET = 14  # in older ones norms and broadcasting have other rules
_AXES_ARE_INPUTS = 18  # from this opset on, for ReduceMean
_DILATED_AVERAGES = 19

Shape = tuple[int, ...]
Attributes = Mapping[str, Any]
Values = Sequence[NDArray[Any] | None]


class _Asked(NamedTuple):
    """All that a shape depends on."""

    opset: int
    attributes: Attributes
    shapes: Sequence[Shape]
    values: Values


def direct_shape(
    operator: str, opset: int, attributes: Attributes, shapes: Sequence[Shape], values: Values
) -> Shape | None:
    """The shape of the only output of a node; None where ONNX has to be asked.

    ``values`` are those of the inputs, None where they are not known or large.

    >>> direct_shape("Conv", 20, {"pads": [1, 1, 1, 1]}, [(2, 3, 8, 8), (16, 3, 3, 3)], [None, None])
    (2, 16, 8, 8)
    """
    rule = _RULES.get(operator)
    if rule is None or opset < LEAST_OPSET or any(size < 1 for shape in shapes for size in shape):
        return None
    return rule(_Asked(opset, attributes, shapes, values))


def _same(asked: _Asked) -> Shape | None:
    return asked.shapes[0] if len(asked.shapes) == 1 else None


def _broadcast(asked: _Asked) -> Shape | None:
    if len(asked.shapes) != 2:
        return None
    try:
        return np.broadcast_shapes(*asked.shapes)
    except ValueError:
        return None


def _norm(asked: _Asked) -> Shape | None:
    fits = (
        len(asked.shapes) == 5
        and len(asked.shapes[0]) > 1
        and all(shape == asked.shapes[0][1:2] for shape in asked.shapes[1:])
    )
    return asked.shapes[0] if fits and not asked.attributes.get("training_mode", 0) else None


def _convolution(asked: _Asked) -> Shape | None:
    if len(asked.shapes) not in (2, 3) or len(asked.shapes[0]) < 3 or len(asked.shapes[0]) != len(asked.shapes[1]):
        return None
    (batch, channels, *_rest), (filters, inner, *kernel) = asked.shapes[0], asked.shapes[1]
    group = asked.attributes.get("group", 1)
    if group < 1 or channels != inner * group or tuple(asked.attributes.get("kernel_shape", kernel)) != tuple(kernel):
        return None
    windows = _windows(asked.shapes[0][2:], kernel, asked.attributes)
    return None if windows is None else (batch, filters, *windows)


def _pool(asked: _Asked) -> Shape | None:
    if len(asked.shapes) != 1 or len(asked.shapes[0]) < 3 or asked.attributes.get("ceil_mode", 0):
        return None
    windows = _windows(asked.shapes[0][2:], asked.attributes.get("kernel_shape", ()), asked.attributes)
    return None if windows is None else (*asked.shapes[0][:2], *windows)


def _average(asked: _Asked) -> Shape | None:
    is_known = asked.opset >= _DILATED_AVERAGES or "dilations" not in asked.attributes
    return _pool(asked) if is_known else None


def _windows(sizes: Shape, kernel: Sequence[int], attributes: Attributes) -> list[int] | None:
    """How often a window fits along each axis; None where it does not, or where padding is given by name."""
    axes = len(sizes)
    strides, dilations = (attributes.get(name, (1,) * axes) for name in ("strides", "dilations"))
    pads = attributes.get("pads", (0,) * (2 * axes))
    lengths = (len(kernel), len(strides), len(dilations), len(pads))
    if attributes.get("auto_pad", "NOTSET") != "NOTSET" or lengths != (axes, axes, axes, 2 * axes):
        return None
    if min(*kernel, *strides, *dilations) < 1 or min(pads) < 0:
        return None
    found = [
        (size + before + after - dilation * (own - 1) - 1) // stride + 1
        for size, own, stride, dilation, before, after in zip(
            sizes, kernel, strides, dilations, pads[:axes], pads[axes:], strict=True
        )
    ]
    return found if min(found) > 0 else None


def _gemm(asked: _Asked) -> Shape | None:
    if len(asked.shapes) not in (2, 3) or len(asked.shapes[0]) != 2 or len(asked.shapes[1]) != 2:
        return None
    rows, inner = asked.shapes[0][::-1] if asked.attributes.get("transA", 0) else asked.shapes[0]
    other, columns = asked.shapes[1][::-1] if asked.attributes.get("transB", 0) else asked.shapes[1]
    return (rows, columns) if inner == other else None


def _mean(asked: _Asked) -> Shape | None:
    is_input = asked.opset >= _AXES_ARE_INPUTS
    if len(asked.shapes) != 1 + is_input or (is_input and "axes" in asked.attributes):
        return None
    axes = asked.values[1] if is_input else asked.attributes.get("axes")
    if axes is None or np.ndim(axes) != 1 or not len(axes):
        return None
    rank = len(asked.shapes[0])
    if min(axes) < -rank or max(axes) >= rank:
        return None
    reduced = {int(axis) % rank for axis in axes}
    if len(reduced) != len(axes):
        return None
    if asked.attributes.get("keepdims", 1):
        return tuple(1 if axis in reduced else size for axis, size in enumerate(asked.shapes[0]))
    return tuple(size for axis, size in enumerate(asked.shapes[0]) if axis not in reduced)


def _reshape(asked: _Asked) -> Shape | None:
    value = asked.values[1] if len(asked.shapes) == 2 else None
    if value is None or value.ndim != 1 or (asked.attributes.get("allowzero", 0) and 0 in value):
        return None
    shape, target = asked.shapes[0], [int(size) for size in value]
    if min(target, default=1) < -1 or target.count(-1) > 1 or any(not size for size in target[len(shape) :]):
        return None
    sizes = [size or shape[axis] for axis, size in enumerate(target)]
    elements, rest = math.prod(shape), math.prod(size for size in sizes if size > 0)
    if elements % rest or (-1 not in sizes and elements != rest):
        return None
    return tuple(size if size > 0 else elements // rest for size in sizes)


def _flatten(asked: _Asked) -> Shape | None:
    axis = asked.attributes.get("axis", 1)
    if len(asked.shapes) != 1 or not 0 <= axis <= len(asked.shapes[0]):
        return None
    return math.prod(asked.shapes[0][:axis]), math.prod(asked.shapes[0][axis:])


def _global_pool(asked: _Asked) -> Shape | None:
    if len(asked.shapes) != 1 or len(asked.shapes[0]) < 3:
        return None
    return (*asked.shapes[0][:2], *(1 for _ in asked.shapes[0][2:]))


_RULES: dict[str, Callable[[_Asked], Shape | None]] = {
    **dict.fromkeys(("Relu", "LeakyRelu", "Sigmoid", "HardSigmoid", "HardSwish", "Tanh", "Elu"), _same),
    **dict.fromkeys(("Add", "Sub", "Mul", "Div"), _broadcast),
    "BatchNormalization": _norm, "Conv": _convolution, "MaxPool": _pool, "AveragePool": _average,
    "GlobalAveragePool": _global_pool, "Gemm": _gemm, "ReduceMean": _mean, "Reshape": _reshape, "Flatten": _flatten,
}  # fmt: skip
