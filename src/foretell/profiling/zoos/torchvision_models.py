"""Profiling: torchvision's classifiers, segmentation and video models, with random weights."""

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

from foretell.optional import repair_torchvision, require
from foretell.profiling.campaign.plan import Part
from foretell.profiling.workload import parse_spec
from foretell.profiling.zoos.zoo import Built, Entry, image_inputs

_FIXED = ("vit_", "maxvit", "inception", "mvit", "swin3d")
_SHAPES: Mapping[str, tuple[int, ...]] = MappingProxyType(
    {
        "inception_v3": (3, 299, 299),
        "r3d_18": (3, 16, 112, 112),
        "mc3_18": (3, 16, 112, 112),
        "r2plus1d_18": (3, 16, 112, 112),
    }
)
_KINDS: Mapping[str, tuple[int, ...]] = MappingProxyType(
    {"models": (3, 224, 224), "segmentation": (3, 256, 256), "video": (3, 16, 224, 224)}
)


def _torchvision() -> Any:
    repair_torchvision()
    return require("torchvision", extra="vision", purpose="Profiling torchvision's models")


class TorchvisionZoo:
    """``torchvision:NAME``, built with ``weights=None``."""

    def prepare(self) -> None:
        """Import the library before initialisation is made lazy."""
        _torchvision()

    def entries(self, part: Part, seed: int) -> Sequence[Entry]:  # noqa: ARG002 one zoo takes a seed, all have the signature
        """One entry for each model; its family is the first letters of its name, such as ``torchvision-resnet``."""
        models = _torchvision().models
        entries_found = []
        for kind, default in _KINDS.items():
            module = models if kind == "models" else getattr(models, kind)
            for name in models.list_models(module=module):
                family = f"torchvision-{name.rstrip('0123456789').split('_')[0].rstrip('0123456789')}"
                if part.families and family not in part.families:
                    continue
                flexible = kind != "video" and not name.startswith(_FIXED)
                entries_found.append(Entry(f"torchvision:{name}", family, _SHAPES.get(name, default), flexible))
        return entries_found

    def build(self, spec: str) -> Built:
        """The model of a spec, in eval mode."""
        parsed = parse_spec(spec)
        arguments: dict[str, Any] = dict(parsed.arguments)
        if parsed.name in ("googlenet", "inception_v3"):
            # their own initialisation takes seconds, and their auxiliary heads are for training only
            arguments |= {"init_weights": False, "aux_logits": False}
        if parsed.name.startswith(("deeplab", "fcn", "lraspp")):
            arguments["weights_backbone"] = None
        model = _torchvision().models.get_model(parsed.name, weights=None, **arguments)
        return Built(model.eval(), image_inputs)
