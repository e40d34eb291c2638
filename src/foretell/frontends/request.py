"""Frontends: a request to convert a model: the model, its inputs and mode, and whether its code may run."""

import math
import re
from collections.abc import Iterable
from dataclasses import replace
from typing import Any, Protocol

from foretell.errors import InputError
from foretell.frozen import dataclass
from foretell.graph import Graph
from foretell.graph.ir.tensor import DTYPE_BITS
from foretell.processes.limits import DEFAULT_MEMORY_GIB, DEFAULT_TIMEOUT_S, Limits
from foretell.registry import did_you_mean

MODES = ("inference", "training", "prefill", "decode")
MAX_ELEMENTS = 2**40
_SHAPE = re.compile(
    r"^(?:(?P<name>[^=]+)=)?(?P<shape>scalar|[0-9]{1,18}(?:[x,×][0-9]{1,18})*)(?P<whole>!)?(?::(?P<dtype>\w+))?$"
)
_DTYPE_ALIASES = {
    "float": "fp32", "float16": "fp16", "float32": "fp32", "float64": "fp64", "double": "fp64", "half": "fp16",
    "bfloat16": "bf16", "int": "int64", "long": "int64",
}  # fmt: skip


@dataclass(frozen=True)
class InputSpec:
    """One input as the user wrote it, such as ``3x224x224`` or ``input_ids=128:int64``.

    The shape has no batch axis: the batch is put in front of it. With ``!`` behind it (``x=2708x1433!``) it is
    ``whole``: the input has no batch, and stays as it is at every batch size.
    """

    name: str | None
    shape: tuple[int, ...]
    dtype: str | None = None
    whole: bool = False

    def __str__(self) -> str:
        return ("x".join(map(str, self.shape)) or "scalar") + ("!" if self.whole else "")

    def sizes(self, batch_size: int) -> tuple[int, ...]:
        """The shape of the input at a batch size."""
        return self.shape if self.whole else (batch_size, *self.shape)


def parse_inputs(texts: Iterable[str]) -> tuple[InputSpec, ...]:
    """Parse ``--input`` options.

    >>> parse_inputs(["mask=128:int64"])
    (InputSpec(name='mask', shape=(128,), dtype='int64', whole=False),)
    >>> [spec.whole for spec in parse_inputs(["3x224x224", "x=2708x1433!"])]
    [False, True]
    """
    specs = []
    for text in texts:
        match = _SHAPE.match(text.strip())
        if not match:
            raise InputError(
                f"Cannot read the input {text[:80]!r}. "
                "Write [NAME=]3x224x224[:DTYPE], without the batch, such as --input 3x224x224; "
                "an input that has no batch ends with !, such as --input x=2708x1433!"
            )
        sizes = () if match["shape"] == "scalar" else tuple(int(d) for d in re.split("[x,×]", match["shape"]))
        if any(d < 1 for d in sizes) or math.prod(sizes) > MAX_ELEMENTS:
            raise InputError(
                f"The input {text!r} has an impossible size: every dimension must be 1 or more, "
                f"and at most {MAX_ELEMENTS} elements in all."
            )
        specs.append(InputSpec(match["name"], sizes, _parse_dtype(match["dtype"]), match["whole"] is not None))
    names = [s.name for s in specs if s.name is not None]
    duplicate = next((n for n in names if names.count(n) > 1), None)
    if duplicate is not None:
        raise InputError(f"The input {duplicate!r} is given twice.")
    return tuple(specs)


def _parse_dtype(text: str | None) -> str | None:
    if text is None:
        return None
    name = _DTYPE_ALIASES.get(text.lower(), text.lower())
    if name not in DTYPE_BITS or name == "string":
        raise InputError(f"Unknown input dtype {text!r}.{did_you_mean(name, DTYPE_BITS)}")
    return name


@dataclass(frozen=True)
class ModelRequest:
    """A model, and the options for reading it; limits that are None have their defaults."""

    source: Any
    inputs: tuple[InputSpec, ...] = ()
    mode: str = "inference"
    dtype: str = "fp32"
    context: int | None = None
    trust: bool = False
    allow_unknown: bool = False
    as_written: bool = False
    memory_limit_gib: float | None = None
    timeout_s: float | None = None

    def check_limits(self) -> None:
        """Refuse limits that nothing could be read within."""
        for name, value, default in (
            ("--memory-limit", self.memory_limit_gib, DEFAULT_MEMORY_GIB),
            ("--timeout", self.timeout_s, DEFAULT_TIMEOUT_S),
        ):
            if value is not None and not 0 < value < math.inf:
                raise InputError(f"Got {name} {value:g}; it must be a number above 0. The default is {default:g}.")

    @property
    def limits(self) -> Limits:
        """What reading a file may take, in a process of its own."""
        return Limits(
            DEFAULT_MEMORY_GIB if self.memory_limit_gib is None else self.memory_limit_gib,
            DEFAULT_TIMEOUT_S if self.timeout_s is None else self.timeout_s,
        )

    @property
    def has_limits(self) -> bool:
        """Whether the user gave a limit. Then no file is read without one."""
        return self.memory_limit_gib is not None or self.timeout_s is not None

    def with_source(self, source: Any) -> "ModelRequest":
        """The same request for another source."""
        return replace(self, source=source)


class Frontend(Protocol):
    """Turns one kind of model into a graph."""

    def load(self, request: ModelRequest) -> Graph:
        """Read the model. The front-end chooses the batch size of the graph; `Graph.with_batch` changes it."""
        ...

    def fingerprint(self, request: ModelRequest) -> str | None:
        """Return everything that the graph depends on, as text to be hashed; None if it must not be cached."""
        ...


def match_inputs(requested: tuple[InputSpec, ...], names: list[str]) -> dict[str, InputSpec]:
    """Assign each specification to an input: by its name, or by its position among the inputs without one."""
    listed = ", ".join(names[:12]) + (" …" if len(names) > 12 else "") or "none"
    specs: dict[str, InputSpec] = {}
    for spec in requested:
        if spec.name is not None and spec.name not in names:
            raise InputError(f"The model has no input {spec.name!r}. Its inputs: {listed}.")
        if spec.name is not None:
            specs[spec.name] = spec
    unnamed = [s for s in requested if s.name is None]
    free = [n for n in names if n not in specs]
    if len(unnamed) > len(free):
        raise InputError(f"{len(requested)} inputs were given; the model has {len(names)}: {listed}.")
    specs.update(zip(free, unnamed))
    return specs


def refuse_whole(request: ModelRequest, reason: str) -> None:
    """Refuse an input without a batch where every input has one."""
    spec = next((s for s in request.inputs if s.whole), None)
    if spec is not None:
        raise InputError(f"{reason}, which have a batch: leave out the ! of --input {spec}")


def image_shape(request: ModelRequest, default: tuple[int, ...]) -> tuple[int, ...]:
    """Return the shape of a vision model's image; the user may write ``3x224x224``, ``224x224`` or ``224``."""
    if not request.inputs:
        return default
    if len(request.inputs) > 1:
        raise InputError(f"This model takes one input, but {len(request.inputs)} were given.")
    refuse_whole(request, "This model takes images")
    shape = request.inputs[0].shape
    if len(shape) == 1 and len(default) == 3:
        return (default[0], shape[0], shape[0])
    if len(shape) == len(default) - 1:
        return (default[0], *shape)
    if len(shape) != len(default):
        raise InputError(
            f"The input {request.inputs[0]} has {len(shape)} dimensions; "
            f"this model takes {'x'.join(map(str, default))} (without the batch)."
        )
    return shape
