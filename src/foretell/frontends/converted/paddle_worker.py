"""frontends: in the child process: a saved program of PaddlePaddle → ONNX by paddle2onnx, unoptimised."""

import importlib
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

OPSET = 18
_DTYPES = {"fp32": "float32", "fp16": "float16", "bf16": "bfloat16", "fp64": "float64"}
_CELL_BIAS = re.compile(r"_cell_\d+\.b_[01]$")
_MADE_UP = ("p2o.", "helper.", "auto.")

Refuse = Callable[[str, str], Exception]


def convert(task: dict[str, Any], folder: Path, refuse: Refuse) -> tuple[Any, set[str]]:
    """The ONNX model of a task, and the names of weights that are not trained."""
    path = _saved(task, folder, refuse) if task["format"] == "python" else Path(task["path"])
    weights = path.with_suffix(".pdiparams")
    if not weights.is_file():
        raise refuse("model", f"its weights are not there: {weights.name} must lie beside it.")
    paddle2onnx = importlib.import_module("paddle2onnx.convert")
    onnx = importlib.import_module("onnx")
    said: list[str] = []
    paddle2onnx.logging.error = lambda text: said.append(str(text))
    try:
        # no save_file: with one, paddle2onnx asks Polygraphy to fold constants and to install what that needs
        data = paddle2onnx.export(str(path), str(weights), opset_version=OPSET, enable_optimize=False)
    except UnboundLocalError as error:  # how it ends after it has logged why
        reason = " ".join(said[0].split()) if said else "no reason given"
        raise refuse("model", f"paddle2onnx cannot convert it: {reason[:300]}") from error
    if not data:
        raise refuse("model", "paddle2onnx cannot convert it. Is every operator of it supported?")
    proto = onnx.ModelProto.FromString(data)
    name_weights(proto.graph)
    return proto, _idle_biases(path)


def _idle_biases(path: Path) -> set[str]:
    """Biases that a recurrent cell without any has all the same, of zeros, because its kernel wants them."""
    if path.suffix != ".json":
        return set()
    blocks = json.loads(path.read_text(encoding="utf-8"))["program"]["regions"][0]["blocks"]
    weights = [op for block in blocks for op in block["ops"] if op["#"] == "p"]
    named = {op["A"][3]: op["OA"] for op in weights if len(op["A"]) > 3 and len(op.get("OA", ())) > 2}
    return {name for name, (_, _, trained, *_) in named.items() if not trained and _CELL_BIAS.search(name)}


def _saved(task: dict[str, Any], folder: Path, refuse: Refuse) -> Path:
    """What ``net.py:build`` returned, as a program on disk."""
    paddle = importlib.import_module("paddle")
    layer, examples = task["built"]
    if not isinstance(layer, paddle.nn.Layer):
        raise refuse("model", f"{task['function']} returned {type(layer).__name__}; it must return a paddle.nn.Layer.")
    several = examples if isinstance(examples, list | tuple) else () if examples is None else (examples,)
    wanted = task["inputs"] or [[None, list(e.shape[1:]), str(e.dtype).rpartition(".")[2]] for e in several]
    if not wanted:
        raise refuse("input", "its inputs are not known. Give them, without the batch: --input 3x224x224")
    specs = [
        paddle.static.InputSpec([None, *shape], _DTYPES.get(dtype or "fp32", dtype), name or f"x{number}")
        for number, (name, shape, dtype) in enumerate(wanted)
    ]
    layer.eval()
    paddle.jit.save(layer, str(folder / "built"), input_spec=specs)
    return folder / "built.json"


def name_weights(graph: Any) -> None:
    """Weights keep their names ("conv2d_0.w_0" tells a weight of one number); made-up constants lose the dots."""
    for node in graph.node:
        for names in (node.input, node.output):
            for position, name in enumerate(names):
                if name.startswith(_MADE_UP):
                    names[position] = name.replace(".", "_")
    for entry in graph.output:
        entry.name = entry.name.replace(".", "_") if entry.name.startswith(_MADE_UP) else entry.name
