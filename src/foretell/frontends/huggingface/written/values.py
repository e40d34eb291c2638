"""Frontends: tensors that have shapes and no values, and a trace that writes down what is done to them.

Idea: a family's forward pass is written here as transformers writes it, on the `Value`s of this module in place of
torch's tensors. Each operation adds an ATen call to the `Trace`, under the name that ``torch.export`` would give it.
The calls become a graph by the same code as those of an export (`foretell.frontends.torch.aten`).

How long Python keeps each tensor comes along for free: a `Value` notes when CPython frees it, as
`foretell.frontends.torch.tracing.releases` notes it of an export. Functions of this folder must therefore name and drop
values as transformers does: a local variable more, and a tensor lives longer. A view keeps the tensor that it shows.
"""

from __future__ import annotations

import builtins
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from keyword import kwlist
from math import prod
from typing import Any, TypeVar

from foretell.frontends.torch.aten import AtenProgram, assemble
from foretell.frontends.torch.aten_operators import AtenCall, Ref
from foretell.graph import Graph, Tensor
from foretell.graph.ir.strides import contiguous, is_contiguous, viewed_strides
from foretell.graph.ir.tensor import TensorKind

Result = TypeVar("Result")
_WIDTHS = {"bool": 0, "int32": 1, "int64": 2, "bf16": 3, "fp32": 4, "complex64": 5}
_PYTHON = frozenset((*dir(builtins), *kwlist))
_CASTS = ("aten.to", "aten.type_as")
_SOURCES = ("aten.arange", "aten.ones", "aten.zeros")


class Value:
    """A tensor of a trace: shape, strides and dtype. Its last name is the one that calls refer to it by."""

    __slots__ = ("base", "dtype", "names", "shape", "strides", "trace")

    def __init__(
        self,
        trace: Trace,
        name: str,
        shape: tuple[int, ...],
        dtype: str,
        strides: tuple[int, ...] | None = None,
        base: Value | None = None,
    ) -> None:
        self.trace, self.names, self.shape, self.dtype, self.base = trace, [name], shape, dtype, base
        self.strides = contiguous(shape) if strides is None else strides

    def __del__(self) -> None:
        self.trace.release(self.names)

    @property
    def ref(self) -> Ref:
        """How a call names it."""
        return Ref(self.names[-1])

    # views

    def view(self, *shape: int) -> Value:
        """The same elements in another shape; one size may be -1."""
        return self._reshaped("view", shape)

    def reshape(self, *shape: int) -> Value:
        """Like `view`, but copied where the strides allow no view."""
        return self._reshaped("reshape", shape)

    def _reshaped(self, op: str, shape: tuple[int, ...]) -> Value:
        if -1 in shape:
            rest = prod(self.shape) // prod(d for d in shape if d != -1)
            shape = tuple(rest if d == -1 else d for d in shape)
        strides = viewed_strides(self.shape, self.strides, shape)
        return self.trace.call(op, {"self": self}, shape, self.dtype, strides, None if strides is None else self)

    def flatten(self, start: int, end: int) -> Value:
        """Axes ``start`` to ``end`` become one."""
        rank = len(self.shape)
        start, end = start % rank, end % rank
        shape = (*self.shape[:start], prod(self.shape[start : end + 1]), *self.shape[end + 1 :])
        return self._reshaped("flatten", shape)

    def transpose(self, first: int, second: int) -> Value:
        """Two axes change places."""
        order = list(range(len(self.shape)))
        order[first], order[second] = order[second], order[first]
        return self._permuted("transpose", order, {"dim0": first, "dim1": second})

    def permute(self, *order: int) -> Value:
        """The axes in another order."""
        return self._permuted("permute", order, {"dims": list(order)})

    def reversed(self) -> Value:
        """``x.T``: the axes in the opposite order."""
        return self._permuted("numpy_T", range(len(self.shape))[::-1], {})

    def _permuted(self, op: str, order: Sequence[int], arguments: dict[str, Any]) -> Value:
        shape = tuple(self.shape[i] for i in order)
        strides = tuple(self.strides[i] for i in order)
        return self.trace.call(op, {"self": self} | arguments, shape, self.dtype, strides, self)

    def unsqueeze(self, axis: int) -> Value:
        """A new axis of size 1."""
        axis %= len(self.shape) + 1
        stride = self.shape[axis] * self.strides[axis] if axis < len(self.shape) else 1
        shape = (*self.shape[:axis], 1, *self.shape[axis:])
        strides = (*self.strides[:axis], stride, *self.strides[axis:])
        return self.trace.call("unsqueeze", {"self": self, "dim": axis}, shape, self.dtype, strides, self)

    def slice(self, axis: int, start: int = 0, end: int | None = None, step: int = 1) -> Value:
        """``x[..., start:end:step]`` of one axis."""
        axis %= len(self.shape)
        if start == 0 and step == 1 and end in (None, self.shape[axis]):
            return self.alias()
        size = len(range(self.shape[axis])[start:end:step])
        shape = (*self.shape[:axis], size, *self.shape[axis + 1 :])
        strides = (*self.strides[:axis], self.strides[axis] * step, *self.strides[axis + 1 :])
        return self.trace.call("slice", {"self": self, "dim": axis, "step": step}, shape, self.dtype, strides, self)

    def select(self, axis: int) -> Value:
        """``x[..., 0]`` of one axis, which is gone."""
        shape = (*self.shape[:axis], *self.shape[axis + 1 :])
        strides = (*self.strides[:axis], *self.strides[axis + 1 :])
        return self.trace.call("select", {"self": self, "dim": axis}, shape, self.dtype, strides, self)

    def broadcast_to(self, *shape: int) -> Value:
        """Like `expand`."""
        return self.expand(*shape, op="broadcast_to")

    def expand(self, *shape: int, op: str = "expand") -> Value:
        """Axes of size 1 repeated, without a copy; -1 keeps a size."""
        lead = len(shape) - len(self.shape)
        old = (1,) * lead + self.shape
        sizes = tuple(o if d == -1 else d for d, o in zip(shape, old))
        strides = tuple(
            0 if i < lead or (o == 1 and d != 1) else self.strides[i - lead] for i, (d, o) in enumerate(zip(sizes, old))
        )
        return self.trace.call(op, {"self": self}, sizes, self.dtype, strides, self)

    def split(self, sizes: int | Sequence[int], axis: int) -> list[Value]:
        """Parts of one axis: of a size each, or of a list of sizes."""
        if isinstance(sizes, int):
            return self._parts("split", (sizes,) * (self.shape[axis] // sizes), axis)
        return self._parts("split_with_sizes", sizes, axis)

    def chunk(self, count: int, axis: int) -> list[Value]:
        """So many equal parts of one axis."""
        return self._parts("chunk", (self.shape[axis] // count,) * count, axis)

    def _parts(self, op: str, sizes: Sequence[int], axis: int) -> list[Value]:
        axis_from_0 = axis % len(self.shape)
        shapes = [(*self.shape[:axis_from_0], size, *self.shape[axis_from_0 + 1 :]) for size in sizes]
        return self.trace.call_many(op, {"self": self, "dim": axis}, shapes, self.dtype, self.strides, self)

    def as_complex(self) -> Value:
        """Pairs of numbers as complex ones."""
        strides = tuple(stride // 2 for stride in self.strides[:-1])
        return self.trace.call("view_as_complex", {"self": self}, self.shape[:-1], "complex64", strides, self)

    def as_real(self) -> Value:
        """Complex numbers as pairs."""
        strides = (*(2 * stride for stride in self.strides), 1)
        return self.trace.call("view_as_real", {"self": self}, (*self.shape, 2), "fp32", strides, self)

    def alias(self) -> Value:
        """``x[:]``: all of it."""
        return self.trace.call("alias", {"self": self}, self.shape, self.dtype, self.strides, self)

    def detach_(self) -> Value:
        """In place: the value gets another name."""
        return self._renamed("detach_")

    # copies and casts

    def _renamed(self, op: str, **arguments: Any) -> Value:
        """A call that returns its operand itself: from here on it goes by the name of the call."""
        self.names.append(self.trace.record(op, {"self": self.ref} | arguments, [(self.shape, self.dtype)])[0])
        return self

    def contiguous(self) -> Value:
        """A row-major copy; the value itself if it is row-major, and then nothing is called."""
        if is_contiguous(self.shape, self.strides):
            return self
        return self.trace.call("contiguous", {"self": self}, self.shape, self.dtype)

    def to(self, dtype: str) -> Value:
        """A cast, or the value itself where it has the dtype already."""
        if dtype == self.dtype:
            return self._renamed("to")
        return self.trace.call("to", {"self": self}, self.shape, dtype, _dense(self))

    def to_type_of(self, other: Value) -> Value:
        """``type_as``: a cast to the dtype of another value, or the value itself."""
        if other.dtype == self.dtype:
            return self._renamed("type_as", other=other.ref)
        return self.trace.call("type_as", {"self": self, "other": other}, self.shape, other.dtype, _dense(self))

    # arithmetic

    def _unary(self, op: str, dtype: str | None = None, **arguments: Any) -> Value:
        return self.trace.call(op, {"self": self, **arguments}, self.shape, dtype or self.dtype, _dense(self))

    def _binary(self, op: str, other: Value | float, dtype: str | None = None) -> Value:
        if not isinstance(other, Value):
            wide = "fp32" if isinstance(other, float) and _WIDTHS[self.dtype] < _WIDTHS["bf16"] else self.dtype
            return self._unary(op, dtype or wide, other=other)
        rank = max(len(self.shape), len(other.shape))
        shape = tuple(map(max, _padded(self.shape, rank), _padded(other.shape, rank)))
        wide = max(self.dtype, other.dtype, key=_WIDTHS.__getitem__)
        strides = next((_dense(v) for v in (self, other) if v.shape == shape), None)
        return self.trace.call(op, {"self": self, "other": other}, shape, dtype or wide, strides)

    def __add__(self, other: Value | float) -> Value:
        return self._binary("add", other)

    def __sub__(self, other: Value | float) -> Value:
        return self._binary("sub", other)

    def __mul__(self, other: Value | float) -> Value:
        return self._binary("mul", other)

    def __truediv__(self, other: Value | float) -> Value:
        return self._binary("div", other)

    __radd__, __rmul__ = __add__, __mul__

    def copy_(self, other: Value) -> None:
        """Overwrite it."""
        self._renamed("copy_", src=other.ref)

    def scatter_(self, axis: int, index: Value) -> None:
        """Write a number to positions of an axis."""
        self._renamed("scatter_", dim=axis, index=index.ref)

    def masked_fill(self, mask: Value) -> Value:
        """A number where the mask is true."""
        return self._unary("masked_fill", mask=mask)

    def where(self, condition: Value) -> Value:
        """The value where the condition holds, a number elsewhere."""
        arguments = {"condition": condition, "self": self}
        return self.trace.call("where", arguments, self.shape, self.dtype, _dense(self))

    def add_(self, other: Value) -> None:
        """``x += y``."""
        self._renamed("add_", other=other.ref)

    def divide_(self, other: Value) -> None:
        """``x /= y``."""
        self._renamed("div_", other=other.ref)

    def put_(self, index: Value, values: Value) -> None:
        """``x[index] = values``."""
        self._renamed("index_put_", indices=[index.ref], values=values.ref)

    def __neg__(self) -> Value:
        return self._unary("neg")

    def apply(self, op: str, dtype: str | None = None) -> Value:
        """An element-wise function, such as ``cos``."""
        return self._unary(op, dtype)

    def with_other(self, op: str, other: Value | float, dtype: str | None = None) -> Value:
        """An element-wise function of two operands, such as ``minimum``."""
        return self._binary(op, other, dtype)

    def reduce(self, op: str, axes: int | Sequence[int], *, keep: bool, dtype: str | None = None) -> Value:
        """A reduction over axes: ``mean`` or ``sum``."""
        removed = {axis % len(self.shape) for axis in ((axes,) if isinstance(axes, int) else axes)}
        shape = tuple(1 if i in removed else d for i, d in enumerate(self.shape) if keep or i not in removed)
        listed = [axes] if isinstance(axes, int) else list(axes)
        arguments = {"self": self, "dim": listed} | ({"keepdim": True} if keep else {})
        return self.trace.call(op, arguments, shape, dtype or self.dtype)

    def softmax(self, axis: int = -1, dtype: str | None = None) -> Value:
        """The softmax along an axis, in a dtype of its own if one is given."""
        return self._unary("softmax", dtype, dim=axis)

    def matmul(self, other: Value) -> Value:
        """The product of two stacks of matrices."""
        shape = (*self.shape[:-1], other.shape[-1])
        return self.trace.call("matmul", {"self": self, "other": other}, shape, self.dtype)

    def top(self, count: int) -> list[Value]:
        """The largest elements of the last axis, and their positions."""
        shape = (*self.shape[:-1], count)
        return self.trace.call_many("topk", {"self": self}, [shape, shape], (self.dtype, "int64"))

    def largest(self) -> list[Value]:
        """The largest element of the last axis, and its position."""
        shape = self.shape[:-1]
        return self.trace.call_many("max", {"self": self, "dim": -1}, [shape, shape], (self.dtype, "int64"))

    def gather(self, axis: int, index: Value) -> Value:
        """Elements of an axis by their positions."""
        return self.trace.call("gather", {"self": self, "dim": axis, "index": index}, index.shape, self.dtype)

    def dropout(self, share: float) -> Value:
        """Dropout; when the model runs for inference, it is called and does nothing."""
        return self._unary("dropout", p=share, train=self.trace.training)


def _padded(shape: tuple[int, ...], rank: int) -> tuple[int, ...]:
    return (1,) * (rank - len(shape)) + shape


def _dense(value: Value) -> tuple[int, ...]:
    """The strides of an element-wise result: without gaps, its axes in the order in which those of the operand lie."""
    if is_contiguous(value.shape, value.strides):
        return contiguous(value.shape)
    strides, step = [0] * len(value.shape), 1
    for axis in sorted(range(len(value.shape)), key=lambda i: (value.strides[i], -i)):
        strides[axis] = step
        step *= value.shape[axis]
    return tuple(strides)


def cat(values: Sequence[Value], axis: int) -> Value:
    """Join values along an axis; an empty one joins anything."""
    full = [value for value in values if value.shape != (0,)]
    first, along = full[0], axis % len(full[0].shape)
    size = sum(value.shape[along] for value in full)
    shape = (*first.shape[:along], size, *first.shape[along + 1 :])
    dtype = max((value.dtype for value in full), key=_WIDTHS.__getitem__)
    return first.trace.call("cat", {"tensors": list(values), "dim": axis}, shape, dtype)


class Trace:
    """The calls of a model, its parameters, and where it is in the tree of modules.

    ``order`` are the names of parts in the order in which the family registers them, which is that of its parameters.
    """

    def __init__(self, batch_size: int, dtype: str, *, training: bool, order: str) -> None:
        self.batch_size, self.dtype, self.training = batch_size, dtype, training
        self.calls: list[AtenCall] = []
        self.path = ""
        self._ranks = {name: rank for rank, name in enumerate(order.split())}
        self._tensors: dict[str, Tensor] = {}
        self.weights: dict[str, Value] = {}  # by their path
        self._buffers: set[str] = set()
        self._inputs: dict[str, Value] = {}
        self._constants: list[Value] = []
        self._counts: dict[str, int] = {}
        self._released: dict[str, int] = {}

    # modules

    def run(self, name: str, forward: Callable[..., Result], *arguments: Any) -> Result:
        """Run the forward pass of a part. Like ``nn.Module``, it holds the arguments until the part returns."""
        with self.within(name):
            return forward(self, *arguments)

    @contextmanager
    def within(self, name: str) -> Iterator[None]:
        """Within this context, calls and parameters belong to a part of the current module."""
        outer = self.path
        self.path = f"{outer}.{name}" if outer else name
        try:
            yield
        finally:
            self.path = outer

    def weight(self, name: str, *shape: int, kind: TensorKind = "parameter", dtype: str | None = None) -> Value:
        """A parameter or a buffer of the current module, made when it is first asked for."""
        path = f"{self.path}.{name}" if self.path else name
        if path not in self.weights:
            prefix = {"parameter": "p_", "buffer": "b_"}[kind]
            self.weights[path] = Value(self, prefix + path.replace(".", "_").lower(), shape, dtype or self.dtype)
            if kind == "buffer":
                self._buffers.add(path)
        return self.weights[path]

    def input(self, name: str, *shape: int, dtype: str = "int64") -> Value:
        """An input with the batch in front."""
        self._inputs[name] = Value(self, name, (self.batch_size, *shape), dtype)
        return self._inputs[name]

    def constant(self, *shape: int, dtype: str | None = None) -> Value:
        """A tensor that the program makes from numbers (``torch.tensor([])``)."""
        name = f"c_{self.path.replace('.', '_').lower()}_lifted_tensor_{len(self._constants)}"
        self._constants.append(Value(self, name, shape, dtype or self.dtype))
        return self._constants[-1]

    # calls

    def call(
        self,
        op: str,
        arguments: dict[str, Any],
        shape: tuple[int, ...],
        dtype: str,
        strides: tuple[int, ...] | None = None,
        base: Value | None = None,
    ) -> Value:
        """Record a call with one result."""
        name = self.record(op, _references(arguments), [(shape, dtype)])[0]
        return Value(self, name, shape, dtype, strides, base)

    def call_many(
        self,
        op: str,
        arguments: dict[str, Any],
        shapes: list[tuple[int, ...]],
        dtypes: str | tuple[str, ...],
        strides: tuple[int, ...] | None = None,
        base: Value | None = None,
    ) -> list[Value]:
        """Record a call with several results."""
        each = (dtypes,) * len(shapes) if isinstance(dtypes, str) else dtypes
        names = self.record(op, _references(arguments), list(zip(shapes, each)), several=True)
        return [Value(self, n, shape, dtype, strides, base) for n, shape, dtype in zip(names, shapes, each)]

    def record(
        self, op: str, arguments: dict[str, Any], results: list[tuple[tuple[int, ...], str]], *, several: bool = False
    ) -> list[str]:
        """Write down a call, and return the names of its results."""
        namespace, _, plain = op.rpartition("::")
        base = (plain.strip("_") if plain.startswith("__") else plain).lower()
        # FX gives out no name that means something in Python
        count = self._counts.get(base, int(base in _PYTHON))
        self._counts[base] = count + 1
        name = f"{base}_{count}" if count else base
        names = [f"{name}.{i}" for i in range(len(results))] if several else [name]
        for output, (shape, dtype) in zip(names, results):
            self._tensors[output] = Tensor(output, shape, dtype)
        self.calls.append(AtenCall(name, f"{namespace or 'aten'}.{plain}", arguments, tuple(names), self.path))
        return names

    def release(self, names: Iterable[str]) -> None:
        """Note that Python has freed a value."""
        for name in names:
            if name in self._tensors:
                self._released[name] = len(self.calls)

    # the graph

    @property
    def sets_dtypes(self) -> bool:
        """Whether the program casts, or makes floating-point tensors from nothing.

        The rule of `foretell.frontends.torch.tracing.precision.sets_dtypes`, on calls in place of nodes.
        """
        if any(value.shape and _WIDTHS[value.dtype] >= _WIDTHS["bf16"] for value in self._constants):
            return True
        for call in self.calls:
            tensor = self._tensors[call.outputs[0]]
            sets = call.target in _CASTS or (call.target in _SOURCES and tensor.shape and not call.arguments)
            if sets and tensor.is_float and tensor.elements:
                return True
        return False

    def graph(self, name: str, outputs: Iterable[Value], notes: Iterable[str] = ()) -> Graph:
        """Return the graph of all calls."""
        parameters = sorted(self.weights.keys() - self._buffers, key=self._rank)
        entries: list[tuple[Value, TensorKind, int | None]]
        entries = [(self.weights[path], "parameter", None) for path in parameters]
        entries += [(self.weights[path], "buffer", None) for path in sorted(self._buffers, key=self._rank)]
        entries += [(value, "constant", None) for value in self._constants]
        entries += [(value, "input", 0) for value in self._inputs.values()]
        tensors = {
            value.names[0]: Tensor(value.names[0], value.shape, value.dtype, kind, axis)
            for value, kind, axis in entries
        }
        program = AtenProgram(
            name,
            tuple(self.calls),
            tensors | self._tensors,
            tuple(self._inputs),
            tuple(dict.fromkeys(value.names[-1] for value in outputs)),
            self.batch_size,
            tuple(notes),
            released=dict.fromkeys(self._tensors, len(self.calls)) | self._released,
        )
        return assemble(program)

    def _rank(self, path: str) -> list[int]:
        """The place of a parameter among all: layers by their number, parts by the order of the family."""
        return [int(part) if part.isdigit() else self._ranks[part] for part in path.split(".")]


def _references(arguments: dict[str, Any]) -> dict[str, Any]:
    return {name: _reference(value) for name, value in arguments.items()}


def _reference(value: Any) -> Any:
    if isinstance(value, Value):
        return value.ref
    if isinstance(value, list):
        return [_reference(item) for item in value]
    return value
