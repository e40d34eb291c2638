"""Frontends: prepares a transformers model for export, so that the exported program is the one that a run executes.

``torch.export`` needs a forward with tensors as inputs and outputs, not config objects and caches. And transformers
behaves differently while it is exported: it builds masks that a run would skip, and so loses ``is_causal`` and
grouped-query attention. The forward that is bound here has a flat signature and restores the behaviour of a run.
"""

import copy
import inspect
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest import mock

from foretell.frontends.huggingface.configs import quiet
from foretell.frontends.huggingface.operators import selective_scan
from foretell.optional import require

Call = Callable[[Callable[..., Any], dict[str, Any]], Any]


def bind_forward(model: Any, inputs: Mapping[str, Any], call: Call) -> None:
    """Replace ``model.forward`` by one that takes exactly ``inputs`` by name and returns a flat dict of tensors.

    The module stays the root of the program, so that module paths and parameter names are those of the checkpoint.

    Args:
        model: The module; its forward is replaced in place.
        inputs: The tensors that it will be called with.
        call: Runs the original forward on the inputs and returns the part of its output that counts.
    """
    original = model.forward

    def forward(**tensors: Any) -> dict[str, Any]:
        with as_if_run(model):
            output = call(original, tensors)
        input_ids = {id(tensor) for tensor in tensors.values()}
        return dict(_tensors(output, "", input_ids))

    by_name = inspect.Parameter.POSITIONAL_OR_KEYWORD
    # torch.export reads the names of the inputs from the signature
    forward.__signature__ = inspect.Signature([inspect.Parameter(name, by_name) for name in inputs])  # type: ignore[attr-defined]
    model.forward = forward


@contextmanager
def as_if_run(model: Any) -> Iterator[None]:
    """Within this context, transformers treats meta and traced tensors like an eager run on finite, unpadded data."""
    with ExitStack() as stack:
        stack.enter_context(quiet())
        for module, name, replacement in _patches(model):
            if hasattr(module, name):
                stack.enter_context(mock.patch.object(module, name, replacement))
        yield


def _patches(model: Any) -> Iterator[tuple[Any, str, Callable[..., Any]]]:
    """The functions to replace: (module, name, replacement)."""
    torch = require("torch", extra="hf")
    masking = require("transformers.masking_utils", extra="hf")
    yield masking, "is_torchdynamo_exporting", lambda: False
    yield masking, "is_tracing", lambda *_: False
    yield masking, "find_packed_sequence_indices", lambda _: None
    for name in ("_ignore_causal_mask_sdpa", "_ignore_bidirectional_mask_sdpa"):
        if hasattr(masking, name):
            yield masking, name, _without_padding(getattr(masking, name))
    # the products of the experts become one operator in every dtype: transformers::grouped_mm_fallback
    yield require("transformers.integrations.moe", extra="hf"), "_can_use_grouped_mm", lambda *_, **__: False
    for module in {type(part).__module__ for part in model.modules()}:
        yield sys.modules.get(module), "mamba_selective_scan", selective_scan
    # some models check for overflow in half precision, or drop layers at random; both read a value, and both mean no
    yield torch, "isfinite", _known(torch.isfinite, True)
    yield torch, "isinf", _known(torch.isinf, False)
    rand = torch.rand
    yield torch, "rand", lambda *size, **options: 1.0 if size == ([],) else rand(*size, **options)


def _without_padding(function: Callable[..., Any]) -> Callable[..., Any]:
    return lambda _, *args, **kwargs: function(None, *args, **kwargs)


class _Known:
    """A boolean tensor for the trace whose truth value is known: an ``if`` on it gives ``answer``."""

    def __init__(self, tensor: Any, *, answer: bool) -> None:
        self.tensor = tensor
        self.answer = answer

    def __bool__(self) -> bool:
        return self.answer

    def __getattr__(self, name: str) -> Any:
        return getattr(self.tensor, name)

    def all(self) -> "_Known":
        return _Known(self.tensor.all(), answer=self.answer)

    def any(self) -> "_Known":
        return _Known(self.tensor.any(), answer=self.answer)

    @classmethod
    def __torch_function__(cls, function: Any, _: Any, args: Any = (), kwargs: Any = None) -> Any:
        plain = [item.tensor if isinstance(item, cls) else item for item in args]
        return function(*plain, **(kwargs or {}))


def _known(function: Callable[..., Any], answer: bool) -> Callable[..., Any]:
    return lambda tensor: _Known(function(tensor), answer=answer)


def fill_cache(template: Any, tensors: Mapping[str, Any]) -> Any:
    """Return a copy of a cache with other tensors, named as in `cache_tensors`; the template is not changed."""
    cache = _clone(template)
    for name, holder, key in _slots(cache):
        if name in tensors:
            holder[key] = tensors[name]
    return cache


def cache_tensors(cache: Any) -> dict[str, Any]:
    """Return the tensors of a cache: ``past_0_keys``, ``past_0_values``, …, ``cross_0_keys`` for cross attention."""
    return {name: holder[key] for name, holder, key in _slots(cache) if holder[key].numel()}


def _slots(cache: Any, prefix: str = "past") -> Iterator[tuple[str, dict[Any, Any], Any]]:
    """The places of a cache that hold tensors: (name, dictionary, key in it)."""
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
    """A copy of a cache that shares its tensors but not its layers and dictionaries."""
    clone = copy.copy(cache)
    if hasattr(cache, "cross_attention_cache"):
        clone.self_attention_cache = _clone(cache.self_attention_cache)
        clone.cross_attention_cache = _clone(cache.cross_attention_cache)
        clone.is_updated = dict(cache.is_updated)
        return clone
    clone.layers = [copy.copy(layer) for layer in cache.layers]
    for layer in clone.layers:
        vars(layer).update({name: dict(value) for name, value in vars(layer).items() if isinstance(value, dict)})
    return clone


def _tensors(output: Any, path: str, seen: set[int]) -> Iterator[tuple[str, Any]]:
    """The tensors of a nested output that are not in ``seen`` yet, each with its path."""
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
