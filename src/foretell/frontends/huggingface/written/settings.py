"""Frontends: the values of a configuration that a graph depends on, or the reason why a graph is not written from it.

A configuration is only believed where every key of it is known: one that the graph depends on, with a value of the
expected type, or one that no graph depends on. Anything else raises `UnwrittenError`, and the model is traced.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from types import SimpleNamespace
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


# keys that no graph depends on, whatever the family: names, notes, how weights start and how text is generated
_IGNORED = re.compile(
    r"^(architectures|auto_map|model_type|torch_dtype|dtype|transformers_version|_name_or_path|use_cache|initializer_range"
    r"|(bos|eos|sep|cls|unk|mask)_token_id|pretraining_tp|gradient_checkpointing|task_specific_params|finetuning_task"
    r"|max_length|do_sample|temperature|top_p|top_k|num_beams|early_stopping|no_repeat_ngram_size|prefix"
    r"|model_max_length|tokenizer_class|initializer_factor|output_past|summary_\w+|rms_norm_eps|layer_norm_eps"
    r"|layer_norm_epsilon|norm_epsilon|attn_bias_init|_comment)$"
)
_NUMBERS = ("rms_norm_eps", "layer_norm_eps", "layer_norm_epsilon", "norm_epsilon", "initializer_range")
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
    skipped = frozenset(ignored)
    for key, value in values.items():
        if key in defaults:
            if not _fits(value, defaults[key]):
                raise UnwrittenError(f"{key} = {value!r}")
            settings[key] = value
        elif key == "quantization_config":
            need(isinstance(value, dict), key)
        elif key in _NUMBERS:
            if isinstance(value, bool) or not isinstance(value, int | float):
                raise UnwrittenError(f"{key} = {value!r}")
        elif key not in skipped and not _IGNORED.match(key):
            raise UnwrittenError(key)
    return Settings(**settings)


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
    need(theta is None or _fits(theta, 1.0), f"rope_theta = {theta!r}")
    need(not (scaling and parameters), "rope_scaling beside rope_parameters")
    chosen = scaling or parameters
    if not chosen:
        return
    need(isinstance(chosen, dict), f"rope_scaling = {chosen!r}")
    kind = chosen.get("rope_type", chosen.get("type", "default"))
    need(isinstance(kind, str) and kind in (allowed or tuple(_ROPE_KINDS)), f"rope_type = {kind!r}")
    keys = frozenset(chosen) - {"rope_type", "type"}
    need(_ROPE_KINDS[kind] <= keys <= _ROPE_KINDS[kind] | _ROPE_OPTIONS, f"rope_scaling = {chosen!r}")
    need(all(_fits(chosen[key], 1.0) and chosen[key] > 0 for key in keys), f"rope_scaling = {chosen!r}")
    need(chosen.get("factor", 1) >= 1, "factor below 1")


ROPE_KEYS = ("rope_theta", "rope_scaling", "rope_parameters")
