"""Front-ends: a transformers model → a module with a flat signature, tensors in and tensors out, that exports as it runs.

While it exports, transformers makes other choices than when it runs: it builds masks that a run would skip, and so
loses ``is_causal`` and grouped-query attention. The forward bound here restores the choices of a run.
"""

import copy
import inspect
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest import mock

from foretell.frontends.hf_configs import quiet
from foretell.optional import require

Call = Callable[[Callable[..., Any], dict[str, Any]], Any]


def bind_forward(model: Any, inputs: Mapping[str, Any], call: Call) -> None:
    """Replace ``model.forward`` by one that takes exactly ``inputs`` by name and returns a flat dict of tensors.

    The module itself stays the root, so that module paths and parameter names are those of the checkpoint.

    Args:
        model: The module; its forward is replaced in place.
        inputs: The tensors it will be called with.
        call: Runs the original forward on the inputs and returns what to keep of its output.
    """
    original = model.forward

    def forward(**tensors: Any) -> dict[str, Any]:
        with as_if_run():
            output = call(original, tensors)
        untouched = {id(tensor) for tensor in tensors.values()}
        return dict(_tensors(output, "", untouched))

    named = inspect.Parameter.POSITIONAL_OR_KEYWORD
    forward.__signature__ = inspect.Signature([inspect.Parameter(name, named) for name in inputs])  # type: ignore[attr-defined]
    model.forward = forward


@contextmanager
def as_if_run() -> Iterator[None]:
    """Make transformers decide, under export and on meta tensors, as it does in an eager run without padding."""
    masking = require("transformers.masking_utils", extra="hf")
    experts = require("transformers.integrations.moe", extra="hf")
    decisions: list[tuple[Any, str, Callable[..., Any]]] = [
        (masking, "is_torchdynamo_exporting", lambda: False),
        (masking, "find_packed_sequence_indices", lambda _: None),
        # one operator for the experts' products in every dtype: transformers::grouped_mm_fallback
        (experts, "_can_use_grouped_mm", lambda *_, **__: False),
    ]
    with ExitStack() as stack:
        stack.enter_context(quiet())
        for module, name, decision in decisions:
            if hasattr(module, name):
                stack.enter_context(mock.patch.object(module, name, decision))
        yield


def fill_cache(template: Any, tensors: Mapping[str, Any]) -> Any:
    """A copy of a cache that holds ``tensors``, named as `cache_tensors` names them; the template is not touched."""
    cache = _clone(template)
    for name, holder, key in _slots(cache):
        if name in tensors:
            holder[key] = tensors[name]
    return cache


def cache_tensors(cache: Any) -> dict[str, Any]:
    """The tensors a cache holds: ``past_0_keys``, ``past_0_values``, …, ``cross_0_keys`` for cross attention."""
    return {name: holder[key] for name, holder, key in _slots(cache) if holder[key].numel()}


def _slots(cache: Any, prefix: str = "past") -> Iterator[tuple[str, dict[Any, Any], Any]]:
    if hasattr(cache, "cross_attention_cache"):
        yield from _slots(cache.self_attention_cache, prefix)
        yield from _slots(cache.cross_attention_cache, "cross")
        return
    tensor = require("torch", extra="hf").Tensor
    for index, layer in enumerate(cache.layers):
        for attribute, value in vars(layer).items():
            if attribute.startswith("_"):
                continue
            if isinstance(value, tensor):
                yield f"{prefix}_{index}_{attribute}", vars(layer), attribute
            elif isinstance(value, dict):
                for key, item in value.items():
                    if isinstance(item, tensor):
                        yield f"{prefix}_{index}_{attribute}_{key}", value, key


def _clone(cache: Any) -> Any:
    twin = copy.copy(cache)
    if hasattr(cache, "cross_attention_cache"):
        twin.self_attention_cache = _clone(cache.self_attention_cache)
        twin.cross_attention_cache = _clone(cache.cross_attention_cache)
        twin.is_updated = dict(cache.is_updated)
        return twin
    twin.layers = [copy.copy(layer) for layer in cache.layers]
    for layer in twin.layers:
        vars(layer).update({name: dict(value) for name, value in vars(layer).items() if isinstance(value, dict)})
    return twin


def _tensors(output: Any, path: str, seen: set[int]) -> Iterator[tuple[str, Any]]:
    """Every tensor of a nested output that was not seen yet, with the path to it."""
    tensor = require("torch", extra="hf").Tensor
    if isinstance(output, tensor):
        if id(output) not in seen:
            seen.add(id(output))
            yield path or "output", output
    elif isinstance(output, Mapping):
        for key, value in output.items():
            yield from _tensors(value, f"{path}.{key}" if path else str(key), seen)
    elif isinstance(output, list | tuple):
        for index, value in enumerate(output):
            yield from _tensors(value, f"{path}.{index}" if path else str(index), seen)
    elif hasattr(output, "layers") or hasattr(output, "cross_attention_cache"):
        yield from _tensors(cache_tensors(output), path, seen)
