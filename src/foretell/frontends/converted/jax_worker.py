"""Frontends: runs in the child process: converts a function of JAX or a module of Flax with jax2onnx."""

import importlib
import pickle
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

OPSET = 21
_DTYPES = {"fp32": "float32", "fp16": "float16", "bf16": "bfloat16", "fp64": "float64"}

Refuse = Callable[[str, str], Exception]


def convert(task: dict[str, Any], folder: Path, refuse: Refuse) -> tuple[Any, set[str]]:
    """Return the ONNX model of the caller's object, or of what ``net.py:build`` returns."""
    if task["format"] == "object":
        return _convert_object(task, folder, refuse), set()
    function, examples = task["built"]
    return convert_function(function, task["inputs"], examples, refuse), set()


def _convert_object(task: dict[str, Any], folder: Path, refuse: Refuse) -> Any:
    """Convert the object that ``jax_objects.py`` wrote into the private folder; nothing else is ever unpickled."""
    caller_python, this_python = (".".join(map(str, version)) for version in (task["python"], sys.version_info[:2]))
    install = "Install it beside your model: pip install 'foretell[jax]'"
    if caller_python != this_python:  # bytecode of another Python version must not run
        raise refuse(
            "missing",
            f"it runs in Python {caller_python}, but jax2onnx is installed in Python {this_python}. {install}",
        )
    if sys.flags.isolated:  # a separate environment: its own JAX comes first, other modules come from the caller
        sys.path += [entry for entry in task["search"] if entry not in sys.path]
    else:
        sys.path[:] = task["search"]
    jax = importlib.import_module("jax")
    jax.config.update("jax_enable_x64", task["x64"])
    same_jax = task["jax"] in (None, jax.__version__)
    advice = "Build it in a function of a file instead, and give net.py:build"
    if not same_jax:
        advice = f"It was made with jax {task['jax']}, but jax2onnx is installed with jax {jax.__version__}. {install}"
    try:
        with (folder / "given.pickle").open("rb") as file:
            function = pickle.load(file)
    except (Exception, SystemExit) as error:  # unpickling imports modules of the caller
        raise refuse(
            "model", f"it cannot be rebuilt in the converter's process: {_one_line(error)}. {advice}"
        ) from error
    try:
        return convert_function(function, task["inputs"], None, refuse)
    except Exception as error:
        if same_jax or hasattr(error, "kind"):
            raise
        raise refuse("model", f"the converter failed: {_one_line(error)}. {advice}") from error


def _one_line(error: BaseException) -> str:
    """The type and the message of an error in one line."""
    return f"{type(error).__name__}: {' '.join(str(error).split())[:200]}".rstrip(": .")


def convert_function(function: Any, user_inputs: list[Any], examples: Any, refuse: Refuse) -> Any:
    """Convert a function; its inputs are those that the user gave, or have the shapes of the examples."""
    if not callable(function):
        raise refuse("model", f"{type(function).__name__} is neither a function nor a module of Flax.")
    jax = importlib.import_module("jax")
    jax2onnx = importlib.import_module("jax2onnx")
    names: list[str] = []
    if user_inputs:
        specs = [jax.ShapeDtypeStruct(("B", *shape), _dtype(dtype)) for _, shape, dtype in user_inputs]
        names = [name or f"x{position}" for position, (name, _, _) in enumerate(user_inputs)]
    elif examples is not None:
        several = isinstance(examples, list | tuple)
        specs = [_open(jax, example) for example in (examples if several else (examples,))]
    else:
        raise refuse("input", "its inputs are not known. Give them, without the batch: --input 224x224x3")
    # a module of Flax NNX may be in training mode
    if hasattr(function, "eval") and hasattr(function, "train"):
        function.eval()
    options = {"input_names": names} if names else {}
    return jax2onnx.to_onnx(function, specs, opset=OPSET, normalization_mode="prefer_native", **options)


def _open(jax: Any, example: Any) -> Any:
    """The shape of an example; its first axis, the batch, is left open."""
    return jax.ShapeDtypeStruct(("B", *example.shape[1:]) if example.shape else (), example.dtype)


def _dtype(name: str | None) -> str:
    return _DTYPES.get(name or "fp32", str(name))
