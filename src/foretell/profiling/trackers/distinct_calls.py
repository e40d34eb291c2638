"""Profiling: run a model once with every operator call that repeats an earlier one left out.

A counted kernel costs milliseconds, and most calls of a network repeat one with the same arguments but for their
values: the same kernels run again. Such a call is not made; the tensor of the first one is handed on. What is left out
is noted, so that the kernels of the whole run are known.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

Kernel = TypeVar("Kernel")
Range = Callable[[int], Any]


# What a step of a recurrent layer launches; a fused recurrent call is one operator and many kernels.
_KERNELS_PER_STEP = 5


class DistinctCalls:
    """Which operator calls of a run are distinct.

    ``sequence`` has for each call the number of the one made, ``launches`` roughly the kernels of those made. Without
    ``skip`` all are made.
    """

    def __init__(self, *, skip: bool = True) -> None:
        self.sequence: list[int] = []
        self.launches = 0
        self._skip = skip
        self._first: dict[Any, tuple[int, Any]] = {}

    @contextmanager
    def running(self, enter: Range | None = None, leave: Callable[[], Any] | None = None) -> Iterator[None]:
        """Make only distinct calls inside; ``enter`` is told the number of each before it is made, ``leave`` after."""
        from torch.utils._python_dispatch import TorchDispatchMode

        calls = self

        class Mode(TorchDispatchMode):  # type: ignore[misc]
            def __torch_dispatch__(self, func: Any, _types: Any, args: Any = (), kwargs: Any = None) -> Any:
                return calls._call(func, args, kwargs or {}, enter, leave)

        with Mode():
            yield
        self._first.clear()

    def _call(
        self, func: Any, args: Any, kwargs: Mapping[str, Any], enter: Range | None, leave: Callable[[], Any] | None
    ) -> Any:
        number = len(self.sequence)
        in_place = _is_in_place(func)
        signature = _signature(func, args, kwargs) if self._skip and (in_place or _is_pure(func)) else None
        if signature is not None and signature in self._first:
            made, output = self._first[signature]
            self.sequence.append(made)
            return args[0] if in_place else output
        self.sequence.append(number)
        self.launches += _launches(func, args)
        if enter is not None:
            enter(number)
        try:
            output = func(*args, **kwargs)
        finally:
            if leave is not None:
                leave()
        if signature is not None and _is_float(output):
            self._first[signature] = number, None if in_place else output
        return output


def expand(sequence: Sequence[int], kernels: Mapping[int, Sequence[Kernel]]) -> list[Kernel]:
    """The kernels of all calls, in order, from those of the calls that were made."""
    return [kernel for made in sequence for kernel in kernels.get(made, ())]


def _is_pure(func: Any) -> bool:
    """Whether a call reads its arguments only and returns new tensors."""
    schema = func._schema
    return not any(each.alias_info is not None for each in (*schema.arguments, *schema.returns))


def _is_in_place(func: Any) -> bool:
    """Whether a call changes its first argument, nothing else, and returns it."""
    changed = [each.alias_info is not None and each.alias_info.is_write for each in func._schema.arguments]
    return changed[:1] == [True] and not any(changed[1:]) and len(func._schema.returns) == 1


def _is_float(output: Any) -> bool:
    """Indices and masks are computed each time: what other calls do depends on their values."""
    import torch

    first = output[0] if isinstance(output, tuple | list) else output
    return isinstance(first, torch.Tensor) and first.is_floating_point()


def _launches(func: Any, args: Any) -> int:
    name = func._schema.name
    if func.is_view or name.startswith(("aten::empty", "aten::detach", "aten::_local_scalar", "aten::_unsafe_view")):
        return 0
    if "rnn" in name or "lstm" in name or "gru" in name:
        shape = args[0].shape
        layers = max(1, len(args[1]) // 4) if len(args) > 1 and isinstance(args[1], list | tuple) else 1
        return int(_KERNELS_PER_STEP * layers * (max(shape[:2]) if len(shape) > 2 else 1))
    if name.startswith("aten::_foreach"):
        lists = [len(each) for each in args if isinstance(each, list | tuple)]
        return max(1, max(lists, default=0) // 30)  # a launch takes some dozens of tensors
    return 1


def _signature(func: Any, args: Any, kwargs: Mapping[str, Any]) -> Any:
    return func, _described(args), tuple((name, _described(value)) for name, value in sorted(kwargs.items()))


def _described(value: Any) -> Any:
    import torch

    if isinstance(value, torch.Tensor):
        # kernels of vectors need aligned addresses
        return tuple(value.shape), value.stride(), value.dtype, value.device, value.data_ptr() % 16
    if isinstance(value, list | tuple):
        return tuple(map(_described, value))
    return type(value), str(value)
