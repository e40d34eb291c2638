"""frontends: in the child process: a function of JAX or a module of Flax → ONNX by jax2onnx."""

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
    """The ONNX model of the caller's object, or of what ``net.py:build`` returns, with example inputs or without."""
    if task["format"] == "object":
        return _convert_object(task, folder, refuse), set()
    function, examples = task["built"]
    return convert_function(function, task["inputs"], examples, refuse), set()


def _convert_object(task: dict[str, Any], folder: Path, refuse: Refuse) -> Any:
    """The ONNX model of what ``jax_objects.py`` has written into the private folder; nothing else is ever unpickled."""
    theirs, ours = (".".join(map(str, version)) for version in (task["python"], sys.version_info[:2]))
    install = "Install it beside your model: pip install 'foretell[jax]'"
    if theirs != ours:  # bytecode of another Python could do anything
        raise refuse("missing", f"it runs in Python {theirs}, but jax2onnx is installed in Python {ours}. {install}")
    if sys.flags.isolated:  # an own environment: its JAX comes first, and what it lacks from the caller's
        sys.path += [entry for entry in task["search"] if entry not in sys.path]
    else:
        sys.path[:] = task["search"]
    jax = importlib.import_module("jax")
    jax.config.update("jax_enable_x64", task["x64"])
    same = task["jax"] in (None, jax.__version__)
    way_out = "Make it in a function of a file and give that: net.py:build"
    if not same:
        way_out = f"It is made with jax {task['jax']}, and jax2onnx is installed with jax {jax.__version__}. {install}"
    try:
        with (folder / "given.pickle").open("rb") as file:
            function = pickle.load(file)
    except (Exception, SystemExit) as error:  # modules of the caller's are imported
        raise refuse("model", f"it cannot be rebuilt in the converter's process: {_told(error)}. {way_out}") from error
    try:
        return convert_function(function, task["inputs"], None, refuse)
    except Exception as error:
        if same or hasattr(error, "kind"):
            raise
        raise refuse("model", f"the converter gave up: {_told(error)}. {way_out}") from error


def _told(error: BaseException) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())[:200]}".rstrip(": .")


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
