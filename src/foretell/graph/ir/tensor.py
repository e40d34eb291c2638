"""Graph: a tensor is a name, a shape, a dtype and a kind (input, parameter, …). It never holds values."""

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from itertools import count
from operator import attrgetter
from typing import Any, Literal, NamedTuple

from foretell.errors import GraphError, InputError
from foretell.frozen import dataclass
from foretell.registry import did_you_mean

TensorKind = Literal["input", "parameter", "buffer", "constant", "activation"]

DTYPE_BITS = {
    "fp64": 64, "fp32": 32, "fp16": 16, "bf16": 16, "fp8": 8, "fp4": 4,
    "int64": 64, "int32": 32, "int16": 16, "int8": 8, "int4": 4, "int2": 2,
    "uint64": 64, "uint32": 32, "uint16": 16, "uint8": 8, "uint4": 4, "uint2": 2,
    "bool": 8, "complex64": 64, "complex128": 128, "string": 128,
}  # fmt: skip
MAX_RANK = 64  # as in PyTorch and NumPy
FLOAT_DTYPES = frozenset({"fp64", "fp32", "fp16", "bf16", "fp8", "fp4"})
_DTYPE_ALIASES = {
    "float32": "fp32", "float": "fp32", "f32": "fp32", "tf32": "fp32", "float64": "fp64", "double": "fp64",
    "float16": "fp16", "half": "fp16", "f16": "fp16", "bfloat16": "bf16", "float8": "fp8",
    "float8_e4m3fn": "fp8", "float8_e5m2": "fp8",
}  # fmt: skip


def parse_dtype(text: str) -> str:
    """Return the canonical name of a floating-point dtype, whichever of its usual names is given.

    >>> parse_dtype("float16"), parse_dtype("BF16")
    ('fp16', 'bf16')
    """
    name = text.strip().lower().removeprefix("torch.")
    name = _DTYPE_ALIASES.get(name, name)
    if name not in FLOAT_DTYPES:
        raise InputError(f"Unknown dtype {text!r}.{did_you_mean(name, FLOAT_DTYPES)}")
    return name


@dataclass(frozen=True, slots=True)
class Tensor:
    """One value that flows through a graph.

    ``batch_axis`` is the axis that grows with the batch size, or None where the tensor does not depend on it.

    >>> Tensor("x", (2, 3, 224, 224), "fp16").bytes
    602112
    """

    name: str
    shape: tuple[int, ...]
    dtype: str = "fp32"
    kind: TensorKind = "activation"
    batch_axis: int | None = None

    @property
    def elements(self) -> int:
        """The number of elements."""
        return math.prod(self.shape)

    @property
    def bytes(self) -> int:
        """The size in bytes when stored densely."""
        return -(-self.elements * DTYPE_BITS[self.dtype] // 8)

    @property
    def is_float(self) -> bool:
        """Whether the dtype is a floating-point one, which ``model.to(dtype)`` would change."""
        return self.dtype in FLOAT_DTYPES

    @property
    def is_differentiable(self) -> bool:
        """Whether a gradient can flow to it: floating-point and complex numbers."""
        return self.is_float or self.dtype.startswith("complex")

    def validate(self) -> None:
        """Raise `GraphError` if the dtype, the shape or the batch axis is impossible."""
        if self.dtype not in DTYPE_BITS:
            raise GraphError(f"Tensor {self.name!r} has the unknown dtype {self.dtype!r}.")
        if len(self.shape) > MAX_RANK:
            raise GraphError(f"Tensor {self.name!r} has {len(self.shape)} axes; at most {MAX_RANK} are allowed.")
        if any(not isinstance(d, int) or d < 0 for d in self.shape):
            raise GraphError(
                f"Tensor {self.name!r} has the impossible shape {self.shape}: dimensions must be 0 or more."
            )
        if self.batch_axis is not None and not 0 <= self.batch_axis < len(self.shape):
            raise GraphError(
                f"Tensor {self.name!r} of shape {self.shape} cannot have its batch on axis {self.batch_axis}."
            )


_type_of = attrgetter("shape", "dtype", "kind", "batch_axis")


class TensorType(NamedTuple):
    """What tensors have in common that differ only in their names.

    A fixed one keeps its dtype when the model is cast.
    """

    shape: tuple[int, ...]
    dtype: str
    kind: TensorKind
    batch_axis: int | None = None
    is_fixed: bool = False

    @property
    def elements(self) -> int:
        """The number of elements."""
        return math.prod(self.shape)


@dataclass(frozen=True, slots=True)
class TensorClasses:
    """The tensors of a graph by class: those of a class differ only in their names.

    A network has many tensors and few classes, so that another batch size or dtype changes the types of classes alone.

    >>> classes = TensorClasses.of({name: Tensor(name, (2, 3)) for name in "ab"})
    >>> classes.numbers, [type.shape for type in classes.types]
    ({'a': 0, 'b': 0}, [(2, 3)])
    """

    numbers: Mapping[str, int]  # the class of each tensor, in the order of the graph
    types: list[TensorType]
    fixed: frozenset[str] = frozenset()

    @classmethod
    def of(cls, tensors: Mapping[str, Tensor], fixed: frozenset[str] = frozenset()) -> "TensorClasses":
        """The classes of some tensors, of which ``fixed`` keep their dtype."""
        keys: Iterable[tuple[Any, ...]] = map(_type_of, tensors.values())
        if fixed:
            keys = [(*key, name in fixed) for name, key in zip(tensors, keys, strict=True)]
        places: defaultdict[tuple[Any, ...], int] = defaultdict(count().__next__)  # a new key gets the next number
        numbers = dict(zip(tensors, map(places.__getitem__, keys), strict=True))
        return cls(numbers, [TensorType(*key) for key in places], fixed)

    def with_types(self, types: list[TensorType]) -> "TensorClasses":
        """The same tensors with other types of their classes."""
        return TensorClasses(self.numbers, types, self.fixed)

    def counts(self) -> list[int]:
        """The number of tensors of each class."""
        counted = Counter(self.numbers.values())
        return [counted[number] for number in range(len(self.types))]


class ClassedTensors(Mapping[str, Tensor]):
    """Tensors that are known by their classes; each is made when it is asked for."""

    __slots__ = ("_made", "classes")

    def __init__(self, classes: TensorClasses) -> None:
        self.classes = classes
        self._made: dict[str, Tensor] = {}

    def __getitem__(self, name: str) -> Tensor:
        tensor = self._made.get(name)
        if tensor is None:
            shape, dtype, kind, axis, _ = self.classes.types[self.classes.numbers[name]]
            tensor = self._made[name] = Tensor(name, shape, dtype, kind, axis)
        return tensor

    def __contains__(self, name: object) -> bool:
        return name in self.classes.numbers

    def __iter__(self) -> Iterator[str]:
        return iter(self.classes.numbers)

    def __len__(self) -> int:
        return len(self.classes.numbers)

    def __reduce__(self) -> tuple[Any, ...]:
        return dict, (dict(self),)

    def __repr__(self) -> str:
        return repr(dict(self))
