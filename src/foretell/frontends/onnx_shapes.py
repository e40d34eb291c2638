"""frontends: the shape of every tensor of an ONNX graph, and the small values that decide shapes.

ONNX's own inference does one node at a time here, with the values known so far as its data: that resolves shape
arithmetic which inference over a whole model leaves open. Contrib operators that it does not know have rules below.
"""

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import NodeProto, TensorProto, TypeProto, helper, numpy_helper

from foretell.errors import ModelError
from foretell.frontends.onnx_values import MAX_ELEMENTS, evaluate

Known = tuple[tuple[int, ...], int]  # shape, ONNX element type
_ONNX_DOMAINS = ("", "ai.onnx")


class Shapes:
    """Shapes and values of one graph, filled node by node in topological order."""

    def __init__(self, opsets: Mapping[str, int], declared: Mapping[str, Known]) -> None:
        self.opsets, self.declared = opsets, declared
        self.known: dict[str, Known] = {}
        self.values: dict[str, NDArray[Any]] = {}
        self.sequences: set[str] = set()

    def enter(self, name: str, shape: tuple[int, ...], element_type: int) -> None:
        """A tensor that is there before the first node: an input or an initializer."""
        if any(d < 0 for d in shape):
            raise ModelError(f"Tensor {name!r} has the negative dimension {min(shape)} in its shape {shape}.")
        self.known[name] = (shape, element_type)

    def run(self, node: NodeProto) -> None:
        """Infer the outputs of one node; raises where their shapes stay unknown."""
        attributes = read_attributes(node)
        self._compute_values(node, attributes)
        if all(o in self.known or not o for o in node.output):
            return
        inferred = self._by_rule(node, attributes) or self._by_onnx(node)
        for index, name in enumerate(node.output):
            if not name or name in self.known:
                continue
            found = inferred.get(name) if inferred else None
            found = found or self.declared.get(name)
            if found is None and index > 0 and node.op_type in ("Dropout", "BatchNormalization", "LayerNormalization", "MaxPool", "SkipLayerNormalization"):
                continue  # statistics and masks that nobody reads
            if found is None:
                self._refuse(node, name)
            else:
                self.enter(name, *found)

    def _refuse(self, node: NodeProto, name: str) -> None:
        shapes = [list(self.known[i][0]) if i in self.known else "?" for i in node.input if i]
        raise ModelError(
            f"The shape of {name!r}, made by node {node.name or node.op_type!r} ({node.op_type}, inputs {shapes}), depends on data or is missing. "
            "Give all dimensions with --input, or export the model with fixed shapes."
        )

    def _compute_values(self, node: NodeProto, attributes: dict[str, Any]) -> None:
        if node.op_type == "Shape" and node.input[0] in self.known:
            shape = self.known[node.input[0]][0]
            outputs = [np.array(shape[slice(attributes.get("start"), attributes.get("end"))], np.int64)]
        elif node.op_type == "Size" and node.input[0] in self.known:
            outputs = [np.array(math.prod(self.known[node.input[0]][0]), np.int64)]
        elif node.op_type == "Constant" or not node.input:
            return
        else:
            inputs = [self.values.get(i) if i else None for i in node.input]
            if any(v is None and i for v, i in zip(inputs, node.input)):
                return
            computed = evaluate(node.op_type, inputs, attributes)
            if computed is None:
                return
            outputs = list(computed)
        for name, value in zip(node.output, outputs):
            if name and value.dtype != object:
                self.values[name] = value
                self.enter(name, value.shape, helper.np_dtype_to_tensor_dtype(value.dtype))

    def enter_constant(self, name: str, tensor: TensorProto) -> None:
        """An initializer or constant: its shape, and its value where it is small and present."""
        self.enter(name, tuple(tensor.dims), tensor.data_type)
        present = tensor.data_location != TensorProto.EXTERNAL and tensor.data_type != TensorProto.STRING
        if present and math.prod(tensor.dims) <= MAX_ELEMENTS:
            try:
                self.values[name] = numpy_helper.to_array(tensor)
            except (ValueError, TypeError):
                return

    def _by_onnx(self, node: NodeProto) -> dict[str, Known] | None:
        if node.domain not in (*_ONNX_DOMAINS, "ai.onnx.ml"):
            return None
        version = self.opsets.get("" if node.domain in _ONNX_DOMAINS else node.domain, onnx.defs.onnx_opset_version())
        try:
            schema = onnx.defs.get_schema(node.op_type, version, "" if node.domain in _ONNX_DOMAINS else node.domain)
            types = {i: _type(*self.known[i]) for i in node.input if i in self.known}
            data = {i: numpy_helper.from_array(v, i) for i in node.input if (v := self.values.get(i)) is not None and v.dtype.kind in "iufb"}
            opsets = [helper.make_opsetid(d, v) for d, v in self.opsets.items()]
            found = onnx.shape_inference.infer_node_outputs(schema, node, types, data, opset_imports=opsets, ir_version=10)
        except (onnx.defs.SchemaError, onnx.shape_inference.InferenceError, onnx.checker.ValidationError, RuntimeError, KeyError):
            return None
        return {name: known for name, proto in found.items() if (known := read_type(proto)) is not None}

    def _by_rule(self, node: NodeProto, attributes: dict[str, Any]) -> dict[str, Known] | None:
        """Contrib operators, and what ONNX leaves open."""
        first = self.known.get(node.input[0]) if node.input else None
        if node.op_type == "Constant" or first is None:
            return None
        shape, kind = first
        if node.op_type in _LIKE_FIRST:
            return {node.output[0]: (shape, kind)}
        if node.op_type in ("FusedMatMul", "TransposeMatMul", "FusedGemm", "MatMulNBits", "MatMulIntegerToFloat", "DynamicQuantizeMatMul"):
            return {node.output[0]: (self._product(node, attributes, shape), kind)}
        if node.op_type == "FusedConv":
            plain = NodeProto()
            plain.CopyFrom(node)
            plain.op_type, plain.domain = "Conv", ""
            del plain.input[3:]
            kept = [a for a in plain.attribute if not a.name.startswith("activation")]
            del plain.attribute[:]
            plain.attribute.extend(kept)
            return self._by_onnx(plain)
        if node.op_type in ("MultiHeadAttention", "GroupQueryAttention") and len(shape) == 3:
            return {node.output[0]: (shape, kind)}
        if node.op_type == "Attention" and node.domain == "com.microsoft":
            width = self.known[node.input[1]][0][-1] // 3
            return {node.output[0]: ((*shape[:-1], width), kind)}
        return None

    def _product(self, node: NodeProto, attributes: dict[str, Any], left: tuple[int, ...]) -> tuple[int, ...]:
        if node.op_type == "MatMulNBits":
            return (*left[:-1], int(attributes["N"]))
        right = self.known[node.input[1]][0]
        rows = left[-1] if attributes.get("transA") else left[-2] if len(left) > 1 else 1
        columns = right[-2] if attributes.get("transB") else right[-1]
        lead = np.broadcast_shapes(left[:-2], right[:-2])
        return (*lead, rows, columns)


_LIKE_FIRST = frozenset(
    "Gelu FastGelu BiasGelu QuickGelu SkipLayerNormalization SimplifiedLayerNormalization SkipSimplifiedLayerNormalization RotaryEmbedding "
    "QLinearAdd QLinearMul QLinearSigmoid QLinearLeakyRelu QLinearSoftmax".split()
)


def read_attributes(node: NodeProto) -> dict[str, Any]:
    """Attributes as Python values; sub-graphs and tensors of constants included."""
    found: dict[str, Any] = {}
    for attribute in node.attribute:
        if attribute.type == onnx.AttributeProto.UNDEFINED or attribute.ref_attr_name:
            continue
        value = helper.get_attribute_value(attribute)
        if isinstance(value, bytes):
            value = value.decode(errors="replace")
        if isinstance(value, TensorProto):
            inline = value.data_location != TensorProto.EXTERNAL and value.data_type != TensorProto.STRING and math.prod(value.dims) <= MAX_ELEMENTS
            value = numpy_helper.to_array(value) if inline and node.op_type != "Constant" else value
        found[attribute.name] = value
    return found


def read_type(proto: TypeProto) -> Known | None:
    """Shape and element type of a tensor type, None where any dimension is open."""
    if not proto.HasField("tensor_type") or not proto.tensor_type.HasField("shape"):
        return None
    dims = proto.tensor_type.shape.dim
    if not all(d.HasField("dim_value") for d in dims):
        return None
    return tuple(d.dim_value for d in dims), proto.tensor_type.elem_type


def _type(shape: tuple[int, ...], element_type: int) -> TypeProto:
    return helper.make_tensor_type_proto(element_type, shape)
