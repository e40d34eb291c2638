"""Frontends: reads ``torchvision:NAME``. The model is built on the meta device, without weights or a download."""

import inspect
from typing import Any

from foretell.errors import ModelError
from foretell.frontends.request import ModelRequest, image_shape
from foretell.frontends.torch.export import TRACE_BATCH, graph_from_program, import_torch
from foretell.frontends.torch.program import TorchProgram, build_without_weights, one_line
from foretell.graph import Graph
from foretell.optional import repair_torchvision, require, versions
from foretell.registry import did_you_mean

# image sizes other than 224, by the name of a model or by the start of its name
_SIZES = {
    "inception_v3": 299,
    "efficientnet_b1": 240,
    "efficientnet_b2": 288,
    "efficientnet_b3": 300,
    "efficientnet_b4": 380,
    "efficientnet_b5": 456,
    "efficientnet_b6": 528,
    "efficientnet_b7": 600,
    "efficientnet_v2_s": 384,
    "efficientnet_v2_m": 480,
    "efficientnet_v2_l": 480,
    "swin_v2": 256,
    "deeplab": 520,
    "fcn": 520,
    "lraspp": 520,
}


class TorchvisionFrontend:
    """All architectures of the installed torchvision that take one tensor."""

    def load(self, request: ModelRequest) -> Graph:
        """Build the model and export it."""
        torch = import_torch()
        repair_torchvision()
        models = require("torchvision.models", extra="vision", purpose="Reading torchvision models")
        name = str(request.source).removeprefix("torchvision:")
        if name not in models.list_models():
            raise ModelError(f"torchvision has no model {name!r}.{did_you_mean(name, models.list_models())}")
        shape = image_shape(request, self._default_shape(name))
        accepted = inspect.signature(models.get_model_builder(name)).parameters
        # segmentation models would download the weights of their backbone
        arguments: dict[str, Any] = {"weights_backbone": None} if "weights_backbone" in accepted else {}
        if name in ("inception_v3", "googlenet"):
            arguments = {"init_weights": False}  # None would warn, and would initialise weights that are not needed
        try:
            module = build_without_weights(lambda: models.get_model(name, weights=None, **arguments)).to("meta")
        except Exception as error:
            raise ModelError(f"torchvision could not build {name!r}: {one_line(error)}") from error
        inputs: tuple[Any, ...] = (torch.empty(TRACE_BATCH, *shape, device="meta"),)
        if name.startswith("raft"):  # optical flow between two images
            inputs = (*inputs, torch.empty(TRACE_BATCH, *shape, device="meta"))
        return graph_from_program(
            TorchProgram(f"torchvision:{name}", module, inputs),
            batch_size=TRACE_BATCH,
            training=request.mode == "training",
        )

    @staticmethod
    def _default_shape(name: str) -> tuple[int, ...]:
        """The size at which torchvision's own recipes evaluate the model."""
        if name.startswith(("r3d", "mc3", "r2plus1d")):
            return (3, 16, 112, 112)
        if name.startswith(("mvit", "s3d", "swin3d")):
            return (3, 16, 224, 224)
        if name.startswith("raft"):
            return (3, 360, 520)
        size = _SIZES.get(name) or next((s for prefix, s in _SIZES.items() if name.startswith(prefix)), 224)
        return (3, size, size)

    def fingerprint(self, request: ModelRequest) -> str | None:
        """The name, and the versions of torchvision and torch, which decide what is built."""
        return (
            f"{request.source} {versions('torchvision', 'torch', extra='vision', purpose='Reading torchvision models')}"
        )
