"""Profiling: a model that is ready to be measured: a torch module or an ONNX file."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from foretell.profiling.zoos.zoo import Built


@dataclass(frozen=True)
class Source:
    """A model that is ready to be measured: a torch module in ``built``, or the path of an ``onnx_file``.

    ``spec`` is its name if that differs from the requested one. ``feeds`` are the shapes of a file's inputs by name.
    """

    built: Built | None
    input_shape: tuple[int, ...]
    family: str = ""
    onnx_file: str = ""
    spec: str = ""
    feeds: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
