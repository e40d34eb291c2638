"""Frontends: writes the graph of a language model straight from its configuration; torch is not imported.

The graph is the one that a trace gives, node by node, with the versions of transformers and torch that foretell is
tested with. `plan` says whether a graph can be written: the family is known, and so is every key of the configuration.
Where transformers is installed in another version, or anything is unknown, the model is traced.
"""

from __future__ import annotations

from dataclasses import dataclass
from importlib import metadata

from foretell.frontends.huggingface.configs import HfConfig, chosen_attention
from foretell.frontends.huggingface.inputs import DEFAULT_PROMPT, DEFAULT_TOKENS
from foretell.frontends.huggingface.written import decoders, deepseek, encoders, falcon, gpt, mixtures, t5
from foretell.frontends.huggingface.written.family import Family, Sizes
from foretell.frontends.huggingface.written.settings import Settings, UnwrittenError, need, read_settings
from foretell.frontends.huggingface.written.values import Trace, Value
from foretell.frontends.torch.tracing.precision import in_full_precision
from foretell.graph import Graph

TRANSFORMERS = "5.22.2"  # the version whose models are written here
FAMILIES: dict[str, Family] = {
    **decoders.FAMILIES,
    **gpt.FAMILIES,
    **mixtures.FAMILIES,
    **deepseek.FAMILIES,
    **falcon.FAMILIES,
    **encoders.FAMILIES,
    **t5.FAMILIES,
}


@dataclass(frozen=True)
class Plan:
    """A graph that can be written."""

    name: str
    family: Family
    settings: Settings
    sizes: Sizes

    def write(self, batch_size: int) -> Graph:
        """Write the graph, as a trace of the same program would find it."""
        if self.sizes.mode != "training":
            # what casts by itself is traced in half precision, too, and that is the graph that is kept
            half, outputs = self._run(batch_size, "bf16")
            if half.sets_dtypes:
                return in_full_precision(half.graph(self.name, outputs, self.settings.notes))
        full, outputs = self._run(batch_size, "fp32")
        return full.graph(self.name, outputs, self.settings.notes)

    def _run(self, batch_size: int, dtype: str) -> tuple[Trace, list[Value]]:
        trace = Trace(batch_size, dtype, training=self.sizes.mode == "training", order=self.family.order)
        return trace, self.family.run(trace, self.settings, self.sizes)


def plan(config: HfConfig, mode: str, sequence: int | None, context: int | None) -> Plan | None:
    """Return how to write the graph of a configuration, or None if the model has to be traced."""
    try:
        return _plan(config, mode, sequence, context)
    except UnwrittenError:
        return None


def _plan(config: HfConfig, mode: str, sequence: int | None, context: int | None) -> Plan:
    values = config.values
    model_type = values.get("model_type")
    family = FAMILIES.get(model_type) if isinstance(model_type, str) else None
    if family is None or not _same_version():
        raise UnwrittenError("another family, or another version of transformers")
    architectures = values.get("architectures") or [family.classes[0]]
    need(isinstance(architectures, list) and architectures[0] in family.classes, "another class")
    need("architectures" in values or "auto_map" not in values, "a class of its own")
    need(chosen_attention(config) == (None, None), "a chosen attention")
    need(family.generates or mode in ("inference", "training"), "a cache")
    settings = read_settings(values, family.defaults, family.ignored)
    settings.architecture, settings.notes = architectures[0], ()
    if "quantization_config" in values:
        settings.notes = ("quantization_config is ignored: weights count as fp32",)
    sizes = _sizes(family, settings, mode, sequence, context)
    family.complete(settings, values, sizes)
    return Plan(config.name, family, settings, sizes)


def _sizes(family: Family, settings: Settings, mode: str, sequence: int | None, context: int | None) -> Sizes:
    """The tokens of a run; the defaults are those of `foretell.frontends.huggingface.inputs`."""
    limit = getattr(settings, family.positions) if family.positions else None
    longest = [size for size in (limit, getattr(settings, "max_position_embeddings", None)) if size is not None]
    for count in (sequence, context):
        need(count is None or count >= 1, "no tokens")
    if family.is_encoder_decoder:
        return _sizes_of_both(mode, sequence, context)
    if mode == "decode":
        past = context or sequence or DEFAULT_PROMPT
        sizes = Sizes(mode, 1, past)
    else:
        length = sequence or min([DEFAULT_PROMPT if mode == "prefill" else DEFAULT_TOKENS, *longest])
        sizes = Sizes(mode, length)
    need(limit is None or sizes.length + sizes.past <= limit, "more tokens than positions")
    return sizes


def _sizes_of_both(mode: str, sequence: int | None, context: int | None) -> Sizes:
    """The tokens of an encoder-decoder: a source is read, and one token or a whole target is written."""
    if mode == "decode":
        return Sizes(mode, 1, context or sequence or DEFAULT_PROMPT, sequence or DEFAULT_TOKENS)
    if mode == "prefill":
        return Sizes(mode, 1, 0, sequence or DEFAULT_PROMPT)
    return Sizes(mode, context or sequence or DEFAULT_TOKENS, 0, sequence or DEFAULT_TOKENS)


def _same_version() -> bool:
    """Whether the installed transformers is the one whose models are written here; none at all will do."""
    try:
        return metadata.version("transformers") == TRANSFORMERS
    except metadata.PackageNotFoundError:
        return True
