"""Frontends: reads ``timm:NAME``. The model is built on the meta device, without weights and without a download."""

import warnings
from typing import Any

from foretell.errors import InputError, ModelError
from foretell.frontends.request import ModelRequest, image_shape
from foretell.frontends.torch.export import TRACE_BATCH, graph_from_program, import_torch
from foretell.frontends.torch.program import TorchProgram, one_line
from foretell.graph import Graph
from foretell.optional import repair_torchvision, require, versions
from foretell.registry import did_you_mean


class TimmFrontend:
    """All architectures of the installed timm."""

    def load(self, request: ModelRequest) -> Graph:
        """Build the model and export it."""
        name = str(request.source).removeprefix("timm:")
        module, shape = build_timm(name, request)
        torch = import_torch()
        program = TorchProgram(f"timm:{name}", module, (torch.empty(TRACE_BATCH, *shape, device="meta"),))
        return graph_from_program(program, batch_size=TRACE_BATCH, training=request.mode == "training")

    def fingerprint(self, request: ModelRequest) -> str | None:
        """The name, and the versions of timm and torch, which decide what is built."""
        return f"{request.source} {versions('timm', 'torch', extra='vision', purpose='Reading timm models')}"


def build_timm(name: str, request: ModelRequest) -> tuple[Any, tuple[int, ...]]:
    """Return the module on the meta device and the shape of its input."""
    torch = import_torch()
    repair_torchvision()
    timm = require("timm", extra="vision", purpose="Reading timm models")
    if not timm.is_model(name):
        raise ModelError(f"timm has no model {name!r}.{did_you_mean(name, timm.list_models())}")
    config = timm.models.get_pretrained_cfg(name)
    default = tuple(config.input_size) if config is not None else (3, 224, 224)
    shape = image_shape(request, default)
    with torch.device("meta"), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        # architectures name the size differently, or take any size without an option
        size_options: list[dict[str, Any]] = (
            [{}] if shape == default else [{"img_size": shape[1:]}, {"input_size": shape}, {}]
        )
        channels = {} if shape[0] == 3 else {"in_chans": shape[0]}
        for arguments in size_options:
            try:
                return timm.create_model(name, pretrained=False, **arguments, **channels), shape
            except TypeError:
                continue  # this architecture does not take that argument
            except Exception as error:
                if arguments is size_options[-1]:
                    raise ModelError(f"timm could not build {name!r}: {one_line(error)}") from error
    raise InputError(f"timm's {name!r} cannot be built for an input of {'x'.join(map(str, shape))}.")
