"""Lab: graph networks as ONNX models: the forward pass runs on names instead of numbers, and writes nodes.

`lab.papers.graph_networks.forward` is written against a set of operations. Torch implements them with tensors; here
each operation appends a node to an ONNX graph. So the model that is served is the one that was fitted, by construction.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from foretell.optional import require
from lab.papers.graph_networks.forward import Inputs, forward, log_targets
from lab.papers.graph_networks.recipes import NODE_WIDTHS, Recipe
from lab.papers.graph_networks.weights import Weights

_OPSET, _IR_VERSION = 18, 9
_SMALL_FROM = 4096  # elements; smaller arrays are stored as float32
_LARGEST, _MIN_SCALE = 127, 1e-30
BATCH_NORM_EPSILON = 1e-5
SHORTEST_ROW = 1e-12  # the least length that a row is divided by


def to_onnx(recipe: Recipe, weights: Weights, notes: Mapping[str, str], *, small: bool = False) -> bytes:
    """``nodes`` (N, F), ``edges`` (2, E), ``graph_index`` (N), ``whole`` (G, S) → ``log_targets`` (G, T).

    ``notes`` become the model's metadata. With ``small``, large matrices are stored in 8 bits with a scale for each
    column: a quarter of the size, and errors up to 1/254 of the largest weight of the column.
    """
    onnx = require("onnx", extra="train", purpose="Writing graph networks")
    make, numbers = onnx.helper, onnx.TensorProto
    writer = _Writer(weights, small)
    nodes, edges, graph_index, whole = (_Name(writer, name) for name in ("nodes", "edges", "graph_index", "whole"))
    out = forward(writer, recipe, Inputs(nodes, edges, graph_index, whole))
    result = log_targets(writer, recipe, out)
    writer.write("Identity", [result.name], name="log_targets")
    inputs = [
        make.make_tensor_value_info("nodes", numbers.FLOAT, ["N", NODE_WIDTHS[recipe.nodes]]),
        make.make_tensor_value_info("edges", numbers.INT64, [2, "E"]),
        make.make_tensor_value_info("graph_index", numbers.INT64, ["N"]),
        make.make_tensor_value_info("whole", numbers.FLOAT, ["G", len(recipe.columns)]),
    ]
    graph = make.make_graph(
        [make.make_node(op, node_inputs, [name], **attributes) for op, node_inputs, name, attributes in writer.nodes],
        "graph_network",
        inputs,
        [make.make_tensor_value_info("log_targets", numbers.FLOAT, ["G", len(recipe.targets)])],
        [onnx.numpy_helper.from_array(value, name) for name, value in writer.arrays.items()],
    )
    model = make.make_model(
        graph, opset_imports=[make.make_opsetid("", _OPSET)], producer_name="foretell", ir_version=_IR_VERSION
    )
    onnx.helper.set_model_props(model, dict(sorted(notes.items())))
    return bytes(model.SerializeToString(deterministic=True))


@dataclass(frozen=True)
class _Name:
    """A tensor of the ONNX model that is being written; arithmetic on it appends nodes."""

    writer: "_Writer"
    name: str

    def __add__(self, other: "_Name | float") -> "_Name":
        return self.writer.apply("Add", self, other)

    def __sub__(self, other: "_Name | float") -> "_Name":
        return self.writer.apply("Sub", self, other)

    def __mul__(self, other: "_Name | float") -> "_Name":
        return self.writer.apply("Mul", self, other)

    def __truediv__(self, other: "_Name | float") -> "_Name":
        return self.writer.apply("Div", self, other)

    def __matmul__(self, other: "_Name") -> "_Name":
        return self.writer.apply("MatMul", self, other)


@dataclass(frozen=True)
class _Writer:
    """The operations of a forward pass as nodes of an ONNX graph."""

    weights: Weights
    small: bool = False
    nodes: list[tuple[str, list[str], str, dict[str, Any]]] = field(default_factory=list)
    arrays: dict[str, NDArray[Any]] = field(default_factory=dict)
    known: dict[str, _Name] = field(default_factory=dict)

    def write(self, op: str, inputs: Sequence[str], name: str = "", **attributes: Any) -> _Name:
        """Append one node; return its output."""
        name = name or f"{op.lower()}_{len(self.nodes)}"
        self.nodes.append((op, list(inputs), name, attributes))
        return _Name(self, name)

    def apply(self, op: str, *inputs: _Name | float, **attributes: Any) -> _Name:
        """Append one node whose inputs may be numbers."""
        named = [x if isinstance(x, _Name) else self.constant(np.array([x], np.float32)) for x in inputs]
        return self.write(op, [x.name for x in named], **attributes)

    def weight(self, name: str) -> _Name:
        if name not in self.known:
            value = self.weights[name]
            # biases and norms stay exact: they are small and sensitive
            if self.small and value.ndim == 2 and value.size >= _SMALL_FROM:
                scale = np.maximum(np.abs(value).max(axis=0, keepdims=True), _MIN_SCALE) / _LARGEST
                self.arrays[f"{name}.bytes"] = np.rint(value / scale).astype(np.int8)
                self.arrays[f"{name}.step"] = scale.astype(np.float32)
                # not DequantizeLinear: plain arithmetic on constants is folded once, when the model is loaded
                integers = self.write("Cast", [f"{name}.bytes"], f"{name}.whole", to=1)
                self.known[name] = self.write("Mul", [integers.name, f"{name}.step"], name)
            else:
                self.arrays[name] = value
                self.known[name] = _Name(self, name)
        return self.known[name]

    def constant(self, value: NDArray[Any]) -> _Name:
        name = f"constant_{len(self.arrays)}"
        self.arrays[name] = value
        return _Name(self, name)

    def narrow(self, x: _Name) -> _Name:
        return x

    def cast_like(self, x: _Name, _other: _Name) -> _Name:
        return x

    def relu(self, x: _Name, slope: float = 0.0) -> _Name:
        return self.apply("LeakyRelu", x, alpha=slope) if slope else self.apply("Relu", x)

    def exp(self, x: _Name) -> _Name:
        return self.apply("Exp", x)

    def log(self, x: _Name) -> _Name:
        return self.apply("Log", x)

    def softplus(self, x: _Name) -> _Name:
        return self.apply("Softplus", x)

    def absolute(self, x: _Name) -> _Name:
        return self.apply("Abs", x)

    def sign(self, x: _Name) -> _Name:
        return self.apply("Sign", x)

    def clip_min(self, x: _Name, minimum: float) -> _Name:
        return self.apply("Max", x, minimum)

    def concat(self, parts: Sequence[_Name], axis: int) -> _Name:
        return self.apply("Concat", *parts, axis=axis)

    def edge_ends(self, edges: _Name) -> tuple[_Name, _Name]:
        ends = (self.constant(np.array(row, np.int64)) for row in (0, 1))
        maker, reader = (self.apply("Gather", edges, row, axis=0) for row in ends)
        return maker, reader

    def rows(self, x: _Name, index: _Name) -> _Name:
        return self.apply("Gather", x, index, axis=0)

    def sum_into(self, x: _Name, index: _Name, like: _Name) -> _Name:
        shape = self.concat([self._shape(like, 0), self._shape(x, 1)], 0)
        return self._scatter(self.apply("ConstantOfShape", shape), index, x, "add")

    def count_into(self, index: _Name, like: _Name) -> _Name:
        one = self.constant(np.ones((1, 1), np.float32))
        shape = self.concat([self._shape(index, 0), self.constant(np.array([1], np.int64))], 0)
        return self.sum_into(self.apply("Expand", one, shape), index, like)

    def max_into(self, x: _Name, index: _Name, start: _Name) -> _Name:
        return self._scatter(start, index, x, "max")

    def routes(self, source: _Name, target: _Name, _like: _Name) -> tuple[_Name, _Name]:
        return source, target

    def neighbours(self, x: _Name, routes: tuple[_Name, _Name]) -> _Name:
        source, target = routes
        return self.sum_into(self.rows(x, source), target, x)

    def affine(self, x: _Name, weight: _Name, addend: _Name) -> _Name:
        return x @ weight + addend

    def unit_rows(self, x: _Name) -> _Name:
        lengths = self.apply("ReduceL2", x, self.constant(np.array([1], np.int64)), keepdims=1)
        return x / self.clip_min(lengths, SHORTEST_ROW)

    def layer_norm(self, x: _Name, name: str) -> _Name:
        gain, bias = self.weight(f"{name}.gain"), self.weight(f"{name}.bias")
        return self.apply("LayerNormalization", x, gain, bias, axis=-1)

    def batch_norm(self, x: _Name, name: str) -> _Name:
        parts = (self.weight(f"{name}.{part}") for part in ("gain", "bias", "mean", "variance"))
        return self.apply("BatchNormalization", x, *parts, epsilon=BATCH_NORM_EPSILON)

    def dropout(self, x: _Name, _share: float, /) -> _Name:
        return x

    def _shape(self, x: _Name, axis: int) -> _Name:
        return self.apply("Shape", x, start=axis, end=axis + 1)

    def _scatter(self, start: _Name, index: _Name, x: _Name, reduction: str) -> _Name:
        column = self.apply("Unsqueeze", index, self.constant(np.array([1], np.int64)))
        return self.apply("ScatterND", start, column, x, reduction=reduction)
