"""Frontends: notices activation checkpointing (``torch.utils.checkpoint``), of which an export keeps nothing.

A checkpointed part keeps its inputs alone and computes its forward pass again when the backward pass needs it. The
trace runs straight through, so that a training step is told with all activations and without the second pass.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

NOTE = (
    "torch.utils.checkpoint is not counted: a step takes less memory than told here, because parts keep only their "
    "inputs, and more time, by at most one forward pass."
)


@contextmanager
def watch_checkpoints() -> Iterator[list[str]]:
    """Within this context, the list grows when a part of a model is checkpointed.

    Models import ``checkpoint`` itself by name, so what it calls is watched: one function for each of its two kinds.
    """
    import torch.utils.checkpoint as checkpoints

    seen: list[str] = []

    def watched(inner: Any) -> Any:
        def call(*args: Any, **kwargs: Any) -> Any:
            seen.append("checkpoint")
            return inner(*args, **kwargs)

        return call

    reentrant, other = checkpoints.CheckpointFunction, "_checkpoint_without_reentrant_generator"
    with (
        mock.patch.object(reentrant, "apply", watched(reentrant.apply)),
        mock.patch.object(checkpoints, other, watched(getattr(checkpoints, other))),
    ):
        yield seen
