"""Frontends: a row of layers of which some were left out of a trace, and the weights of a module by their names."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from foretell.graph import Tensor

_DTYPES = {"float64": "fp64", "float32": "fp32", "float16": "fp16", "bfloat16": "bf16"}


class UnequalError(Exception):
    """The layers that were traced do not prove what those that were left out are."""


def need(condition: bool, what: str) -> None:
    """Raise `UnequalError` if a condition does not hold."""
    if not condition:
        raise UnequalError(what)


@dataclass(frozen=True)
class Stack:
    """Layers that run one after another.

    Attributes:
        path: The module that has them, such as ``model.layers``.
        kinds: The kind of every layer of the whole model.
        kept: Those that were traced, by their number in the whole model.
    """

    path: str
    kinds: tuple[int, ...]
    kept: tuple[int, ...]

    def place(self, layer: int) -> tuple[int, int, int]:
        """The kinds of the layer before one, of it, and of the one behind it; -1 where there is none."""
        around = (-1, *self.kinds, -1)
        return around[layer], around[layer + 1], around[layer + 2]

    def templates(self) -> list[int]:
        """For every layer of the whole model the traced one that it is written from."""
        traced: dict[tuple[int, int, int], list[int]] = {}
        for position, layer in enumerate(self.kept):
            traced.setdefault(self.place(layer), []).append(position)
        positions = {layer: position for position, layer in enumerate(self.kept)}
        found = []
        for layer in range(len(self.kinds)):
            like = traced.get(self.place(layer), [])
            need(layer in positions or len(like) > 1, f"layer {layer} of {self.path} is like no two that were traced")
            found.append(positions.get(layer, like[-1]))
        return found


@dataclass(frozen=True)
class Weight:
    """A parameter or buffer of a module, and the weight that it shares its elements with, if that comes first."""

    path: str
    tensor: Tensor
    first: str = ""


def list_weights(module: Any) -> list[Weight]:
    """The weights of a module as ``torch.export`` lists them: parameters, then buffers, by their paths."""
    seen: dict[int, str] = {}
    weights = []
    named: tuple[tuple[Any, str, Iterable[tuple[str, Any]]], ...] = (
        ("parameter", "p_", module.named_parameters(remove_duplicate=False)),
        ("buffer", "b_", module.named_buffers(remove_duplicate=False)),
    )
    for kind, prefix, entries in named:
        for path, value in entries:
            name = prefix + name_of_path(path)
            dtype = str(value.dtype).removeprefix("torch.")
            first = seen.setdefault(id(value), name)
            tensor = Tensor(name, tuple(value.shape), _DTYPES.get(dtype, dtype), kind)
            weights.append(Weight(path, tensor, "" if first == name else first))
    return weights


def name_of_path(path: str) -> str:
    """A module path as the names of its weights and constants have it."""
    return re.sub(r"[^a-zA-Z0-9]", "_", path).lower()
