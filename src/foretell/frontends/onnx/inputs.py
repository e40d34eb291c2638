"""Frontends: finds the input shapes of an ONNX model. Sizes that the file leaves open come from ``--input``.

A symbol such as ``sequence`` that occurs in several inputs has the same size in all of them.
"""

import ast
import re
from collections.abc import Mapping
from typing import Any

from onnx import GraphProto

from foretell.errors import InputError, ModelError
from foretell.frontends.onnx.nodes import dtype_of
from foretell.frontends.request import MAX_ELEMENTS, InputSpec, ModelRequest, match_inputs
from foretell.frozen import dataclass

_BATCH_NAME = re.compile(r"^(?:n|b|bs|batch\w*|\w*batch)$", re.IGNORECASE)
MAX_EXPRESSION = 120
Dim = int | str  # a size, or a symbol ("" where it has no name)


@dataclass(frozen=True)
class OpenInput:
    """One input. None in its shape stands for a batch that the file leaves open.

    ``whole`` inputs have no batch, because the user said so. ``open_axis`` is the file's name of an open first axis
    that is taken for the batch though it is not called so.
    """

    name: str
    shape: tuple[int | None, ...]
    element_type: int
    whole: bool = False
    open_axis: str = ""

    def at_batch(self, batch_size: int) -> tuple[int, ...]:
        """The shape at a batch size."""
        return tuple(batch_size if d is None else d for d in self.shape)

    def batch_axis(self, batch_size: int) -> int | None:
        """The batch axis: the open one; of a fixed shape the first axis, if its size is the batch size."""
        if self.whole:
            return None
        if None in self.shape:
            return self.shape.index(None)
        return 0 if self.shape and self.shape[0] == batch_size else None


def resolve_inputs(graph: GraphProto, request: ModelRequest) -> tuple[OpenInput, ...]:
    """Return every real input of a model with its shape. Old files list their weights among the inputs, too."""
    constants = {t.name for t in graph.initializer} | {s.values.name for s in graph.sparse_initializer}
    protos = [i for i in graph.input if i.name not in constants]
    for proto in protos:
        if not proto.type.HasField("tensor_type"):
            raise ModelError(f"Input {proto.name!r} is not a tensor; foretell reads models whose inputs are tensors.")
    specs = match_inputs(request.inputs, [p.name for p in protos])
    for proto in protos:
        _check_dtype(proto.name, proto.type.tensor_type.elem_type, specs.get(proto.name))
    dims = {p.name: _dims(p, specs.get(p.name)) for p in protos}
    symbols: dict[str, int] = {}
    for name, spec in specs.items():
        _bind_symbols(name, dims[name], spec, symbols)
    batch = _batch_symbol(dims)
    return tuple(_open_input(p, dims[p.name], specs.get(p.name), symbols, batch) for p in protos)


def _open_input(
    proto: Any, dims: list[Dim], spec: InputSpec | None, symbols: Mapping[str, int], batch: str
) -> OpenInput:
    shape = _resolve(proto.name, dims, spec, symbols, batch)
    symbol = str(dims[shape.index(None)]) if None in shape else ""
    return OpenInput(
        proto.name, shape, proto.type.tensor_type.elem_type, spec is not None and spec.whole,
        "" if _BATCH_NAME.match(symbol) else symbol,
    )  # fmt: skip


def _dims(proto: Any, spec: InputSpec | None) -> list[Dim]:
    """The dimensions of an input: sizes, and symbols where the file leaves them open."""
    kind = proto.type.tensor_type
    if not kind.HasField("shape"):
        if spec is None:
            raise InputError(
                f"Input {proto.name!r} has no shape. Give it, without the batch: --input {proto.name}=3x224x224"
            )
        return ["batch", *spec.shape]
    dims: list[Dim] = []
    for dim in kind.shape.dim:
        if dim.HasField("dim_value") and dim.dim_value < 0:
            raise ModelError(f"Input {proto.name!r} has the negative dimension {dim.dim_value}.")
        # old exporters wrote 0 for "any size"
        dims.append(dim.dim_value if dim.HasField("dim_value") and dim.dim_value else dim.dim_param)
    return dims


def _check_dtype(name: str, element_type: int, spec: InputSpec | None) -> None:
    dtype = dtype_of(element_type)
    if spec is not None and spec.dtype is not None and spec.dtype != dtype:
        raise InputError(f"The input {name!r} is {dtype} in the file, but {spec.dtype} was given.")


def _batch_symbol(dims: Mapping[str, list[Dim]]) -> str:
    """The symbol of the batch: one with a name such as ``batch``, else the symbol of an open first axis."""
    symbols = [d for shape in dims.values() for d in shape if isinstance(d, str) and d]
    named = next((s for s in symbols if _BATCH_NAME.match(s)), "")
    first = next((shape[0] for shape in dims.values() if shape and isinstance(shape[0], str)), "")
    return named or str(first)


def _sizes(name: str, dims: list[Dim], spec: InputSpec) -> list[int]:
    """The size that the user gave for each axis; 0 for the batch, which may be left out."""
    if len(spec.shape) == len(dims):
        return list(spec.shape)
    if spec.whole:
        raise InputError(
            f"--input {name}={spec} has {len(spec.shape)} dimensions; with ! it must have all {len(dims)} of "
            f"{name!r}: {_text(dims)}."
        )
    if len(spec.shape) == len(dims) - 1:
        axis = next((i for i, d in enumerate(dims) if isinstance(d, str) and _BATCH_NAME.match(d)), 0)
        return [*spec.shape[:axis], 0, *spec.shape[axis:]]
    raise InputError(
        f"--input {spec} has {len(spec.shape)} dimensions; {name!r} takes {max(len(dims) - 1, 0)} without the batch: "
        f"{_text(dims[1:])}."
    )


def _bind_symbols(name: str, dims: list[Dim], spec: InputSpec, symbols: dict[str, int]) -> None:
    """Record the sizes of the symbols of one input, and check that they agree with the file and with other inputs."""
    for axis, (dim, size) in enumerate(zip(dims, _sizes(name, dims, spec))):
        if isinstance(dim, int) and size and size != dim:
            raise InputError(f"Axis {axis} of the input {name!r} is fixed at {dim}, but {size} was given.")
        symbol = dim if isinstance(dim, str) and dim.isidentifier() and size else ""
        if symbol and symbols.setdefault(symbol, size) != size:
            raise InputError(f"The dimension {symbol!r} is {symbols[symbol]} in one input and {size} in {name!r}.")


def _resolve(
    name: str, dims: list[Dim], spec: InputSpec | None, symbols: Mapping[str, int], batch: str
) -> tuple[int | None, ...]:
    """The shape of an input: sizes from the file, from the user or from symbols; None for an open batch."""
    sizes = _sizes(name, dims, spec) if spec is not None else [0] * len(dims)
    shape: list[int | None] = []
    for axis, (dim, size) in enumerate(zip(dims, sizes)):
        known = dim if isinstance(dim, int) else size or _evaluate(dim, symbols)
        if known:
            shape.append(known)
        # one axis may stay open: the batch, or the first axis if none is called so
        elif None not in shape and ((dim == batch and batch) or axis == 0):
            shape.append(None)
        else:
            raise InputError(
                f"Input {name!r} has open dimensions: {_text(dims[1:])}. "
                f"Give them, without the batch, such as --input {name}={_example(dims)}"
            )
    total = 1
    for d in shape:
        total *= d or 1
    if total > MAX_ELEMENTS:
        raise ModelError(f"Input {name!r} has the impossible shape {_text([d or 'batch' for d in shape])}.")
    return tuple(shape)


def _evaluate(expression: str, symbols: Mapping[str, int]) -> int | None:
    """The size of a dimension such as ``past + 1`` or ``2*s0``; None if one of its symbols is unknown.

    >>> _evaluate("past + 1", {"past": 7}), _evaluate("seq", {})
    (8, None)
    """
    if expression in symbols:
        return symbols[expression]
    if not expression or len(expression) > MAX_EXPRESSION:
        return None
    try:
        size = _value(ast.parse(expression, mode="eval").body, symbols)
    except (SyntaxError, ValueError, KeyError, RecursionError, MemoryError, ZeroDivisionError):
        return None
    return size if 0 < size <= MAX_ELEMENTS else None


def _value(node: ast.expr, symbols: Mapping[str, int]) -> int:
    """Evaluate an expression of +, −, × and // only. The file may be malicious, so ``eval`` is no option."""
    if isinstance(node, ast.Constant) and type(node.value) is int:
        return node.value
    if isinstance(node, ast.Name):
        return symbols[node.id]
    if isinstance(node, ast.BinOp):
        left, right = _value(node.left, symbols), _value(node.right, symbols)
        if isinstance(node.op, ast.Add):
            return left + right
        if isinstance(node.op, ast.Sub):
            return left - right
        if isinstance(node.op, ast.Mult):
            return left * right
        if isinstance(node.op, ast.FloorDiv):
            return left // right
    raise ValueError("not a size")


def _text(dims: list[Any]) -> str:
    return "x".join(str(d) if d else "?" for d in dims) or "nothing"


def _example(dims: list[Dim]) -> str:
    usual = "224" if len(dims) == 4 else "128"
    return "x".join(str(d) if isinstance(d, int) else usual for d in dims[1:])
