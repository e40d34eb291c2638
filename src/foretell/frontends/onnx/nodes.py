"""Frontends: converts ONNX nodes: attributes in one form, constants sorted into weights and others, module paths.

The module path and the origin of a node come from the notes that PyTorch's exporter writes into the file.
"""

import ast
import re
from typing import Any

import numpy as np
from onnx import NodeProto, SparseTensorProto, TensorProto

from foretell.errors import ModelError
from foretell.frontends.budget import module_path
from foretell.frontends.onnx.contrib import BLOCKED, STANDARD, canonical_name
from foretell.frontends.onnx.shapes import STATE_NAME, Shapes
from foretell.frontends.onnx.values import MAX_ELEMENTS
from foretell.frontends.torch.aten import canonical_operator
from foretell.graph import Node
from foretell.graph.ir.node import Attribute
from foretell.graph.ir.operators import foreign_name
from foretell.graph.ir.tensor import TensorKind

_DTYPES = {
    1: "fp32", 2: "uint8", 3: "int8", 4: "uint16", 5: "int16", 6: "int32", 7: "int64", 8: "string", 9: "bool",
    10: "fp16", 11: "fp64", 12: "uint32",
    13: "uint64", 14: "complex64", 15: "complex128", 16: "bf16", 17: "fp8", 18: "fp8", 19: "fp8", 20: "fp8",
    21: "uint4", 22: "int4", 23: "fp4",
    24: "fp8", 25: "uint2", 26: "int2",
}  # fmt: skip
# inputs that configure the operator (axes, shapes, pads): by position, the attribute that they become; "" drops them
_AS_ATTRIBUTES = {
    "Reshape": {1: ""}, "Expand": {1: ""}, "Tile": {1: "repeats"}, "ConstantOfShape": {0: ""}, "Slice": {1: "starts",
    2: "ends", 3: "axes", 4: "steps"},
    "Squeeze": {1: "axes"}, "Unsqueeze": {1: "axes"}, "Split": {1: "split"}, "Pad": {1: "pads", 2: ""},
    "Resize": {1: "", 2: "", 3: ""},
    "Upsample": {1: ""}, "TopK": {1: "k"}, "Clip": {1: "", 2: ""}, "Range": {0: "", 1: "", 2: ""}, "Dropout": {1: "",
    2: ""}, "CumSum": {1: "axis"},
    "OneHot": {1: "depth", 2: ""}, "CenterCropPad": {1: ""}, "Trilu": {1: "k"}, "DFT": {1: "", 2: "axis"},
    **{op: {1: "axes"} for op in ("ReduceSum", "ReduceMean", "ReduceMax", "ReduceMin", "ReduceProd")},
    **{op: {1: "axes"} for op in ("ReduceL1", "ReduceL2", "ReduceSumSquare", "ReduceLogSum", "ReduceLogSumExp")},
}  # fmt: skip
# the positions of inputs that are not trained: running statistics, scales and zero points
_STATISTICS = {
    "BatchNormalization": (3, 4), "QuantizeLinear": (1, 2), "DequantizeLinear": (1, 2),
    "QLinearConv": (1, 2, 4, 5, 6, 7),
    "QLinearMatMul": (1, 2, 4, 5, 6, 7), "QGemm": (1, 2, 4, 5, 7, 8), "MatMulInteger": (2, 3), "ConvInteger": (2, 3),
    "MatMulNBits": (2, 3), "DynamicQuantizeMatMul": (2, 3), "MatMulIntegerToFloat": (2, 3, 4, 5),
    "QLinearAdd": (1, 2, 4, 5, 6, 7),
    "QLinearMul": (1, 2, 4, 5, 6, 7), "DynamicQuantizeLSTM": (8, 9, 10, 11),
    "QLinearConcat": (0, 1, *(i for i in range(3, 96) if i % 3 != 2)),
    **{f"QLinear{op}": (1, 2, 3, 4) for op in ["Sigmoid", "LeakyRelu", "Softmax", "AveragePool", "GlobalAveragePool"]},
}  # fmt: skip
# the positions of integer inputs that are quantised weights
_QUANTISED_WEIGHTS = {"DequantizeLinear": 0, "QLinearConv": 8, "QGemm": 6}
# PyTorch's exporter keeps the names of a module's state; by convention these are buffers, which are not trained
_BUFFER_NAME = re.compile(
    r"(?:rope\.\w+|mask|position_ids|position_index|inv_freq|running_mean|running_var|coords_table|(?:cos|sin)_cached|"
    r"num_batches_tracked)$"
)
_FOLDED_NAME = re.compile(r"^val_\d+$")  # how PyTorch's exporter names constants that it has computed
_PACKED = {2: TensorProto.UINT2, 4: TensorProto.UINT4, 8: TensorProto.UINT8}


def dtype_of(element_type: int) -> str:
    """Return the dtype of an ONNX element type."""
    if element_type not in _DTYPES:
        raise ModelError(f"The model has a tensor of the unknown ONNX element type {element_type}.")
    return _DTYPES[element_type]


class NodeReader:
    """Converts the nodes of one graph, and remembers which constants are weights."""

    def __init__(self, shapes: Shapes) -> None:
        self.shapes = shapes
        self.constants: dict[str, int] = {}
        self.statistics: set[str] = set()
        self.initializers: set[str] = set()
        self.quantised: set[str] = set()
        self.names: set[str] = set()
        self.warnings: list[str] = []

    def read_constant(self, node: NodeProto, attributes: dict[str, Any]) -> None:
        """Read a Constant node, which is an initializer in another form."""
        name, value = node.output[0], next(iter(attributes.values()), None)
        if isinstance(value, TensorProto):
            self.shapes.enter_constant(name, value)
            self.constants[name] = value.data_type
            return
        if isinstance(value, SparseTensorProto):
            self.shapes.enter(name, tuple(value.dims), value.values.data_type)
            self.constants[name] = value.values.data_type
            return
        # the attribute is value_int, value_ints, value_float, value_floats, value_string or value_strings
        array = np.asarray(value, dtype=np.int64 if "int" in "".join(attributes) else None)
        if array.dtype == object or array.dtype.kind in "US":
            self.shapes.enter(name, array.shape, TensorProto.STRING)
            self.constants[name] = TensorProto.STRING
            return
        if array.size <= MAX_ELEMENTS:
            self.shapes.keep(name, array.astype(np.float32) if array.dtype == np.float64 else array)
        kind = TensorProto.INT64 if array.dtype.kind == "i" else TensorProto.FLOAT
        self.shapes.enter(name, array.shape, kind)
        self.constants[name] = kind

    def kind_of(self, name: str, shape: tuple[int, ...]) -> TensorKind:
        """Return the kind of a constant. A trained weight is a floating-point tensor or a quantised matrix.

        A single number and a running statistic are not trained.
        """
        if name not in self.constants:
            return "constant"
        dtype = dtype_of(self.constants[name])
        if name in self.quantised:
            return "parameter"
        if name in self.statistics or _BUFFER_NAME.search(name):
            return "buffer"
        if dtype in ("fp64", "fp32", "fp16", "bf16", "fp8", "fp4"):
            one_number = not shape or shape == (1,)
            return "constant" if one_number and not STATE_NAME.match(name) else "parameter"
        if dtype in ("int8", "uint8", "int4", "uint4", "int2", "uint2") and len(shape) >= 2:
            return "parameter"
        return "buffer"

    def convert(self, node: NodeProto, attributes: dict[str, Any]) -> Node | None:
        """Return the graph's node, or None if its result is known already and nothing runs."""
        outputs = [o for o in node.output if o]
        if outputs and all(o in self.shapes.values for o in outputs):
            self._keep_values(outputs)
            return None
        self._note_weights(node)
        inputs = list(node.input)
        plain: dict[str, Attribute] = {k: v for k, raw in attributes.items() if (v := _plain(raw)) is not None}
        self._move_to_attributes(node.op_type, inputs, plain)
        op = self._operator(node, inputs, plain)
        # absent optional inputs at the end are dropped, those in the middle keep their place
        while inputs and not inputs[-1]:
            inputs.pop()
        module, origin, origin_op = _provenance(node)
        # ONNX does not require names, nor that they are unique
        name = node.name if node.name and node.name not in self.names else next(iter(outputs), node.name)
        self.names.add(name)
        domain = "" if node.domain in (*STANDARD, BLOCKED) and canonical_name(node) is not None else node.domain
        return Node(name, op, tuple(inputs), tuple(node.output), plain, domain, module, origin, origin_op)

    def _note_weights(self, node: NodeProto) -> None:
        """Remember which inputs of a node are statistics or quantised weights."""
        for position in _STATISTICS.get(node.op_type, ()):
            if position < len(node.input):
                self.statistics.add(node.input[position])
        bias = _QUANTISED_WEIGHTS.get(node.op_type)
        if bias is not None and bias < len(node.input) and node.input[bias] in self.constants:
            self.quantised.add(node.input[bias])
        # packed weights are stored as bytes; their real shape is in the attributes
        if node.op_type == "MatMulNBits" and node.input[1] in self.constants:
            sizes = {a.name: a.i for a in node.attribute}
            kind = _PACKED.get(sizes.get("bits", 4), TensorProto.UINT8)
            self.shapes.enter(node.input[1], (sizes.get("N", 0), sizes.get("K", 0)), kind)
            self.constants[node.input[1]] = kind

    def _keep_values(self, names: list[str]) -> None:
        for name in names:
            self.constants[name] = self.shapes.known[name][1]
            self.statistics.add(name)  # computed from shapes: data of the model that is never trained

    def _move_to_attributes(self, op: str, inputs: list[str], plain: dict[str, Attribute]) -> None:
        """Turn inputs that configure the operator into attributes."""
        for position, attribute in _AS_ATTRIBUTES.get(op, {}).items():
            if position < len(inputs) and (
                inputs[position] in self.shapes.values or inputs[position] in self.constants or not attribute
            ):
                value = self.shapes.values.get(inputs[position])
                if attribute and value is not None and value.dtype.kind in "iu":
                    plain[attribute] = tuple(int(v) for v in value.ravel())
                inputs[position] = ""

    def _operator(self, node: NodeProto, inputs: list[str], plain: dict[str, Attribute]) -> str:
        """The operator of the graph, with the cases in which a node's inputs change it."""
        op = canonical_name(node) or foreign_name(node.op_type, node.domain)
        if op == "MoE" and len(inputs) > 2 and inputs[2] in self.shapes.known:
            plain["experts"] = self.shapes.known[inputs[2]][0][0]
            plain["top_k"] = plain.get("k", 1)
        if op == "Gather" and len(inputs) > 1:  # with one constant index it is PyTorch's select, a view
            index = self.shapes.values.get(inputs[1])
            if index is not None and index.ndim == 0:
                del inputs[1]
                return "Select"
        if op == "Conv" and len(inputs) > 2 and self._is_filler(inputs[2]):
            del inputs[2]
        if (
            op == "Cast"
            and node.input[0] in self.shapes.known
            and self.shapes.known[node.input[0]][1] == self.shapes.known[node.output[0]][1]
        ):
            return "Identity"
        # without axes, a Slice counts from the first axis
        if op == "Slice" and "axes" not in plain and "starts" in plain:
            starts = plain["starts"]
            plain["axes"] = tuple(range(len(starts))) if isinstance(starts, tuple) else (0,)
        return op

    def _is_filler(self, bias: str) -> bool:
        """Whether a bias is one of zeros that PyTorch's exporter gave to a convolution without a bias."""
        value = self.shapes.values.get(bias)
        computed_zeros = bias not in self.initializers and value is not None and not value.any()
        return computed_zeros or (bias in self.constants and bool(_FOLDED_NAME.match(bias)))


def _plain(value: Any) -> Attribute | None:
    """An attribute as the graph stores it; None for tensors and sub-graphs."""
    if isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, list | tuple) and all(isinstance(v, int | float) for v in value):
        return tuple(value)
    if isinstance(value, list | tuple) and all(isinstance(v, bytes) for v in value):
        return tuple(v.decode(errors="replace") for v in value)
    return None


_FX_NODE = re.compile(r"^%?(?P<name>[\w.]+)\s*:?.*?target=(?P<target>[\w.]+)", re.DOTALL)


def _provenance(node: NodeProto) -> tuple[str, str, str]:
    """Return (module path, framework node, framework operator), from the exporter's notes or from the node's name."""
    notes = {p.key: p.value for p in node.metadata_props}
    origin, origin_op = "", ""
    match = _FX_NODE.match(notes.get("pkg.torch.onnx.fx_node", ""))
    if match:
        origin, origin_op = match["name"], canonical_operator(match["target"])
    return _module_path(notes.get("pkg.torch.onnx.name_scopes", ""), node.name), origin, origin_op


_PLAIN_SCOPES = re.compile(r"\['[^'\"\\]*'(?:, '[^'\"\\]*')*\]")


def _module_path(scopes: str, node_name: str) -> str:
    """The innermost module around a node.

    >>> _module_path("['', 'layer1', 'layer1.0', 'layer1.0.conv1', 'conv2d_3']", "node_1")
    'layer1.0.conv1'
    >>> _module_path("", "/layer1/layer1.0/conv1/Conv")
    'layer1.0.conv1'
    """
    if scopes:
        # a list of plain words is split: to parse it takes thirty times as long
        paths: Any = scopes[2:-2].split("', '")
        if not _PLAIN_SCOPES.fullmatch(scopes):
            try:
                paths = ast.literal_eval(scopes)
            except (ValueError, SyntaxError, MemoryError, RecursionError):
                paths = []
        if isinstance(paths, list) and len(paths) > 1:
            return module_path(str(paths[-2]))
    parts: list[str] = []
    for part in node_name.strip("/").split("/")[:-1] if node_name.startswith("/") else []:
        if parts and part.startswith(parts[-1] + "."):
            parts[-1] = part
        else:
            parts.append(part)
    return module_path(".".join(parts))
