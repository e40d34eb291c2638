"""Frontends: a PyTorch program to export: a module without weights, its inputs, and the error if the export fails."""

import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from foretell.errors import ModelError
from foretell.frontends.torch.tracing.devices import devices_differ
from foretell.optional import require


@dataclass(frozen=True)
class TorchProgram:
    """A module on the meta device and the inputs to export it with.

    Attributes:
        name: The name of the model.
        module: An ``nn.Module`` without storage, in the mode (train or eval) in which it would run.
        args: Positional inputs, on the meta device.
        kwargs: Named inputs, on the meta device.
        batch_axes: The batch axis of each input; None if it has none. An input that is not listed has axis 0.
        notes: Warnings for the user: parts that do not run, settings that were ignored.
        has_batch: Whether any input has a batch. If not, the program runs on its inputs as they are: on one item.
        repeat: Puts layers back into the calls that were left out of the module; None if it has all.
    """

    name: str
    module: Any
    args: tuple[Any, ...] = ()
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    batch_axes: Mapping[str, int | None] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    has_batch: bool = True
    repeat: Callable[[Any], Any] | None = None


def one_line(error: BaseException, limit: int = 200) -> str:
    """Return the message of an error as one line of at most ``limit`` characters.

    >>> one_line(ValueError("bad\\n  shape"))
    'bad shape'
    """
    text = " ".join(str(error).split()) or type(error).__name__
    return text if len(text) <= limit else text[: limit - 1] + "…"


def export_error(program: TorchProgram, error: Exception) -> ModelError:
    """Return the error to raise when ``torch.export`` fails on a program."""
    text = f"{type(error).__name__} {error}"
    if any(sign in text for sign in ("DataDependent", "data-dependent", "unbacked", "aten::nonzero", "aten.nonzero")):
        return ModelError(
            f"Cannot export {program.name}: its forward pass depends on the values of tensors, not only on their shapes"
        )
    if devices_differ(error):
        return ModelError(
            f"Cannot export {program.name}: its forward pass makes a tensor on the CPU and combines it with one of the "
            "model. Make it where the input is, such as torch.arange(n, device=x.device), or register it as a buffer"
        )
    return ModelError(f"Cannot export {program.name}: {one_line(error)}")


def build_without_weights(build: Callable[[], Any]) -> Any:
    """Call a function that builds a module, without keeping its weights in memory.

    The module is built on the meta device. A constructor that reads values (``[x.item() for x in linspace(…)]``) cannot
    run there. It is called again on the CPU, and each parameter moves to the meta device when it is registered. Buffers
    stay where the constructor made them.
    """
    torch = require("torch", extra="torch", purpose="Building PyTorch models")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            with torch.device("meta"):
                return build()
        except (RuntimeError, NotImplementedError, ValueError) as error:
            if "meta" not in str(error).lower():
                raise
        with _registering_on_meta(torch):
            return build()


@contextmanager
def _registering_on_meta(torch: Any) -> Iterator[None]:
    """Within this context, ``register_parameter`` moves every parameter to the meta device."""
    register = torch.nn.Module.register_parameter

    def register_on_meta(module: Any, name: str, parameter: Any) -> None:
        if parameter is not None and not parameter.is_meta:
            parameter = torch.nn.Parameter(parameter.data.to("meta"), requires_grad=parameter.requires_grad)
        register(module, name, parameter)

    torch.nn.Module.register_parameter = register_on_meta
    try:
        yield
    finally:
        torch.nn.Module.register_parameter = register
