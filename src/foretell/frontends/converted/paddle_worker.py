"""Frontends: runs in the child process: converts a saved PaddlePaddle program with paddle2onnx, unoptimised."""

import importlib
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

OPSET = 18
_DTYPES = {"fp32": "float32", "fp16": "float16", "bf16": "bfloat16", "fp64": "float64"}
_CELL_BIAS = re.compile(r"_cell_\d+\.b_[01]$")
_GENERATED = ("p2o.", "helper.", "auto.")  # how the names of paddle2onnx's own constants begin

Refuse = Callable[[str, str], Exception]


def convert(task: dict[str, Any], folder: Path, refuse: Refuse) -> tuple[Any, set[str]]:
    """Return the ONNX model of a task, and the names of weights that are not trained."""
    path = _saved(task, folder, refuse) if task["format"] == "python" else Path(task["path"])
    weights = path.with_suffix(".pdiparams")
    if not weights.is_file():
        raise refuse("model", f"its weights are missing: {weights.name} must be beside it.")
    paddle2onnx = importlib.import_module("paddle2onnx.convert")
    onnx = importlib.import_module("onnx")
    errors: list[str] = []
    paddle2onnx.logging.error = lambda text: errors.append(str(text))
    try:
        # no save_file: with one, paddle2onnx asks Polygraphy to fold constants and to install what that needs
        data = paddle2onnx.export(str(path), str(weights), opset_version=OPSET, enable_optimize=False)
    except UnboundLocalError as error:  # it logs the reason, then fails with this
        reason = " ".join(errors[0].split()) if errors else "no reason given"
        raise refuse("model", f"paddle2onnx cannot convert it: {reason[:300]}") from error
    if not data:
        raise refuse("model", "paddle2onnx cannot convert it. It may have an operator that is not supported.")
    proto = onnx.ModelProto.FromString(data)
    name_weights(proto.graph)
    return proto, _idle_biases(path)


def _idle_biases(path: Path) -> set[str]:
    """The biases of recurrent cells that were built without: Paddle adds zeros, because its kernel needs them."""
    if path.suffix != ".json":
        return set()
    blocks = json.loads(path.read_text(encoding="utf-8"))["program"]["regions"][0]["blocks"]
    weights = [op for block in blocks for op in block["ops"] if op["#"] == "p"]
    named = {op["A"][3]: op["OA"] for op in weights if len(op["A"]) > 3 and len(op.get("OA", ())) > 2}
    return {name for name, (_, _, trained, *_) in named.items() if not trained and _CELL_BIAS.search(name)}


def _saved(task: dict[str, Any], folder: Path, refuse: Refuse) -> Path:
    """Save what ``net.py:build`` returned as a program on disk."""
    paddle = importlib.import_module("paddle")
    layer, examples = task["built"]
    if not isinstance(layer, paddle.nn.Layer):
        raise refuse("model", f"{task['function']} returned {type(layer).__name__}; it must return a paddle.nn.Layer.")
    example_list = examples if isinstance(examples, list | tuple) else () if examples is None else (examples,)
    inputs = task["inputs"] or [[None, list(e.shape[1:]), str(e.dtype).rpartition(".")[2]] for e in example_list]
    if not inputs:
        raise refuse("input", "its inputs are not known. Give them, without the batch: --input 3x224x224")
    specs = [
        paddle.static.InputSpec([None, *shape], _DTYPES.get(dtype or "fp32", dtype), name or f"x{number}")
        for number, (name, shape, dtype) in enumerate(inputs)
    ]
    layer.eval()
    paddle.jit.save(layer, str(folder / "built"), input_spec=specs)
    return folder / "built.json"


def name_weights(graph: Any) -> None:
    """Remove the dots from the names of generated constants.

    A name with dots, such as "conv2d_0.w_0", marks a weight, even if it has a single element.
    """
    for node in graph.node:
        for names in (node.input, node.output):
            for position, name in enumerate(names):
                if name.startswith(_GENERATED):
                    names[position] = name.replace(".", "_")
    for entry in graph.output:
        entry.name = entry.name.replace(".", "_") if entry.name.startswith(_GENERATED) else entry.name
