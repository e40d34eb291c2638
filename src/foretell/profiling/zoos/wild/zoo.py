"""Profiling: the wild zoo's entries, and which of its fields teach and which only judge."""

import importlib
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from foretell.errors import InputError, UnknownNameError
from foretell.profiling.campaign.plan import Part
from foretell.profiling.workload import Spec, Workload, parse_spec
from foretell.profiling.zoos.zoo import Built, Entry, Inputs
from foretell.registry import did_you_mean

if TYPE_CHECKING:
    from foretell.profiling.zoos.named_networks import Network

_FILES = (
    "autoencoders",
    "decisions",
    "diffusion",
    "graphs",
    "mixers",
    "pictures",
    "scans",
    "sequences",
    "simulations",
    "speech",
    "towers",
    "vision",
)

JUDGING_FIELDS = frozenset(
    {
        "audio",
        "detection",
        "games",
        "linear-attention",
        "medicine",
        "multimodal",
        "physics",
        "points",
        "tabular",
    }
)
"""Fields that no predictor may learn from: they tell how well it does on a kind of network that nobody measured.

Whole fields, about a third of the networks; all others teach. A family of the zoo is ``wild-FIELD``.
"""


def judges(family: str) -> bool:
    """Whether a family only judges.

    >>> judges("wild-games"), judges("wild-diffusion"), judges("resnet")
    (True, False, False)
    """
    return family.removeprefix("wild-") in JUDGING_FIELDS and family.startswith("wild-")


def networks() -> "Mapping[str, Network]":
    """All wild networks, by name."""
    from foretell.profiling.zoos.named_networks import registered

    for file in _FILES:
        importlib.import_module(f"foretell.profiling.zoos.wild.{file}")
    return registered()


class WildZoo:
    """``wild:NAME?size=value``."""

    def prepare(self) -> None:
        """Import what a build needs, before initialisation is made lazy."""
        networks()

    def entries(self, part: Part, seed: int) -> Sequence[Entry]:
        """One entry a network and size; the family is the field."""
        found = []
        for network in networks().values():
            for sizes in network.sizes:
                first = network.inputs(sizes)[0]
                found.append(Entry(str(Spec("wild", network.name, sizes)), f"wild-{network.field}", first.shape))
        return [entry for entry in found if not part.families or entry.family in part.families]

    def build(self, spec: str) -> Built:
        """The network that ``spec`` describes, in eval mode."""
        parsed, known = parse_spec(spec), networks()
        if parsed.name not in known:
            raise UnknownNameError(f"Unknown wild network {parsed.name!r}.{did_you_mean(parsed.name, known)}")
        network = known[parsed.name]
        try:
            sizes = {key: int(value) for key, value in parsed.arguments.items()}
            model = network.make(**sizes)
            network.inputs(sizes)
        except (KeyError, TypeError, ValueError) as error:
            example = Spec("wild", network.name, network.sizes[0])
            raise InputError(f"Cannot make {spec}: {error}. For example: {example}") from error

        def make_inputs(workload: Workload, device: str, dtype: Any) -> Inputs:
            import torch

            first, *others = network.inputs(sizes)
            tensors = []
            for each, shape in ((first, workload.input_shape), *((other, other.shape) for other in others)):
                full = (workload.batch_size, *shape)
                if each.below:
                    tensors.append(torch.randint(0, each.below, full, device=device))
                else:
                    tensors.append(torch.randn(full, device=device).to(dtype))
            return Inputs(tuple(tensors))

        return Built(model.eval(), make_inputs)
