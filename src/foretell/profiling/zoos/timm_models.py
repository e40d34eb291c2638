"""Profiling: all architectures of timm, with random weights."""

from collections.abc import Sequence
from typing import Any

from foretell.optional import repair_torchvision, require
from foretell.profiling.campaign.plan import Part
from foretell.profiling.workload import parse_spec
from foretell.profiling.zoos.zoo import Built, Entry, image_inputs


def _timm() -> Any:
    repair_torchvision()
    return require("timm", extra="vision", purpose="Profiling timm's models")


class TimmZoo:
    """``timm:NAME``, built with ``pretrained=False``."""

    def prepare(self) -> None:
        """Import the library before initialisation is made lazy."""
        _timm()

    def entries(self, part: Part, seed: int) -> Sequence[Entry]:  # noqa: ARG002 one zoo takes a seed, all have the signature
        """One entry for each model; its family is timm's module."""
        timm = _timm()
        entries_found = []
        for family in timm.list_modules():
            if part.families and family not in part.families:
                continue
            for name in timm.list_models(module=family):
                config = timm.models.get_pretrained_cfg(name)
                shape = tuple(config.input_size) if config is not None else (3, 224, 224)
                flexible = config is not None and not config.fixed_input_size
                entries_found.append(Entry(f"timm:{name}", family, shape, flexible))
        return entries_found

    def build(self, spec: str) -> Built:
        """The model of a spec, in eval mode."""
        parsed = parse_spec(spec)
        model = _timm().create_model(parsed.name, pretrained=False, **parsed.arguments)
        return Built(model.eval(), image_inputs)
