"""Lab: the six patterns of LILOU's Table 5, asked of ONNX Runtime itself: ``python -m lab.papers.lilou.patterns``.

Two of them, add-sqrt-div-mul-add (a layer norm) and div-erf-add-mul-mul (a GELU), do not occur in our labelled graphs,
which have each as one node. Here a small file spells out all six, as exporters below opset 17 do; ONNX Runtime
optimises it, and says which nodes are left. A pattern is fused where none of its operators is left. Beside it stand
nn-Meter's rules and foretell's partitioner. Three of each are in the file.
"""

import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from foretell import load_graph
from foretell.optional import require
from foretell.predictors.fusion.baselines import by_rules
from foretell.predictors.fusion.edges import extract_edges
from foretell.predictors.fusion.kernel_graph import find_kernels
from foretell.predictors.fusion.partitioner import unite

RUNTIME, COUNT = "onnxruntime", 3
PATTERNS = {
    "conv-relu": ("Conv", "Relu"), "sigmoid-mul": ("Sigmoid", "Mul"),
    "batchnorm-relu": ("BatchNormalization", "Relu"), "hardsigmoid-mul": ("HardSigmoid", "Mul"),
    "add-sqrt-div-mul-add": ("Add", "Sqrt", "Div", "Mul", "Add"),
    "div-erf-add-mul-mul": ("Div", "Erf", "Add", "Mul", "Mul"),
}  # fmt: skip
_WIDTH = 8


def write_file(pattern: str, file: Path, count: int = COUNT) -> None:
    """An ONNX file with a pattern some times in a row, between matrix products or convolutions."""
    onnx = require("onnx", extra="train", purpose="Writing an ONNX file")
    helper, nodes, constants = onnx.helper, list[Any](), dict[str, Any]()
    shape = (1, _WIDTH, 4, 4) if pattern.startswith(("conv", "batchnorm")) else (1, 4, _WIDTH)

    def constant(name: str, *sizes: int, value: float = 0.5) -> str:
        total = 1
        for size in sizes:
            total *= size
        constants[name] = helper.make_tensor(name, onnx.TensorProto.FLOAT, sizes, [value] * total)
        return name

    def node(op: str, *inputs: str, **attributes: Any) -> str:
        name = f"{op.lower()}_{len(nodes)}"
        nodes.append(helper.make_node(op, inputs, [name], name, **attributes))
        return name

    x = "x"
    for number in range(count):
        here = f"c{number}"
        if len(shape) == 3:
            x = node("MatMul", x, constant(f"{here}_w", _WIDTH, _WIDTH))
        x = _PARTS[pattern](node, constant, here, x)
    value = helper.make_tensor_value_info
    outputs = [value(x, onnx.TensorProto.FLOAT, shape)]
    graph = helper.make_graph(nodes, pattern, [value("x", onnx.TensorProto.FLOAT, shape)], outputs, constants.values())
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8)
    onnx.checker.check_model(model)
    file.write_bytes(model.SerializeToString())


def _conv_relu(node: Any, constant: Any, here: str, x: str) -> str:
    return str(node("Relu", node("Conv", x, constant(f"{here}_k", _WIDTH, _WIDTH, 3, 3), pads=[1, 1, 1, 1])))


def _norm_relu(node: Any, constant: Any, here: str, x: str) -> str:
    pooled = node("MaxPool", x, kernel_shape=[1, 1])  # a batch norm behind a convolution would become part of it
    vectors = [constant(f"{here}_{name}", _WIDTH) for name in ("scale", "shift", "mean", "variance")]
    return str(node("Relu", node("BatchNormalization", pooled, *vectors)))


def _gated(op: str) -> Any:
    return lambda node, _constant, _here, x: str(node("Mul", x, node(op, x)))


def _layer_norm(node: Any, constant: Any, here: str, x: str) -> str:
    centred = node("Sub", x, node("ReduceMean", x, axes=[-1]))
    variance = node("ReduceMean", node("Pow", centred, constant(f"{here}_two", value=2.0)), axes=[-1])
    root = node("Sqrt", node("Add", variance, constant(f"{here}_small", value=1e-5)))
    scaled = node("Mul", node("Div", centred, root), constant(f"{here}_gain", _WIDTH))
    return str(node("Add", scaled, constant(f"{here}_bias", _WIDTH)))


def _gelu(node: Any, constant: Any, here: str, x: str) -> str:
    erf = node("Erf", node("Div", x, constant(f"{here}_root", value=2.0**0.5)))
    product = node("Mul", x, node("Add", erf, constant(f"{here}_one", value=1.0)))
    return str(node("Mul", product, constant(f"{here}_half", value=0.5)))


_PARTS: dict[str, Any] = {
    "conv-relu": _conv_relu, "sigmoid-mul": _gated("Sigmoid"), "batchnorm-relu": _norm_relu,
    "hardsigmoid-mul": _gated("HardSigmoid"), "add-sqrt-div-mul-add": _layer_norm, "div-erf-add-mul-mul": _gelu,
}  # fmt: skip


def left_by_runtime(file: Path) -> list[str]:
    """The operators that ONNX Runtime leaves of a file, with all of its optimisations for a CPU."""
    onnx = require("onnx", extra="train", purpose="Reading an ONNX file")
    runtime = require("onnxruntime", extra="train", purpose="Optimising an ONNX file")
    options = runtime.SessionOptions()
    options.log_severity_level = 3
    with tempfile.TemporaryDirectory() as folder:
        options.optimized_model_filepath = str(Path(folder) / "optimised.onnx")
        runtime.InferenceSession(str(file), options, providers=["CPUExecutionProvider"])
        return [node.op_type for node in onnx.load(options.optimized_model_filepath).graph.node]


def predicted_kernels(file: Path) -> dict[str, list[tuple[str, ...]]]:
    """The operators of each kernel by rules and by foretell."""
    graph = load_graph(str(file), as_written=True)
    edges = extract_edges(graph, RUNTIME)
    groups = unite(len(graph.nodes), edges, by_rules(edges.features))
    by_group: dict[int, list[str]] = {}
    for position, group in enumerate(groups):
        by_group.setdefault(group, []).append(graph.nodes[position].op)
    trees = [tuple(graph.nodes[position].op for position in kernel) for kernel in find_kernels(graph, RUNTIME)]
    return {"rules": [tuple(ops) for ops in by_group.values()], "foretell": trees}


def joined(kernels: Sequence[Sequence[str]], pattern: Sequence[str]) -> int:
    """How many kernels have all operators of a pattern.

    >>> joined([("Conv", "Relu"), ("Conv",)], ("Conv", "Relu"))
    1
    """
    return sum(all(kernel.count(op) >= list(pattern).count(op) for op in pattern) for kernel in map(list, kernels))


def lines() -> Iterator[str]:
    """The table, line by line, as Markdown."""
    yield "| pattern | ONNX Runtime leaves | fused by it | by rules | by foretell |"
    yield "|---|---|---:|---:|---:|"
    with tempfile.TemporaryDirectory() as folder:
        for name, pattern in PATTERNS.items():
            file = Path(folder) / "pattern.onnx"
            write_file(name, file)
            left = left_by_runtime(file)
            fused = COUNT - max(left.count(op) for op in pattern if op != "Conv")
            kinds = ", ".join(sorted(set(left)))
            told = {way: joined(kernels, pattern) for way, kernels in predicted_kernels(file).items()}
            cells = (f"{number} of {COUNT}" for number in (fused, told["rules"], told["foretell"]))
            yield f"| {name} | {kinds} | " + " | ".join(cells) + " |"


def main() -> None:
    """Print the table."""
    for line in lines():
        sys.stdout.write(f"{line}\n")


if __name__ == "__main__":
    main()
