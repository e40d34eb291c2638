"""Frontends: what is known of a family of models: its classes, the keys of its configuration, its forward pass."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from foretell.frontends.huggingface.written.settings import Settings
from foretell.frontends.huggingface.written.values import Trace, Value


@dataclass(frozen=True)
class Sizes:
    """What a run reads: so many tokens, after ``past`` tokens in a cache, and ``source`` tokens of an encoder."""

    mode: str
    length: int
    past: int = 0
    source: int = 0

    @property
    def cached(self) -> bool:
        """Whether the run has a cache."""
        return self.mode in ("prefill", "decode")


@dataclass(frozen=True)
class Family:
    """A model_type of transformers.

    Attributes:
        classes: The classes whose forward pass is written; the first is built where a configuration names none.
        defaults: The keys that the graph depends on, with transformers' defaults.
        ignored: Other keys of the configuration that it does not depend on.
        complete: Checks the settings and fills in what follows from them; gets the values of the file and the sizes.
        run: The forward pass; returns the outputs.
        order: The parts of the model in the order in which they are registered.
        generates: Whether it can run with a cache.
        is_encoder_decoder: Whether an encoder reads a source.
        positions: The key with the rows of a table of learned positions; empty if there is no such table.
    """

    classes: tuple[str, ...]
    defaults: Mapping[str, Any]
    ignored: tuple[str, ...]
    complete: Callable[[Settings, Mapping[str, Any], Sizes], None]
    run: Callable[[Trace, Settings, Sizes], list[Value]]
    order: str
    generates: bool = True
    positions: str = ""
    is_encoder_decoder: bool = False
