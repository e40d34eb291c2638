"""Frontends: the values of a configuration that a graph depends on, or the reason why a graph is not written from it.

A configuration is only believed where every key of it is known: one that the graph depends on, with a value of the
expected type, or one that no graph depends on. Anything else raises `UnwrittenError`, and the model is traced.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from types import NoneType, SimpleNamespace
from typing import Any


class UnwrittenError(Exception):
    """A graph cannot be written from this configuration; the model has to be traced."""


class Settings(SimpleNamespace):
    """The values of a configuration that a graph depends on; what the file leaves out has transformers' default."""

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(name)


@dataclass(frozen=True)
class Optional:
    """A default of a key that may also be null."""

    value: int


# keys that no graph depends on, by the types that transformers allows: a family takes the first four groups, and of the
# others those that it names
_IGNORED: dict[tuple[type, ...], str] = {
    (object,): "architectures auto_map model_type task_specific_params max_length do_sample temperature top_p top_k "
    "num_beams early_stopping no_repeat_ngram_size model_max_length",
    (str, NoneType): "transformers_version _name_or_path tokenizer_class finetuning_task prefix summary_type "
    "summary_activation",
    (bool,): "use_cache gradient_checkpointing output_past summary_use_proj summary_proj_to_labels",
    (float,): "initializer_factor rms_norm_eps layer_norm_eps layer_norm_epsilon norm_epsilon",
}
_IGNORED_BY_SOME: dict[tuple[type, ...], str] = {
    (object,): "rope_theta rope_scaling rope_parameters tie_word_embeddings head_dim",  # checked elsewhere
    (str,): "scoring_func topk_method",
    (str, NoneType): "hidden_activation",
    (bool,): "scale_attn_weights scale_attn_by_inverse_layer_idx seq_aux "
    "apply_residual_connection_post_layernorm attention_bias tie_weights_",
    (float,): "router_aux_loss_coef routed_scaling_factor init_std",
    (int, NoneType): "sliding_window pretraining_tp",
    (int,): "max_window_layers n_ctx n_positions ep_size moe_layer_freq num_nextn_predict_layers "
    "original_max_position_embeddings",
    (
        int,
        float,
    ): "aux_loss_alpha qa_dropout seq_classif_dropout summary_first_dropout embd_pdrop "
    "activation_dropout rotary_emb_base",
    (int, float, NoneType): "classifier_dropout",
}
_TOKEN = re.compile(r"^(bos|eos|sep|cls|unk|mask|pad|decoder_start)_token_id$")
_DTYPES = (None, "float64", "float32", "float16", "bfloat16")
# kinds of rotary positions that differ in numbers only, not in what is computed, and the keys that each must have
_ROPE_KINDS = {
    "default": frozenset[str](),
    "linear": frozenset({"factor"}),
    "llama3": frozenset({"factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings"}),
    "yarn": frozenset({"factor", "original_max_position_embeddings"}),
}
_ROPE_OPTIONS = frozenset({"rope_theta", "beta_fast", "beta_slow", "mscale", "mscale_all_dim"})


def read_settings(values: Mapping[str, Any], defaults: Mapping[str, Any], ignored: Iterable[str] = ()) -> Settings:
    """Return the values of a configuration for the keys of ``defaults``.

    The type of a default is the type that a value must have. A default of None means an integer or nothing. Other keys
    must be in ``ignored`` or be such that no graph depends on them.
    """
    settings = {key: value.value if isinstance(value, Optional) else value for key, value in defaults.items()}
    for key, value in values.items():
        if key in defaults:
            need(_fits(value, defaults[key]), f"{key} = {value!r}")
            settings[key] = value
        else:
            need(_is_ignored(key, value, frozenset(ignored)), f"{key} = {value!r}")
    return Settings(**settings)


def _is_ignored(key: str, value: Any, named: frozenset[str]) -> bool:
    """Whether the graph does not depend on a key, and transformers takes its value."""
    if key in ("dtype", "torch_dtype"):
        return value is None or (isinstance(value, str) and value in _DTYPES)
    if key == "initializer_range":
        return isinstance(value, float) and 0 <= value <= 1
    if key == "quantization_config":
        return isinstance(value, dict)
    if _TOKEN.match(key):
        ids = value if isinstance(value, list) and key == "eos_token_id" else [value]
        return all(item is None or (isinstance(item, int) and not isinstance(item, bool)) for item in ids)
    groups = [*_IGNORED.items(), *(_IGNORED_BY_SOME.items() if key in named else ())]
    types = next((types for types, keys in groups if key in keys.split()), ())
    return isinstance(value, types) and (not isinstance(value, bool) or bool in types or object in types)


def _fits(value: Any, default: Any) -> bool:
    """Whether a value has the type of the default."""
    if default is None or isinstance(default, Optional):
        return value is None or (isinstance(value, int) and not isinstance(value, bool))
    if isinstance(default, bool):
        return isinstance(value, bool)
    if isinstance(default, float):
        return isinstance(value, int | float) and not isinstance(value, bool)
    return isinstance(value, type(default)) and not isinstance(value, bool)


def need(condition: bool, reason: str) -> None:
    """Raise `UnwrittenError` unless the condition holds."""
    if not condition:
        raise UnwrittenError(reason)


def check_rope(values: Mapping[str, Any], *allowed: str) -> None:
    """Raise `UnwrittenError` unless the rotary positions of a configuration are of a kind that changes numbers only."""
    theta, scaling, parameters = (values.get(key) for key in ("rope_theta", "rope_scaling", "rope_parameters"))
    need("rope_theta" not in values or (_fits(theta, 1.0) and theta > 1), f"rope_theta = {theta!r}")
    need(all(value is None or isinstance(value, dict) for value in (scaling, parameters)), "rope_scaling")
    need(not (scaling and parameters), "rope_scaling beside rope_parameters")
    chosen = scaling or parameters
    if not chosen:
        return
    kind = chosen.get("rope_type", chosen.get("type", "default"))
    need(isinstance(kind, str) and kind in (allowed or tuple(_ROPE_KINDS)), f"rope_type = {kind!r}")
    keys = frozenset(chosen) - {"rope_type", "type"}
    need(_ROPE_KINDS[kind] <= keys <= _ROPE_KINDS[kind] | _ROPE_OPTIONS, f"rope_scaling = {chosen!r}")
    need(all(_fits(chosen[key], 1.0) and chosen[key] > 0 for key in keys), f"rope_scaling = {chosen!r}")
    need(chosen.get("factor", 1) >= 1 and chosen.get("rope_theta", 2) > 1, "factor below 1")


ROPE_KEYS = ("rope_theta", "rope_scaling", "rope_parameters")
