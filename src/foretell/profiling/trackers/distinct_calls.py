"""Profiling: distinct calls: run a model once, without operator calls that repeat an earlier one.

A counted kernel costs milliseconds, and most calls of a network repeat one whose arguments differ only in their values:
the same kernels would run again. Such a call is not made; the result of the first call is returned instead. The omitted
calls are recorded, so that the kernels of the whole run can be restored. This holds for training steps, too.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

Kernel = TypeVar("Kernel")
Range = Callable[[int], Any]


# Kernels of one step of a recurrent layer; a fused recurrent call is one operator with many kernels.
_KERNELS_PER_STEP = 5


class DistinctCalls:
    """Which operator calls of a run are distinct.

    ``sequence`` has for each call the number of the call that was made for it, ``launches`` an estimate of the kernels
    of the calls made. Without ``skip`` all calls are made.
    """

    def __init__(self, *, skip: bool = True) -> None:
        self.sequence: list[int] = []
        self.launches = 0
        self._skip = skip
        self._first: dict[Any, tuple[int, Any]] = {}

    @contextmanager
    def running(self, enter: Range | None = None, leave: Callable[[], Any] | None = None) -> Iterator[None]:
        """Make only distinct calls inside; ``enter`` gets the number of each call before it, ``leave`` follows it."""
        from torch.autograd import set_multithreading_enabled
        from torch.utils._python_dispatch import TorchDispatchMode

        calls = self

        class Mode(TorchDispatchMode):  # type: ignore[misc]
            def __torch_dispatch__(self, func: Any, _types: Any, args: Any = (), kwargs: Any = None) -> Any:
                return calls._call(func, args, kwargs or {}, enter, leave)

        # a backward pass on this thread: ranges that ``enter`` opens belong to a thread
        with set_multithreading_enabled(False), Mode():
            yield
        self._first.clear()

    def _call(
        self, func: Any, args: Any, kwargs: Mapping[str, Any], enter: Range | None, leave: Callable[[], Any] | None
    ) -> Any:
        number = len(self.sequence)
        in_place = _is_in_place(func)
        signature = _signature(func, args, kwargs) if self._skip and (in_place or _is_pure(func)) else None
        if signature is not None and signature in self._first:
            # values differ from a real run, but kernels and their times depend on shapes and not on values
            made, output = self._first[signature]
            self.sequence.append(made)
            return args[0] if in_place else _again(output)
        self.sequence.append(number)
        self.launches += _launches(func, args)
        if enter is not None:
            enter(number)
        try:
            output = func(*args, **kwargs)
        finally:
            if leave is not None:
                leave()
        # an in-place call returns its argument, so there is no result to keep
        if signature is not None and _is_float(output):
            # a gradient of which somebody else has a hold would be copied
            self._first[signature] = number, None if in_place else _again(output)
        return output


def expand(sequence: Sequence[int], kernels: Mapping[int, Sequence[Kernel]]) -> list[Kernel]:
    """The kernels of all calls in order, from those of the calls that were made."""
    return [kernel for made in sequence for kernel in kernels.get(made, ())]


def _is_pure(func: Any) -> bool:
    """Whether a call reads its arguments only and returns new tensors."""
    schema = func._schema
    return not any(value.alias_info is not None for value in (*schema.arguments, *schema.returns))


def _is_in_place(func: Any) -> bool:
    """Whether a call changes its first argument, nothing else, and returns it."""
    changed = [value.alias_info is not None and value.alias_info.is_write for value in func._schema.arguments]
    return changed[:1] == [True] and not any(changed[1:]) and len(func._schema.returns) == 1


def _is_float(output: Any) -> bool:
    """Whether a result may be reused; indices and masks may not, because other calls depend on their values."""
    import torch

    first = output[0] if isinstance(output, tuple | list) else output
    return isinstance(first, torch.Tensor) and first.is_floating_point()


def _again(output: Any) -> Any:
    """The same memory as another tensor: a backward pass gives every result a history and a version of its own."""
    import torch

    if isinstance(output, tuple | list):
        return type(output)(map(_again, output))
    return output.data if isinstance(output, torch.Tensor) else output


def _launches(func: Any, args: Any) -> int:
    name = func._schema.name
    if func.is_view or name.startswith(("aten::empty", "aten::detach", "aten::_local_scalar", "aten::_unsafe_view")):
        return 0
    if "rnn" in name or "lstm" in name or "gru" in name:
        shape = args[0].shape
        # four weights for each layer: input and hidden matrix, and a bias of each
        layers = max(1, len(args[1]) // 4) if len(args) > 1 and isinstance(args[1], list | tuple) else 1
        return int(_KERNELS_PER_STEP * layers * (max(shape[:2]) if len(shape) > 2 else 1))
    if name.startswith("aten::_foreach"):
        lists = [len(value) for value in args if isinstance(value, list | tuple)]
        return max(1, max(lists, default=0) // 30)  # one launch handles some dozens of tensors
    return 1


def _signature(func: Any, args: Any, kwargs: Mapping[str, Any]) -> Any:
    return func, _described(args), tuple((name, _described(value)) for name, value in sorted(kwargs.items()))


def _described(value: Any) -> Any:
    import torch

    if isinstance(value, torch.Tensor):
        # vectorised kernels need aligned addresses, so the alignment is part of the signature
        return tuple(value.shape), value.stride(), value.dtype, value.device, value.data_ptr() % 16
    if isinstance(value, list | tuple):
        return tuple(map(_described, value))
    return type(value), str(value)
