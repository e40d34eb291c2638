"""frontends: what a user asks of a model: its inputs, its mode, whether its code may run."""

import re
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any, Protocol

from foretell.errors import InputError
from foretell.graph import Graph

MODES = ("inference", "training", "prefill", "decode")
MAX_ELEMENTS = 2**40
_SHAPE = re.compile(r"^(?:(?P<name>[^=]+)=)?(?P<shape>scalar|\d+(?:[x,×]\d+)*)(?::(?P<dtype>\w+))?$")


@dataclass(frozen=True)
class InputSpec:
    """One input as the user wrote it: ``3x224x224``, ``input_ids=128:int64``. The batch is not part of the shape."""

    name: str | None
    shape: tuple[int, ...]
    dtype: str | None = None


def parse_inputs(texts: Iterable[str]) -> tuple[InputSpec, ...]:
    """Read ``--input`` options.

    >>> parse_inputs(["3x224x224", "mask=128:int64"])
    (InputSpec(name=None, shape=(3, 224, 224), dtype=None), InputSpec(name='mask', shape=(128,), dtype='int64'))
    """
    specs = []
    for text in texts:
        match = _SHAPE.match(text.strip())
        if not match:
            raise InputError(f"Cannot read the input {text!r}. Write [NAME=]3x224x224[:DTYPE], without the batch, e.g. --input 3x224x224")
        sizes = () if match["shape"] == "scalar" else tuple(int(d) for d in re.split("[x,×]", match["shape"]))
        product = 1
        for d in sizes:
            product *= d
        if any(d < 1 for d in sizes) or product > MAX_ELEMENTS:
            raise InputError(f"The input {text!r} has an impossible size: every dimension must be 1 or more, and at most {MAX_ELEMENTS} elements in all.")
        specs.append(InputSpec(match["name"], sizes, match["dtype"]))
    return tuple(specs)


@dataclass(frozen=True)
class ModelRequest:
    """A model and how it is to be read."""

    source: Any
    inputs: tuple[InputSpec, ...] = ()
    mode: str = "inference"
    dtype: str = "fp32"
    context: int | None = None
    trust: bool = False
    allow_unknown: bool = False

    def with_source(self, source: Any) -> "ModelRequest":
        """The same request for another source."""
        return replace(self, source=source)


class Frontend(Protocol):
    """Turns one kind of model into a graph."""

    def load(self, request: ModelRequest) -> Graph:
        """Read the model. The batch size of the graph is the front-end's choice; `Graph.with_batch` sets another."""
        ...

    def fingerprint(self, request: ModelRequest) -> str | None:
        """What the graph depends on, as text to be hashed; None where the result must not be cached."""
        ...


def image_shape(request: ModelRequest, default: tuple[int, ...]) -> tuple[int, ...]:
    """The one image that a vision model takes: ``3x224x224``, ``224x224`` or ``224``."""
    if not request.inputs:
        return default
    if len(request.inputs) > 1:
        raise InputError(f"This model takes one input, {len(request.inputs)} were given.")
    shape = request.inputs[0].shape
    if len(shape) == 1 and len(default) == 3:
        return (default[0], shape[0], shape[0])
    if len(shape) == len(default) - 1:
        return (default[0], *shape)
    if len(shape) != len(default):
        raise InputError(f"The input {'x'.join(map(str, shape))} has {len(shape)} dimensions; this model takes {'x'.join(map(str, default))} (without the batch).")
    return shape
