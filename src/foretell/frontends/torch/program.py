"""Front-ends: what every torch-based front-end hands to the exporter, and what the exporter says when it fails."""

import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from foretell.errors import ModelError
from foretell.optional import require


@dataclass(frozen=True)
class TorchProgram:
    """A module on the meta device and the inputs to export it with.

    Attributes:
        name: What to call the model.
        module: An ``nn.Module`` without storage, in the mode (train or eval) it would run in.
        args: Positional inputs, on the meta device.
        kwargs: Named inputs, on the meta device.
        batch_axes: Axis of the batch in each input; None where it has none, absent where it is axis 0.
        notes: What a reader of the costs should know: parts that do not run, settings that were ignored.
    """

    name: str
    module: Any
    args: tuple[Any, ...] = ()
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    batch_axes: Mapping[str, int | None] = field(default_factory=dict)
    notes: tuple[str, ...] = ()


def one_line(error: BaseException, limit: int = 200) -> str:
    """The first telling line of an error, cut to ``limit`` characters.

    >>> one_line(ValueError("bad\\n  shape"))
    'bad shape'
    """
    text = " ".join(str(error).split()) or type(error).__name__
    return text if len(text) <= limit else text[: limit - 1] + "…"


def export_error(program: TorchProgram, error: Exception) -> ModelError:
    """What to raise when ``torch.export`` fails on a program."""
    text = f"{type(error).__name__} {error}"
    if any(sign in text for sign in ("DataDependent", "data-dependent", "unbacked", "aten::nonzero", "aten.nonzero")):
        return ModelError(
            f"Cannot export {program.name}: its forward pass depends on the values of tensors, not only on their shapes"
        )
    return ModelError(f"Cannot export {program.name}: {one_line(error)}")


def build_without_weights(build: Callable[[], Any]) -> Any:
    """Call a function that makes a module, so that its weights are never kept.

    Everything is made on the meta device. Constructors that read tensors back (``[x.item() for x in linspace(…)]``)
    cannot run there; they are called again on the CPU, and each parameter moves to the meta device when registered.
    Buffers stay where the constructor made them.
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
