"""Graph: a node is one operator of a model, in the vocabulary of ONNX, and the module that it comes from."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from math import isfinite
from typing import TYPE_CHECKING

from foretell.frozen import dataclass

if TYPE_CHECKING:
    from foretell.graph.ir.graph import Graph

Attribute = int | float | str | tuple[int, ...] | tuple[float, ...] | tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Node:
    """An operator with its inputs and outputs, which are names of tensors; "" is an optional input that is absent.

    ``module`` is the path of the layer that the node belongs to (``layer1.0.conv1``). Nodes with the same non-empty
    ``origin`` come from one operator of the framework, ``origin_op``, and run as one: attention is exported as several
    nodes. ``bodies`` are the sub-graphs of If, Loop and Scan.
    """

    name: str
    op: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    attributes: Mapping[str, Attribute] = field(default_factory=dict)
    domain: str = ""
    module: str = ""
    origin: str = ""
    origin_op: str = ""
    bodies: tuple[Graph, ...] = ()

    def integer(self, name: str, default: int) -> int:
        """An attribute that is an integer, or the default."""
        value = self.attributes.get(name, default)
        return int(value) if isinstance(value, int | float) and isfinite(value) else default

    def integers(self, name: str) -> tuple[int, ...] | None:
        """An attribute that is a list of integers, or None if it is absent."""
        value = self.attributes.get(name)
        if isinstance(value, int):
            return (value,)
        if isinstance(value, tuple) and all(isinstance(v, int) for v in value):
            return value  # type: ignore[return-value]
        return None

    def text(self, name: str, default: str = "") -> str:
        """An attribute that is a string, or the default."""
        value = self.attributes.get(name, default)
        return value if isinstance(value, str) else default
