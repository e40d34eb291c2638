"""Frontends: infers the shape of every tensor of an ONNX graph.

Idea: the nodes are visited in topological order. Each step has two parts. First, if the values of a node's inputs are
known and small, its own values are computed (`foretell.frontends.onnx.values`); Shape and Size need only the shape of
their input. Second, the shapes of its outputs are inferred: by ONNX's own inference for this one node
(``onnx.shape_inference.infer_node_outputs``), with the known values as its data, or by rules for contrib operators
(`foretell.frontends.onnx.contrib`). If both fail, the shape that the file declares is taken, and if it declares none,
the model is refused. ``onnx.shape_inference.infer_shapes`` on the whole model would leave open what depends on shape
arithmetic; working node by node, with values, resolves it.

Limits: a shape that depends on the values of an input (NonZero, a Reshape to a given size) cannot be known. Values are
kept only up to fixed sizes, and never those of weights: a folded weight would no longer count as a parameter.
"""

import math
import re
from collections.abc import Mapping
from typing import Any, Protocol

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import GraphProto, NodeProto, TensorProto, TypeProto, helper, numpy_helper

from foretell.errors import ModelError
from foretell.frontends.budget import Budget
from foretell.frontends.onnx.contrib import BLOCKED, CONTRIB, STANDARD, Known, contrib_shapes
from foretell.frontends.onnx.direct import direct_shape
from foretell.frontends.onnx.values import MAX_ELEMENTS, evaluate
from foretell.frontends.request import MAX_ELEMENTS as MAX_TENSOR
from foretell.graph.ir.tensor import MAX_RANK

MAX_SHAPE_DATA = 512  # elements; a value that decides a shape is short
MAX_FLOATS = 8  # elements; the scales of a Resize are floats that decide a shape, longer floats are weights
MAX_HEADER_BYTES = 2**16  # of a tensor without its data: names and a description
MAX_EQUATION = 2**12  # characters of an Einsum; ONNX's inference is quadratic in them
_MAX_RANK = 64  # dimensions; PyTorch tensors have as many at most
STATE_NAME = re.compile(r"[A-Za-z_]\w*(?:\.\w+)+$")  # how PyTorch names a module's state: "blocks.0.gain"
_INTEGERS = (TensorProto.INT64, TensorProto.INT32, TensorProto.BOOL)
MAX_KEPT = 2**23  # elements of all values together; a malicious file could ask for more
_OPTIONAL_OUTPUTS = frozenset(
    {"Dropout", "BatchNormalization", "LayerNormalization", "MaxPool", "SkipLayerNormalization"}
)
_INFERENCE_ERRORS = (
    onnx.shape_inference.InferenceError,
    onnx.checker.ValidationError,
    RuntimeError,
    ValueError,
    TypeError,
)


class Stated(Protocol):
    """What is stated of tensors, by name."""

    def get(self, name: str, /) -> Known | None:
        """The shape and type of a tensor, or None."""
        ...


class Declared:
    """The shapes and types that a file states of its tensors, read when they are asked for."""

    def __init__(self, graph: GraphProto, symbols: Mapping[str, int] | None = None) -> None:
        self._symbols = symbols or {}  # the sizes of open dimensions: a symbol has one size in the whole file
        self._inner = {value.name: value.type for value in graph.value_info}
        self._outputs = {value.name: value.type for value in graph.output}

    def get(self, name: str) -> Known | None:
        """What is stated of a tensor; None where that is nothing, or not complete."""
        found = (read_type(types[name], self._symbols) for types in (self._outputs, self._inner) if name in types)
        return next((known for known in found if known is not None), None)


class Shapes:
    """The shapes and small values of one graph, filled node by node in topological order."""

    def __init__(self, opsets: Mapping[str, int], declared: Stated, budget: Budget | None = None) -> None:
        self.opsets, self.declared, self.budget = opsets, declared, budget or Budget("The model")
        self.known: dict[str, Known] = {}
        self.values: dict[str, NDArray[Any]] = {}
        self.sequences: dict[str, tuple[str, ...]] = {}  # sequence → the names of its tensors
        self._kept = 0
        self._weights: set[str] = set()
        self._seen: dict[object, tuple[Known | None, ...]] = {}
        self._imports = [helper.make_opsetid(d, v) for d, v in opsets.items()]

    def enter(self, name: str, shape: tuple[int, ...], element_type: int) -> None:
        """Record the shape and type of a tensor."""
        if len(shape) > MAX_RANK:
            raise ModelError(f"Tensor {name!r} has {len(shape)} axes; at most {MAX_RANK} are allowed.")
        if shape and min(shape) < 0:
            raise ModelError(f"Tensor {name!r} has the negative dimension {min(shape)} in its shape {shape}.")
        if math.prod(shape) > MAX_TENSOR:
            raise ModelError(f"Tensor {name!r} has the impossible shape {shape}.")
        self.known[name] = (shape, element_type)

    def keep(self, name: str, value: NDArray[Any]) -> None:
        """Record a value that later shapes may depend on."""
        if self._kept + value.size <= MAX_KEPT:
            self._kept += value.size
            self.values[name] = value

    def run(self, node: NodeProto, attributes: dict[str, Any]) -> None:
        """Infer the outputs of one node; raise if their shapes stay unknown."""
        self._compute_values(node, attributes)
        if all(o in self.known or not o for o in node.output):
            return
        inferred = self._inferred(node, attributes)
        for index, name in enumerate(node.output):
            if not name or name in self.known:
                continue
            known = inferred[index] or self.declared.get(name)
            if known is not None:
                self.enter(name, *known)
            elif not (index > 0 and node.op_type in _OPTIONAL_OUTPUTS):  # statistics and masks that no node reads
                self._refuse(node, name)

    def _refuse(self, node: NodeProto, name: str) -> None:
        shapes = [list(self.known[i][0]) if i in self.known else "?" for i in node.input if i]
        raise ModelError(
            f"The shape of {name!r}, made by node {node.name or node.op_type!r} ({node.op_type}, inputs {shapes}), "
            "depends on data or is missing. Give all dimensions with --input, or export the model with fixed shapes."
        )

    def _compute_values(self, node: NodeProto, attributes: dict[str, Any]) -> None:
        """Compute and record the outputs of a node whose inputs are known."""
        if not node.input:
            return
        if node.op_type == "Shape" and node.input[0] in self.known:
            shape = self.known[node.input[0]][0]
            outputs = [np.array(shape[slice(attributes.get("start"), attributes.get("end"))], np.int64)]
        elif node.op_type == "Size" and node.input[0] in self.known:
            outputs = [np.array(math.prod(self.known[node.input[0]][0]), np.int64)]
        else:
            values = self.values
            inputs = [values.get(i) if i else None for i in node.input]
            if node.domain not in STANDARD or any(v is None and i for v, i in zip(inputs, node.input)):
                return
            if not self._weights.isdisjoint(node.input):
                return  # a weight is never folded into a constant, however small it is
            computed = evaluate(node.op_type, inputs, attributes)
            if computed is None:
                return
            outputs = list(computed)
        for name, value in zip(node.output, outputs):
            if name and value.dtype != object:
                self.keep(name, value)
                self.enter(name, value.shape, helper.np_dtype_to_tensor_dtype(value.dtype))

    def enter_constant(self, name: str, tensor: TensorProto) -> None:
        """Record an initializer or constant: its shape, and its value if it is small and present."""
        self.enter(name, tuple(tensor.dims), tensor.data_type)
        present = tensor.data_location != TensorProto.EXTERNAL and tensor.data_type != TensorProto.STRING
        is_integer = tensor.data_type in _INTEGERS
        if not is_integer and STATE_NAME.match(name):
            self._weights.add(name)
        if present and _is_small(tensor, MAX_ELEMENTS if is_integer else MAX_FLOATS):
            try:
                self.keep(name, numpy_helper.to_array(tensor))
            except (ValueError, TypeError, KeyError):
                return

    def _inferred(self, node: NodeProto, attributes: dict[str, Any]) -> tuple[Known | None, ...]:
        """The shapes of all outputs. Equal nodes with equal inputs are inferred once: models repeat their blocks."""
        # everything that the result depends on: shapes, small values, attributes, and which outputs are present
        operands = tuple((self.known.get(i), self._shape_data(i)) for i in node.input)
        self.budget.draw("elements", sum(v.size for _, v in operands if v is not None))
        key = (
            node.op_type, node.domain, tuple(sorted(a.SerializeToString() for a in node.attribute)),
            tuple((k, None if v is None else (v.dtype.str, v.shape, v.tobytes())) for k, v in operands),
            tuple(map(bool, node.output)),
        )  # fmt: skip
        if key not in self._seen:
            shapes = (
                self._by_rule(node, attributes) or self._directly(node, attributes) or self._by_onnx(node, {}) or {}
            )
            self._seen[key] = tuple(shapes.get(o) if o else None for o in node.output)
        return self._seen[key]

    def _shape_data(self, name: str) -> NDArray[Any] | None:
        value = self.values.get(name)
        return value if value is not None and value.size <= MAX_SHAPE_DATA and value.dtype.kind in "iufb" else None

    def _by_onnx(self, node: NodeProto, overrides: Mapping[str, Known]) -> dict[str, Known] | None:
        """Let ONNX infer one node; ``overrides`` gives inputs another shape or type than they have."""
        if node.domain not in (*STANDARD, "ai.onnx.ml"):
            return None
        domain = "" if node.domain in STANDARD else node.domain
        version = self.opsets.get(domain, onnx.defs.onnx_opset_version() if not domain else 1)
        if node.op_type == "Einsum":
            length = max((len(a.s) for a in node.attribute), default=0)
            if length > MAX_EQUATION:
                raise ModelError(
                    f"Node {node.name or 'Einsum'!r} (Einsum) has an equation of {length} characters; at most "
                    f"{MAX_EQUATION} are allowed."
                )
        _check_axes(node)
        try:
            schema = onnx.defs.get_schema(node.op_type, version, domain)
        except onnx.defs.SchemaError:
            return None
        known = {i: overrides.get(i) or self.known.get(i) for i in node.input if i}
        types = {i: helper.make_tensor_type_proto(k[1], k[0]) for i, k in known.items() if k is not None}
        data = {i: numpy_helper.from_array(v, i) for i in types if (v := self._shape_data(i)) is not None}
        try:
            inferred = onnx.shape_inference.infer_node_outputs(
                schema, node, types, data, opset_imports=self._imports, ir_version=10
            )
        except KeyError:
            return None  # an input without a known type
        except _INFERENCE_ERRORS as error:
            shapes = [list(k[0]) if k else "?" for k in known.values()]
            reason = " ".join(str(error).split()).removeprefix("[ShapeInferenceError] ")[:200]
            raise ModelError(
                f"Node {node.name or node.op_type!r} ({node.op_type}) does not fit its inputs {shapes}: {reason}"
            ) from error
        return {name: output for name, proto in inferred.items() if (output := read_type(proto)) is not None}

    def _directly(self, node: NodeProto, attributes: dict[str, Any]) -> dict[str, Known] | None:
        """Infer a node of one output whose operands are all known and of one type, where that is simple."""
        operands = [self.known[i] for i in node.input if i in self.known]
        if len(operands) < max(len(node.input), 1) or len(node.output) != 1 or node.domain not in STANDARD:
            return None
        # the shape of a Reshape and the axes of a ReduceMean are integers beside a tensor of any type
        described = operands[:1] if node.op_type in ("Reshape", "ReduceMean") else operands
        if len({kind for _, kind in described}) > 1:
            return None
        values = [self._shape_data(i) for i in node.input]
        shapes = [shape for shape, _ in operands]
        shape = direct_shape(node.op_type, self.opsets.get("", 0), attributes, shapes, values)
        return None if shape is None else {node.output[0]: (shape, operands[0][1])}

    def _by_rule(self, node: NodeProto, attributes: dict[str, Any]) -> dict[str, Known] | None:
        """Infer Split and contrib operators, also the two that ONNX Runtime writes into ONNX's own domain."""
        if node.op_type == "Split" and node.domain in STANDARD:
            return self._split(node, attributes)
        if node.domain in (CONTRIB, BLOCKED) or node.op_type in ("SimplifiedLayerNormalization", "FusedGemm"):
            return contrib_shapes(node, attributes, self.known, self._by_onnx)
        return None

    def _split(self, node: NodeProto, attributes: dict[str, Any]) -> dict[str, Known] | None:
        """Infer a Split here: ONNX's own inference crashes the process if a Split has more outputs than it declares."""
        if not node.input or node.input[0] not in self.known:
            return None
        shape, kind = self.known[node.input[0]]
        axis, pieces = int(attributes.get("axis", 0)), len(node.output)
        if not -len(shape) <= axis < len(shape):
            raise ModelError(f"Node {node.name or 'Split'!r} (Split) splits axis {axis} of a tensor of shape {shape}.")
        sizes = [int(s) for s in attributes.get("split") or ()]
        if len(node.input) > 1 and node.input[1]:
            value = self.values.get(node.input[1])
            if value is None:
                return None
            sizes = [int(s) for s in value.ravel()]
        if not sizes:
            # equal pieces; the last one may be smaller
            size = -(-shape[axis] // pieces)
            sizes = [max(min(size, shape[axis] - i * size), 0) for i in range(pieces)]
        if len(sizes) != pieces or sum(sizes) != shape[axis] or attributes.get("num_outputs", pieces) != pieces:
            raise ModelError(
                f"Node {node.name or 'Split'!r} (Split) makes {pieces} outputs of sizes {sizes[:8]} from "
                f"{shape[axis]}: malformed."
            )
        axis %= len(shape)
        return {o: ((*shape[:axis], size, *shape[axis + 1 :]), kind) for o, size in zip(node.output, sizes) if o}


def read_attributes(node: NodeProto) -> dict[str, Any]:
    """Return the attributes of a node as Python values, including sub-graphs and the tensor of a Constant."""
    values: dict[str, Any] = {}
    for attribute in node.attribute:
        if attribute.type == onnx.AttributeProto.UNDEFINED or attribute.ref_attr_name:
            continue
        value = helper.get_attribute_value(attribute)
        if isinstance(value, bytes):
            value = value.decode(errors="replace")
        if isinstance(value, TensorProto) and node.op_type != "Constant":
            # a large tensor attribute is not needed, and its data may be absent
            small = value.data_location != TensorProto.EXTERNAL and _is_small(value, MAX_ELEMENTS)
            value = numpy_helper.to_array(value) if small and value.data_type != TensorProto.STRING else None
        values[attribute.name] = value
    return values


def _is_small(tensor: TensorProto, max_elements: int) -> bool:
    """Whether a tensor has few elements, by its shape and by the data that it really holds."""
    # the largest element has 16 bytes; a file may hold more data than the shape says
    size: int = tensor.ByteSize()
    return math.prod(tensor.dims) <= max_elements and size <= 16 * max_elements + MAX_HEADER_BYTES


def read_type(proto: TypeProto, symbols: Mapping[str, int] | None = None) -> Known | None:
    """Return the shape and element type of a tensor type; None if a dimension is open and its symbol has no size."""
    if not proto.HasField("tensor_type") or not proto.tensor_type.HasField("shape"):
        return None
    dims = proto.tensor_type.shape.dim
    sizes = [d.dim_value if d.HasField("dim_value") else (symbols or {}).get(d.dim_param) for d in dims]
    if any(size is None for size in sizes):
        return None
    return tuple(size for size in sizes if size is not None), proto.tensor_type.elem_type


def _check_axes(node: NodeProto) -> None:
    """Refuse an axis that no tensor has: ONNX's inference cuts axes to 32 bits and then follows them unchecked."""
    for attribute in node.attribute:
        if attribute.name.endswith(("axis", "axes")):
            wrong = next((axis for axis in (attribute.i, *attribute.ints) if abs(axis) > _MAX_RANK), None)
            if wrong is not None:
                raise ModelError(
                    f"Node {node.name or node.op_type!r} ({node.op_type}) has the axis {wrong}: malformed."
                )
