"""Frontends: lets models be traced that check for padding in their forward pass.

Some models have ``if mask.any():`` in their forward pass. A trace has no values, so PyTorch cannot decide. Predictions
are for inputs without padding, and there the answer is no.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

from foretell.optional import require


class _FalseTensor:
    """The result of ``any()``: a tensor for the trace, but False in an ``if``."""

    def __init__(self, tensor: Any) -> None:
        self.tensor = tensor

    def __bool__(self) -> bool:
        return False

    def __getattr__(self, name: str) -> Any:
        return getattr(self.tensor, name)

    @classmethod
    def __torch_function__(cls, function: Any, _: Any, args: Any = (), kwargs: Any = None) -> Any:
        plain = [item.tensor if isinstance(item, cls) else item for item in args]
        return function(*plain, **(kwargs or {}))


@contextmanager
def nothing_padded() -> Iterator[None]:
    """Within this context, ``tensor.any()`` over a whole tensor is False in an ``if``."""
    torch = require("torch", extra="torch", purpose="Reading PyTorch models")
    real_any = torch.Tensor.any

    def any_is_false(tensor: Any, *args: Any, **kwargs: Any) -> Any:
        result = real_any(tensor, *args, **kwargs)
        return result if args or kwargs else _FalseTensor(result)

    with mock.patch.object(torch.Tensor, "any", any_is_false):
        yield
