"""Frontends: reads a Hugging Face model: ``hf:ID``, a folder with a config.json, or a config.json.

The values of a configuration are checked here, and the model is built and exported in a cage: transformers makes
whatever the values say. Configurations that are shipped with foretell need none.
"""

import hashlib
from dataclasses import asdict

from foretell.errors import InputError
from foretell.frontends.caged import read_caged
from foretell.frontends.huggingface.building import build_program
from foretell.frontends.huggingface.configs import HfConfig, is_shipped, load_config
from foretell.frontends.request import InputSpec, ModelRequest, refuse_whole
from foretell.frontends.torch.export import TRACE_BATCH, graph_from_program
from foretell.graph import Graph
from foretell.optional import versions


class HuggingFaceFrontend:
    """Models of the installed transformers library, built from their configuration."""

    def load(self, request: ModelRequest) -> Graph:
        """Read the configuration here, and build the model in a cage; code that is trusted runs here."""
        config = load_config(str(request.source))
        if request.trust or (is_shipped(config) and not request.has_limits):
            return _build(config, request)
        reader = "foretell.frontends.huggingface.frontend:read_values"
        return read_caged(reader, request.with_source(asdict(config)), config.name)

    def fingerprint(self, request: ModelRequest) -> str | None:
        """The configuration, and the versions of transformers and torch, which decide what is built."""
        installed = versions("transformers", "torch", extra="hf", purpose="Reading Hugging Face models")
        digest = hashlib.sha256(repr(load_config(str(request.source))).encode()).hexdigest()
        return f"{digest} {installed}"


def read_values(request: ModelRequest) -> Graph:
    """In the cage: build the model of a configuration, whose values are in the request."""
    return _build(HfConfig(**request.source), request)


def _build(config: HfConfig, request: ModelRequest) -> Graph:
    """Build the model without weights and export it."""
    refuse_whole(request, "A transformer takes tokens and images")
    sequence, image = read_sizes(request.inputs)
    context = request.context
    if request.mode == "decode" and context is None:
        context, sequence = sequence, None  # in decode mode, --input is the length of the cache
    program = build_program(
        config,
        mode=request.mode,
        batch_size=TRACE_BATCH,
        sequence=sequence,
        context=context,
        image=image,
        dtype="fp32",
        trust=request.trust,
    )
    return graph_from_program(program, batch_size=TRACE_BATCH, training=request.mode == "training")


def read_sizes(inputs: tuple[InputSpec, ...]) -> tuple[int | None, tuple[int, ...] | None]:
    """Return the number of tokens and the image size that ``--input`` asks for; None for what it does not mention."""
    sequence: int | None = None
    image: tuple[int, ...] | None = None
    for spec in inputs:
        if len(spec.shape) == 1:
            sequence = spec.shape[0]
        elif len(spec.shape) in (2, 3):
            image = spec.shape
        else:
            shape = "x".join(map(str, spec.shape))
            raise InputError(f"A transformer takes --input TOKENS and, for images, --input 3x224x224; got {shape}.")
    return sequence, image
