"""Profiling: a model that is ready to be measured, whoever built it."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from foretell.profiling.zoos.zoo import Built


@dataclass(frozen=True)
class Source:
    """A model that is ready to be measured: ``onnx_file`` is a path where it is no torch module.

    ``spec`` names it where that differs from what was asked for. ``feeds`` are the shapes of a file's inputs by name.
    """

    built: Built | None
    input_shape: tuple[int, ...]
    family: str = ""
    onnx_file: str = ""
    spec: str = ""
    feeds: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
