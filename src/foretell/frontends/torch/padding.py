"""frontends: "is anything padded?", answered as a run on whole, unpadded data answers it.

Some models ask ``if mask.any():`` in their forward pass. A trace has no values to look at; the data that foretell
speaks of is never padded, and so the answer is no.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

from foretell.optional import require


class _No:
    """The result of ``any()``: a tensor in the trace, False where it decides."""

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
    """Within this context ``tensor.any()`` over a whole tensor decides as False."""
    torch = require("torch", extra="torch", purpose="Reading PyTorch models")
    real = torch.Tensor.any

    def ask(tensor: Any, *args: Any, **kwargs: Any) -> Any:
        found = real(tensor, *args, **kwargs)
        return found if args or kwargs else _No(found)

    with mock.patch.object(torch.Tensor, "any", ask):
        yield
