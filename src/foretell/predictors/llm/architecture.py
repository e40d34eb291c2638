"""Predictors: what a language model is made of, read from its Hugging Face configuration; no weights, no torch.

A model is a list of groups of equal layers. A layer has an attention (grouped heads, latent, or linear) and a
feed-forward part (dense, or a mixture of experts). From that follow the weights, those that one token uses, and the
bytes that one token leaves in the cache.
"""

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property, lru_cache
from importlib import resources
from pathlib import Path
from typing import Any

from foretell.errors import ForetellError, ModelError
from foretell.registry import did_you_mean


@dataclass(frozen=True, slots=True)
class GroupedAttention:
    """Heads that share keys and values in groups; a window of 0 sees the whole text."""

    heads: int
    kv_heads: int
    head_size: int
    window: int = 0
    gated: bool = False

    def parameters(self, hidden: int) -> int:
        """Weights of the projections."""
        queries = self.heads * self.head_size * (2 if self.gated else 1)
        return hidden * (queries + 2 * self.kv_heads * self.head_size) + self.heads * self.head_size * hidden


@dataclass(frozen=True, slots=True)
class LatentAttention:
    """DeepSeek's multi-head latent attention: the cache holds one compressed vector and one rotary key a token."""

    heads: int
    query_rank: int | None
    rank: int
    nope_size: int
    rope_size: int
    value_size: int

    def parameters(self, hidden: int) -> int:
        """Weights of the projections, down and up."""
        head = self.nope_size + self.rope_size
        queries = (
            hidden * self.heads * head
            if self.query_rank is None
            else hidden * self.query_rank + self.query_rank * self.heads * head
        )
        down = hidden * (self.rank + self.rope_size)
        up = self.rank * self.heads * (self.nope_size + self.value_size)
        return queries + down + up + self.heads * self.value_size * hidden


@dataclass(frozen=True, slots=True)
class LinearAttention:
    """A gated delta rule: a state of fixed size a request instead of a cache that grows."""

    key_heads: int
    value_heads: int
    key_size: int
    value_size: int
    kernel: int = 4

    @property
    def mixed_size(self) -> int:
        """Queries, keys and values of one token."""
        return 2 * self.key_heads * self.key_size + self.value_heads * self.value_size

    def parameters(self, hidden: int) -> int:
        """Weights of the projections and of the short convolution."""
        values = self.value_heads * self.value_size
        return (
            hidden * (self.mixed_size + values + 2 * self.value_heads) + values * hidden + self.kernel * self.mixed_size
        )

    @property
    def state_elements(self) -> int:
        """Numbers that one request keeps for this layer."""
        return self.value_heads * self.key_size * self.value_size + (self.kernel - 1) * self.mixed_size


@dataclass(frozen=True, slots=True)
class Dense:
    """A feed-forward part; gated ones have three matrices, plain ones two."""

    inner: int
    gated: bool = True

    def parameters(self, hidden: int) -> int:
        """Weights of its matrices."""
        return (3 if self.gated else 2) * hidden * self.inner


@dataclass(frozen=True, slots=True)
class Experts:
    """A mixture: ``top`` of ``count`` experts for each token, and one that all tokens use where ``shared`` is not 0."""

    count: int
    top: int
    inner: int
    shared: int = 0

    def parameters(self, hidden: int) -> int:
        """Weights of all experts and the router."""
        return 3 * hidden * (self.count * self.inner + self.shared) + hidden * self.count

    def active_parameters(self, hidden: int) -> int:
        """Weights that one token uses."""
        return 3 * hidden * (self.top * self.inner + self.shared) + hidden * self.count


Attention = GroupedAttention | LatentAttention | LinearAttention


@dataclass(frozen=True, slots=True)
class Layers:
    """A number of equal layers."""

    count: int
    attention: Attention
    feed_forward: Dense | Experts


@dataclass(frozen=True)
class Architecture:
    """A decoder for text. ``stored`` is how its published checkpoint stores the weights that are quantised."""

    name: str
    model_type: str
    hidden: int
    vocabulary: int
    context: int
    groups: tuple[Layers, ...]
    tied: bool = False
    stored: str = "bf16"
    notes: tuple[str, ...] = ()

    @property
    def layers(self) -> int:
        """The number of layers."""
        return sum(group.count for group in self.groups)

    @property
    def expert_layers(self) -> int:
        """Layers whose feed-forward part is a mixture of experts."""
        return sum(group.count for group in self.groups if isinstance(group.feed_forward, Experts))

    @property
    def has_experts(self) -> bool:
        """Whether any layer is a mixture of experts."""
        return any(isinstance(group.feed_forward, Experts) for group in self.groups)

    @property
    def embeddings(self) -> int:
        """Weights of the token embeddings and the output head."""
        return self.hidden * self.vocabulary * (1 if self.tied else 2)

    @cached_property
    def parameters(self) -> int:
        """All weights; norms and biases, under a thousandth, are not counted."""
        return self.embeddings + sum(
            group.count * (group.attention.parameters(self.hidden) + group.feed_forward.parameters(self.hidden))
            for group in self.groups
        )

    @cached_property
    def active_parameters(self) -> int:
        """The weights that one token uses: of a mixture only the chosen experts; the embedding table is a lookup."""
        total = self.hidden * self.vocabulary
        for group in self.groups:
            part = group.feed_forward
            used = part.active_parameters if isinstance(part, Experts) else part.parameters
            total += group.count * (group.attention.parameters(self.hidden) + used(self.hidden))
        return total


def cache_elements(attention: Attention) -> int:
    """Numbers that one token leaves in the cache of one layer.

    >>> cache_elements(GroupedAttention(32, 8, 128)), cache_elements(LatentAttention(128, 1536, 512, 128, 64, 128))
    (2048, 576)
    """
    if isinstance(attention, GroupedAttention):
        return 2 * attention.kv_heads * attention.head_size
    return attention.rank + attention.rope_size if isinstance(attention, LatentAttention) else 0


_REFUSED = {
    "t5": "an encoder–decoder", "bart": "an encoder–decoder", "mamba": "a state-space model", "bert": "an encoder",
    "whisper": "an encoder–decoder", "rwkv": "a recurrent model", "roberta": "an encoder", "vit": "a vision model",
    "mt5": "an encoder–decoder", "distilbert": "an encoder", "clip": "a vision–language encoder",
}  # fmt: skip


def read_architecture(name: str, config: Mapping[str, Any]) -> Architecture:
    """The architecture that a configuration describes; a type that is not a decoder is refused.

    >>> llama = load_architecture("meta-llama/Llama-3.1-8B")
    >>> round(llama.parameters / 1e9, 2), llama.layers
    (8.03, 32)
    """
    try:
        return _read(name, config)
    except ForetellError:
        raise
    except (TypeError, ValueError, KeyError, ArithmeticError) as error:  # a foreign file may hold anything
        raise ModelError(f"The configuration of {name} does not describe a language model: {error}.") from error


def _read(name: str, config: Mapping[str, Any]) -> Architecture:
    model_type = str(config.get("model_type", ""))
    if model_type in _REFUSED or config.get("is_encoder_decoder"):
        raise ModelError(
            f"{name} is {_REFUSED.get(model_type, 'an encoder–decoder')}; foretell llm reads decoders. "
            "Ask foretell predict for it."
        )
    notes = []
    text = config.get("text_config")
    if isinstance(text, Mapping):
        notes.append("The language model alone: images and sound are not counted.")
        config = {**config, **text}
    reader = _Reader(name, config)
    hidden = reader.count("hidden_size", "n_embd", "d_model")
    layers = reader.count("num_hidden_layers", "n_layer", "num_layers")
    return Architecture(
        name=name,
        model_type=model_type,
        hidden=hidden,
        vocabulary=reader.count("vocab_size"),
        context=reader.count("max_position_embeddings", "n_positions", default=2048),
        groups=_groups(reader, hidden, layers),
        tied=bool(config.get("tie_word_embeddings", model_type.startswith(("gemma", "gpt2", "opt")))),
        stored=_stored(config),
        notes=tuple(notes),
    )


@dataclass(frozen=True)
class _Reader:
    """The values of a configuration, checked as they are read."""

    name: str
    values: Mapping[str, Any]

    def count(self, *names: str, default: int | None = None) -> int:
        """The first of these names that is there: a whole number above 0."""
        for key in names:
            value = self.values.get(key)
            if value is None:
                continue
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise ModelError(f"{self.name} has {key} = {value!r}; it must be a whole number above 0.")
            return value
        if default is None:
            raise ModelError(f"{self.name} has no {names[0]}: not the configuration of a language model.")
        return default

    def maybe(self, *names: str) -> int:
        """The same, or 0 where none is there."""
        present = [key for key in names if self.values.get(key)]
        return self.count(*present) if present else 0


def _groups(reader: _Reader, hidden: int, layers: int) -> tuple[Layers, ...]:
    """Equal layers together, in the order in which they first appear."""
    counts: dict[tuple[Attention, Dense | Experts], int] = {}
    for layer in range(layers):
        kind = (_attention(reader, hidden, layer), _feed_forward(reader, hidden, layer))
        counts[kind] = counts.get(kind, 0) + 1
    return tuple(Layers(count, *kind) for kind, count in counts.items())


def _attention(reader: _Reader, hidden: int, layer: int) -> Attention:
    values = reader.values
    heads = reader.count("num_attention_heads", "n_head", "num_heads")
    if values.get("kv_lora_rank"):
        return LatentAttention(
            heads, reader.maybe("q_lora_rank") or None, reader.count("kv_lora_rank"), reader.count("qk_nope_head_dim"),
            reader.count("qk_rope_head_dim"), reader.count("v_head_dim"),
        )  # fmt: skip
    kinds = values.get("layer_types")
    kind = kinds[layer] if isinstance(kinds, list) and layer < len(kinds) else None
    interval = reader.maybe("full_attention_interval")
    if kind is None and interval:
        kind = "full_attention" if (layer + 1) % interval == 0 else "linear_attention"
    if kind == "linear_attention":
        return LinearAttention(
            reader.count("linear_num_key_heads"), reader.count("linear_num_value_heads"),
            reader.count("linear_key_head_dim"), reader.count("linear_value_head_dim"),
            reader.count("linear_conv_kernel_dim", default=4),
        )  # fmt: skip
    head_size = reader.maybe("head_dim", "attention_head_dim") or hidden // heads
    kv_heads = 1 if values.get("multi_query") else reader.count("num_key_value_heads", default=heads)
    return GroupedAttention(
        heads, kv_heads, head_size, _window(reader, layer, kind), bool(values.get("attn_output_gate"))
    )


def _window(reader: _Reader, layer: int, kind: object) -> int:
    """The window of one layer: as `layer_types` says, else as the type of the model alternates."""
    values = reader.values
    window = reader.maybe("sliding_window")
    if not window or values.get("use_sliding_window") is False:
        return 0
    if kind is not None:
        return window if kind == "sliding_attention" else 0
    model_type = str(values.get("model_type", ""))
    if model_type == "gemma2" or model_type == "gpt_oss":
        return window if layer % 2 == 0 else 0
    pattern = reader.maybe("sliding_window_pattern")
    if model_type.startswith("gemma3"):
        pattern = pattern or 6
    return (window if (layer + 1) % pattern else 0) if pattern else window


_PLAIN = ("gpt2", "opt", "phi", "gpt_neox", "gptj", "falcon", "bloom", "starcoder2", "gpt_bigcode", "mpt", "nemotron")


def _feed_forward(reader: _Reader, hidden: int, layer: int) -> Dense | Experts:
    values = reader.values
    model_type = str(values.get("model_type", ""))
    inner = reader.maybe("intermediate_size", "n_inner", "ffn_dim", "ffn_hidden_size") or 4 * hidden
    count = reader.maybe("num_experts", "num_local_experts", "n_routed_experts")
    step = reader.maybe("decoder_sparse_step", "moe_layer_freq") or 1
    first = int(values.get("first_k_dense_replace") or 0)
    dense_ones = values.get("mlp_only_layers") or ()
    is_dense = layer < first or layer in dense_ones or bool((layer + 1) % step)
    if not count or is_dense:
        return Dense(inner, model_type not in _PLAIN)
    expert = reader.maybe("moe_intermediate_size") or inner
    shared = reader.maybe("shared_expert_intermediate_size") or expert * int(values.get("n_shared_experts") or 0)
    return Experts(count, reader.count("num_experts_per_tok", "top_k"), expert, shared)


def _stored(config: Mapping[str, Any]) -> str:
    """How a checkpoint stores its quantised weights, as its `quantization_config` says."""
    quantised = config.get("quantization_config")
    if not isinstance(quantised, Mapping):
        return "bf16"
    method = str(quantised.get("quant_method", quantised.get("quant_algo", ""))).lower()
    bits = quantised.get("bits", quantised.get("weight_bits"))
    if method == "mxfp4":
        return "mxfp4_weights"
    if "fp8" in method:
        return "fp8_block" if quantised.get("weight_block_size") else "fp8"
    if method in ("awq", "gptq", "compressed-tensors") and bits in (None, 4):
        return "int4_weights"
    return "int8_weights" if bits == 8 else "bf16"


@lru_cache(maxsize=1)
def _table() -> dict[str, dict[str, Any]]:
    return tomllib.loads(resources.files(__package__).joinpath("models.toml").read_text(encoding="utf-8"))


def _shipped(name: str) -> tuple[str, dict[str, Any]] | None:
    """A configuration of the shipped table by its name or an alias, with what it inherits from its ``base``."""
    table = _table()
    names = {key.lower(): key for key in table}
    names |= {alias.lower(): key for key, entry in table.items() for alias in entry.get("aliases", ())}
    key = names.get(name.lower())
    if key is None:
        return None
    chain = [table[key]]
    while "base" in chain[0]:
        chain.insert(0, table[chain[0]["base"]])
    values = {field: value for entry in chain for field, value in entry.items() if field not in ("aliases", "base")}
    return key, values


def known_models() -> list[str]:
    """The names in the shipped table."""
    return list(_table())


@lru_cache(maxsize=64)
def load_architecture(model: str) -> Architecture:
    """The architecture of a name, a config.json or a folder with one.

    A name is looked up in the table of this package, then where `hf:` models are: the local Hugging Face cache, the
    table of that front-end, the network.
    """
    from foretell.frontends.huggingface.configs import load_config, names_shipped

    ident = model.removeprefix("hf:")
    path = Path(ident).expanduser()
    if not (path.is_dir() or path.suffix == ".json"):
        known = _shipped(ident)
        if known is not None:
            return read_architecture(*known)
        if "/" not in ident and not names_shipped(ident):
            raise ModelError(
                f"Unknown model {ident!r}.{did_you_mean(ident, _names())} Give a name such as meta-llama/Llama-3.1-8B, "
                "or the path of a config.json."
            )
        source = load_config(f"hf:{ident}")
    else:
        source = load_config(ident)
    return read_architecture(source.name, source.values)


def _names() -> list[str]:
    return [*_table(), *(alias for entry in _table().values() for alias in entry.get("aliases", ()))]
