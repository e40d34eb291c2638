"""Profiling: where models come from. A zoo lists architectures as specs and builds any of them again from its spec.

>>> sorted(ZOOS)
['hf', 'llm', 'synthetic', 'timm', 'torchvision', 'wild']
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from foretell.profiling.plan import Part
from foretell.profiling.workload import Workload, parse_spec
from foretell.registry import Registry

ZOOS = Registry(
    "zoo",
    {
        "timm": "foretell.profiling.zoo_timm:TimmZoo",
        "torchvision": "foretell.profiling.zoo_torchvision:TorchvisionZoo",
        "hf": "foretell.profiling.zoo_hf:EncoderZoo",
        "llm": "foretell.profiling.zoo_hf:CausalZoo",
        "synthetic": "foretell.profiling.zoo_synthetic:SyntheticZoo",
        "wild": "foretell.profiling.zoos.wild.zoo:WildZoo",
    },
)


@dataclass(frozen=True)
class Entry:
    """One architecture of a zoo.

    ``flexible`` models take images of other sizes. ``parameters`` and ``cache_bytes_per_token`` are estimates for
    language models, whose cost can be told before they are built.
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
    """What one forward pass is given."""

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
        """The architecture again, its large weights untouched."""
        ...


def load_zoo(name: str) -> Zoo:
    """The zoo called ``name``."""
    zoo: Zoo = ZOOS.load(name)()
    return zoo


def build(spec: str) -> Built:
    """Build the model that ``spec`` names; its weights are drawn later, on the device."""
    from foretell.profiling.skeleton import lazy_initialisation

    zoo = load_zoo(parse_spec(spec).zoo)
    prepare = getattr(zoo, "prepare", None)
    if prepare is not None:
        prepare()
    with lazy_initialisation():
        return zoo.build(spec)


def image_inputs(workload: Workload, device: str, dtype: Any) -> Inputs:
    """One dense tensor of unit normal numbers."""
    import torch

    return Inputs((torch.randn(workload.batch_size, *workload.input_shape, device=device).to(dtype),))
