"""Profiling: networks of a zoo by name: the field of each, what it is fed, and its sizes.

A file of networks registers them as it is imported.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch import nn

Sizes = Mapping[str, int]


class Module(nn.Module):  # type: ignore[misc]
    """An ``nn.Module`` that may be derived from under strict typing."""


@dataclass(frozen=True)
class Input:
    """One sample of a tensor that a network is fed: whole numbers under ``below``, unit normal ones where that is 0."""

    shape: tuple[int, ...]
    below: int = 0


@dataclass(frozen=True)
class Network:
    """One architecture: ``make(**sizes)`` builds it, ``inputs(sizes)`` says what it is fed."""

    name: str
    field: str
    make: Callable[..., Any]
    inputs: Callable[[Sizes], Sequence[Input]]
    sizes: tuple[Sizes, ...]


_networks: dict[str, Network] = {}


def numbers(*shape: int) -> Input:
    """An input of unit normal numbers."""
    return Input(shape)


def integers(below: int, *shape: int) -> Input:
    """An input of whole numbers from 0 to ``below`` - 1: tokens, rows of a table, nodes of a graph."""
    return Input(shape, below)


def network(
    field: str, name: str, inputs: Callable[[Sizes], Sequence[Input]], *sizes: str
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Register the module below under ``name``; its constructor takes any of ``sizes``, such as ``width=64&size=32``.

    A size may shape the input alone: the constructor takes it all the same.
    """

    def register(make: Callable[..., Any]) -> Callable[..., Any]:
        if name in _networks:
            raise ValueError(f"Two networks are called {name!r}.")
        _networks[name] = Network(name, field, make, inputs, tuple(map(_read_sizes, sizes)))
        return make

    return register


def _read_sizes(text: str) -> Sizes:
    return {key: int(value) for key, _, value in (pair.partition("=") for pair in text.split("&"))}


def registered() -> Mapping[str, Network]:
    """The networks of all files imported so far, by name."""
    return dict(sorted(_networks.items()))
