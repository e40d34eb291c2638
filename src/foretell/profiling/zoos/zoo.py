"""Profiling: the zoo interface: a zoo lists architectures as specs, and builds any of them from its spec."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from foretell.profiling.campaign.plan import Part
from foretell.profiling.workload import Workload


@dataclass(frozen=True)
class Entry:
    """One architecture of a zoo.

    ``flexible`` models accept images of other sizes. ``parameters`` and ``cache_bytes_per_token`` are estimates for
    language models, whose cost is known before they are built.
    """

    spec: str
    family: str
    input_shape: tuple[int, ...]
    flexible: bool = False
    parameters: float = 0.0
    cache_bytes_per_token: float = 0.0
    max_sequence: int = 0


@dataclass(frozen=True)
class Inputs:
    """The inputs of one forward pass."""

    args: tuple[Any, ...] = ()
    kwargs: tuple[tuple[str, Any], ...] = ()


@dataclass(frozen=True)
class Built:
    """A model without weights, and how to make its inputs: ``make_inputs(workload, device, dtype)``."""

    model: Any
    make_inputs: Callable[[Workload, str, Any], Inputs]
    cast_buffers: bool = True


class Zoo(Protocol):
    """A source of architectures."""

    def entries(self, part: Part, seed: int) -> Sequence[Entry]:
        """The architectures that ``part`` may draw from, in a fixed order."""
        ...

    def build(self, spec: str) -> Built:
        """The architecture of a spec; its large weights are not initialised."""
        ...


def image_inputs(workload: Workload, device: str, dtype: Any) -> Inputs:
    """One dense tensor of standard normal numbers."""
    import torch

    return Inputs((torch.randn(workload.batch_size, *workload.input_shape, device=device).to(dtype),))
