"""Frontends: reads a Hugging Face model: ``hf:ID``, a folder with a config.json, or a config.json.

The graph of a language model of a large family is written straight from its configuration, without torch
(`foretell.frontends.huggingface.written`). Of all others the values are checked here, and the model is built and
exported in a cage: transformers makes whatever the values say. Configurations that are shipped with foretell need none.
"""

import hashlib
from dataclasses import asdict

from foretell.errors import ForetellError, InputError
from foretell.frontends.caged import read_caged
from foretell.frontends.huggingface.configs import HfConfig, is_shipped, load_config
from foretell.frontends.huggingface.written.writing import Plan, plan
from foretell.frontends.request import InputSpec, ModelRequest, refuse_whole
from foretell.frontends.torch.export import TRACE_BATCH
from foretell.frontends.torch.program import TorchProgram
from foretell.graph import Graph
from foretell.optional import versions


class HuggingFaceFrontend:
    """Models of the installed transformers library, built from their configuration."""

    def load(self, request: ModelRequest) -> Graph:
        """Write the graph, or build the model in a cage; code that is trusted runs here."""
        config = load_config(str(request.source))
        written = _written(config, request)
        if written is not None:
            return written.write(TRACE_BATCH)
        if request.trust or (is_shipped(config) and not request.has_limits):
            return _build(config, request)
        reader = "foretell.frontends.huggingface.frontend:read_values"
        return read_caged(reader, request.with_source(asdict(config)), config.name)

    def fingerprint(self, request: ModelRequest) -> str | None:
        """The configuration, and the versions of transformers and torch, which decide what is built.

        A graph that is written is not cached: reading it back would take as long.
        """
        config = load_config(str(request.source))
        if _written(config, request) is not None:
            return None
        installed = versions("transformers", "torch", extra="hf", purpose="Reading Hugging Face models")
        digest = hashlib.sha256(repr(config).encode()).hexdigest()
        return f"{digest} {installed}"


def read_values(request: ModelRequest) -> Graph:
    """In the cage: build the model of a configuration, whose values are in the request."""
    return _build(HfConfig(**request.source), request)


def _written(config: HfConfig, request: ModelRequest) -> Plan | None:
    """How to write the graph without building the model; None where that is not known."""
    tokens_only = all(len(spec.shape) == 1 and not spec.whole for spec in request.inputs)
    return plan(config, request.mode, *_lengths(request)[:2]) if tokens_only else None


def _lengths(request: ModelRequest) -> tuple[int | None, int | None, tuple[int, ...] | None]:
    """The tokens, the context and the image size that a request asks for."""
    sequence, image = read_sizes(request.inputs)
    if request.mode == "decode" and request.context is None:
        return None, sequence, image  # in decode mode, --input is the length of the cache
    return sequence, request.context, image


def _build(config: HfConfig, request: ModelRequest) -> Graph:
    """Build the model without weights and export it: with few of its layers, or whole where these prove too little."""
    # here: what is only written needs none of it
    from foretell.frontends.huggingface.building import build_program
    from foretell.frontends.torch.export import graph_from_program
    from foretell.frontends.torch.tracing.stacks import UnequalError

    refuse_whole(request, "A transformer takes tokens and images")
    sequence, context, image = _lengths(request)

    def build(*, shortened: bool) -> TorchProgram:
        return build_program(
            config,
            mode=request.mode,
            batch_size=TRACE_BATCH,
            sequence=sequence,
            context=context,
            image=image,
            dtype="fp32",
            trust=request.trust,
            shortened=shortened,
        )

    program: TorchProgram | None = None
    try:
        program = build(shortened=True)
        return graph_from_program(program, batch_size=TRACE_BATCH, training=request.mode == "training")
    except (UnequalError, ForetellError):
        if program is not None and program.repeat is None:
            raise
    return graph_from_program(build(shortened=False), batch_size=TRACE_BATCH, training=request.mode == "training")


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
