"""frontends: a function of JAX or a module of Flax → ONNX by jax2onnx; in the child process, or where it is."""

import importlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

OPSET = 21
_DTYPES = {"fp32": "float32", "fp16": "float16", "bf16": "bfloat16", "fp64": "float64"}

Refuse = Callable[[str, str], Exception]


def convert(task: dict[str, Any], folder: Path, refuse: Refuse) -> tuple[Any, set[str]]:  # noqa: ARG001 - as all workers
    """The ONNX model of ``net.py:build``, which returns a function, or a function and example inputs."""
    function, examples = task["built"]
    return convert_function(function, task["inputs"], examples, refuse), set()


def convert_function(function: Any, given: list[Any], examples: Any, refuse: Refuse) -> Any:
    """The ONNX model of a function with inputs as the user gave them, or as the examples have them."""
    if not callable(function):
        raise refuse("model", f"{type(function).__name__} is no function and no module of Flax.")
    jax = importlib.import_module("jax")
    jax2onnx = importlib.import_module("jax2onnx")
    names: list[str] = []
    if given:
        specs = [jax.ShapeDtypeStruct(("B", *shape), _dtype(dtype)) for _, shape, dtype in given]
        names = [name or f"x{position}" for position, (name, _, _) in enumerate(given)]
    elif examples is not None:
        several = isinstance(examples, list | tuple)
        specs = [_open(jax, example) for example in (examples if several else (examples,))]
    else:
        raise refuse("input", "its inputs are not known. Give them, without the batch: --input 224x224x3")
    if hasattr(function, "eval") and hasattr(function, "train"):
        function.eval()
    options = {"input_names": names} if names else {}
    return jax2onnx.to_onnx(function, specs, opset=OPSET, normalization_mode="prefer_native", **options)


def _open(jax: Any, example: Any) -> Any:
    """An example's shape, its first axis left open: it is the batch."""
    return jax.ShapeDtypeStruct(("B", *example.shape[1:]) if example.shape else (), example.dtype)


def _dtype(name: str | None) -> str:
    return _DTYPES.get(name or "fp32", str(name))
