"""Profiling: build a model quickly, without initialising its large weights on the host.

While a model is built, its large weights stay uninitialised; the operating system does not even allocate their pages.
They are drawn on the device afterwards, with the standard deviation 1/√fan-in, so that activations neither vanish nor
overflow. Small parameters and all buffers keep the values that the model's own code gave them, so normalisation layers
and position indices are correct.
"""

import math
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

# Weights with at least this many elements are drawn on the device; for smaller ones the real initialisation is as fast.
LARGE = 4096


def is_large(tensor: Any) -> bool:
    """Whether a parameter's initialisation is skipped on the host and drawn on the device."""
    return bool(tensor.ndim >= 2 and tensor.numel() >= LARGE and tensor.is_floating_point())


@contextmanager
def lazy_initialisation() -> Iterator[None]:
    """Within this context, random initialisation of large tensors does nothing."""
    saved: list[tuple[Any, str, Any]] = []

    def replace(owner: Any, name: str, skip: Any) -> None:
        saved.append((owner, name, owner.__dict__.get(name)))
        setattr(owner, name, skip(getattr(owner, name)))

    def skip_large(real: Any) -> Any:
        def initialise(tensor: Any, *args: Any, **kwargs: Any) -> Any:
            return tensor if is_large(tensor) else real(tensor, *args, **kwargs)

        return initialise

    def skip_large_parameter(real: Any) -> Any:
        def change(tensor: Any, *args: Any, **kwargs: Any) -> Any:
            skip = isinstance(tensor, torch.nn.Parameter) and is_large(tensor)
            return tensor if skip else real(tensor, *args, **kwargs)

        return change

    for method in ("normal_", "uniform_", "erfinv_", "exponential_"):
        replace(torch.Tensor, method, skip_large)
    # for parameters only: buffers are computed with these methods, too
    for method in ("mul_", "add_", "div_", "clamp_", "fill_", "zero_"):
        replace(torch.Tensor, method, skip_large_parameter)
    for function in ("_no_grad_trunc_normal_", "orthogonal_", "dirac_", "eye_", "sparse_"):
        replace(torch.nn.init, function, skip_large)
    timm_init = _loaded("timm.layers.weight_init")
    if timm_init is not None and hasattr(timm_init, "_trunc_normal_"):
        replace(timm_init, "_trunc_normal_", skip_large)
    try:
        yield
    finally:
        for owner, name, real in reversed(saved):
            if real is None:
                delattr(owner, name)
            else:
                setattr(owner, name, real)


def _loaded(name: str) -> Any:
    import sys

    return sys.modules.get(name)


class Weights:
    """The weights of one model; on the device in one precision at a time, with the memory layout of a fresh build."""

    def __init__(self, model: Any, *, cast_buffers: bool) -> None:
        self._model = model
        self._cast_buffers = cast_buffers
        self._originals: list[Any] | None = None
        self.dtype: Any = None
        self._channels_last = False

    def place(self, device: str, dtype: Any, *, channels_last: bool = False) -> None:
        """Put all weights on ``device`` as ``dtype``; whatever was there before is released first.

        With ``channels_last``, weights of four axes are in that memory format, as ``model.to(memory_format=…)`` does.
        """
        if self.dtype is dtype and self._channels_last == channels_last:
            return
        self.release()
        originals: list[Any] = []
        known = self._originals
        placed: dict[int, tuple[Any, Any]] = {}  # tied parameters are visited twice and must stay tied
        # `_apply` visits all tensors in a fixed order, so a position identifies a tensor across calls
        position = 0

        def put(tensor: Any) -> Any:
            nonlocal position
            parameter = isinstance(tensor, torch.nn.Parameter)
            draw = parameter and is_large(tensor)
            original: Any = None if draw else tensor.detach() if known is None else known[position]
            if parameter and id(tensor) in placed:
                original, result = placed[id(tensor)]
            elif draw:
                result = torch.empty(tensor.shape, device=device, dtype=dtype)
                result.normal_(0.0, 1.0 / math.sqrt(math.prod(tensor.shape[1:])))
            elif original.is_floating_point() and (parameter or self._cast_buffers):
                result = original.to(device, dtype)
            else:
                result = original.to(device)
            if channels_last and result.ndim == 4 and result.is_floating_point():
                result = result.contiguous(memory_format=torch.channels_last)
            if parameter:
                placed[id(tensor)] = original, result
            originals.append(original)
            position += 1
            return result

        with torch.no_grad():
            self._model._apply(put)
        self._originals = originals
        self.dtype, self._channels_last = dtype, channels_last

    def release(self) -> None:
        """Release the device's memory; the model can be placed again with :meth:`place`."""
        originals = self._originals
        if originals is None or self.dtype is None:
            return
        position = 0

        def drop(tensor: Any) -> Any:
            nonlocal position
            original = originals[position]
            position += 1
            # a large weight has no values on the host: an empty tensor keeps its shape
            return torch.empty(tensor.shape) if original is None else original

        for parameter in self._model.parameters():
            parameter.grad = None
        with torch.no_grad():
            self._model._apply(drop)
        self.dtype = None
