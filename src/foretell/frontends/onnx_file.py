"""frontends: an ONNX file or ``ModelProto`` → Graph. Weights are never read; they may be absent."""

import hashlib
import math
import os
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import onnx
from google.protobuf.message import DecodeError
from onnx import GraphProto, ModelProto, NodeProto, TensorProto

from foretell.errors import InputError, ModelError, UnsupportedOperatorError
from foretell.frontends.onnx_nodes import LOCAL_FUNCTION_DOMAINS, NodeReader, dtype_of
from foretell.frontends.onnx_shapes import Shapes, read_attributes, read_type
from foretell.frontends.request import MAX_ELEMENTS, InputSpec, ModelRequest
from foretell.graph import Graph, Node, Tensor
from foretell.graph.batch import mark_batch_axes
from foretell.graph.graph import sort_nodes
from foretell.graph.patterns import tie_patterns

TRACE_BATCH = 11  # where the batch is open: a size that no layer has by itself
KNOWN_DOMAINS = frozenset({"", "ai.onnx", "ai.onnx.ml", "ai.onnx.preview", "ai.onnx.preview.training", "com.microsoft", "org.pytorch.aten"})


class OnnxFrontend:
    """ONNX of any opset that the installed onnx knows."""

    def load(self, request: ModelRequest) -> Graph:
        """Read, resolve shapes, convert."""
        if isinstance(request.source, ModelProto):
            return graph_from_proto(request.source, request, request.source.graph.name or "model")
        path = Path(request.source)
        return graph_from_proto(_parse(path), request, path.name)

    def fingerprint(self, request: ModelRequest) -> str | None:
        """The file's content."""
        if isinstance(request.source, ModelProto):
            return None
        path = Path(request.source)
        try:
            with path.open("rb") as file:
                return f"{path.name} {hashlib.file_digest(file, 'sha256').hexdigest()} onnx {onnx.__version__}"
        except OSError as error:
            raise ModelError(f"Cannot read {path}: {error.strerror or error}.") from error


def _parse(path: Path) -> ModelProto:
    try:
        data = path.read_bytes()
    except OSError as error:
        raise ModelError(f"Cannot read {path}: {error.strerror or error}.") from error
    model = ModelProto()
    try:
        model.ParseFromString(data)
    except DecodeError as error:
        raise ModelError(f"{path.name} is not an ONNX model, or it is cut short ({len(data)} bytes).") from error
    if not model.HasField("graph") or not (model.graph.node or model.graph.output) or not model.opset_import:
        raise ModelError(f"{path.name} is not an ONNX model, or it is cut short ({len(data)} bytes): it has no graph.")
    return model


def graph_from_proto(model: ModelProto, request: ModelRequest, name: str) -> Graph:
    """The graph of a parsed model."""
    _check_external_data(model)
    if model.functions:
        model = _inlined(model)
    opsets = {("" if o.domain == "ai.onnx" else o.domain): o.version for o in model.opset_import}
    newest = onnx.defs.onnx_opset_version()
    if opsets.get("", 1) > newest:
        raise ModelError(f"{name} uses ONNX opset {opsets['']}; the installed onnx {onnx.__version__} knows up to {newest}. Upgrade onnx.")
    _check_operators(model.graph, request.allow_unknown)
    inputs = _open_inputs(model.graph, request.inputs)
    batch_sizes = [TRACE_BATCH, 1] if any(None in shape[:1] for shape, _ in inputs.values()) else [_fixed_batch(inputs)]
    for position, batch_size in enumerate(batch_sizes):
        try:
            return _convert(model, opsets, inputs, batch_size, name)
        except ModelError:
            if position == len(batch_sizes) - 1:
                raise
    raise AssertionError("unreachable")


def _fixed_batch(inputs: Mapping[str, tuple[tuple[int | None, ...], int]]) -> int:
    sizes = [shape[0] for shape, _ in inputs.values() if shape and shape[0]]
    return sizes[0] if sizes else 1


def _convert(model: ModelProto, opsets: Mapping[str, int], inputs: Mapping[str, tuple[tuple[int | None, ...], int]], batch_size: int, name: str) -> Graph:
    proto = model.graph
    declared = {v.name: known for v in (*proto.value_info, *proto.output) if (known := read_type(v.type)) is not None}
    shapes = Shapes(opsets, declared)
    for key, (shape, element_type) in inputs.items():
        shapes.enter(key, tuple(batch_size if d is None else d for d in shape), element_type)
    reader = NodeReader(shapes)
    nodes = _read_nodes(proto, shapes, reader)
    return _finish(proto, shapes, reader, nodes, tuple(inputs), batch_size, name)


def _read_nodes(proto: GraphProto, shapes: Shapes, reader: NodeReader) -> list[Node]:
    for tensor in proto.initializer:
        if not tensor.name:
            raise ModelError("The model has an initializer without a name.")
        shapes.enter_constant(tensor.name, tensor)
        reader.constants[tensor.name] = tensor.data_type
    for sparse in proto.sparse_initializer:
        shapes.enter(sparse.values.name, tuple(sparse.dims), sparse.values.data_type)
        reader.constants[sparse.values.name] = sparse.values.data_type
    nodes = []
    for node in _sorted(proto.node):
        if node.op_type == "Constant":
            reader.read_constant(node, read_attributes(node))
            continue
        if node.op_type in ("If", "Loop", "Scan", "SequenceMap"):
            nodes.append(_control_node(node, shapes, reader))
            continue
        shapes.run(node)
        converted = reader.convert(node, read_attributes(node))
        if converted is not None:
            nodes.append(converted)
    return nodes


def _sorted(protos: Iterable[NodeProto]) -> list[NodeProto]:
    """ONNX asks for topological order; files that break it are put right, and cycles are named."""
    nodes = list(protos)
    plain = [Node(str(i), n.op_type, tuple(n.input) + tuple(_outer_names(n)), tuple(n.output)) for i, n in enumerate(nodes)]
    return [nodes[int(n.name)] for n in sort_nodes(tuple(plain))]


def _bodies(node: NodeProto) -> list[GraphProto]:
    return [a.g for a in node.attribute if a.type == onnx.AttributeProto.GRAPH]


def _outer_names(node: NodeProto) -> list[str]:
    """What the bodies of a node read from around it."""
    names: list[str] = []
    for body in _bodies(node):
        own = {i.name for i in body.input} | {t.name for t in body.initializer} | {o for n in body.node for o in n.output}
        for inner in body.node:
            names.extend(i for i in (*inner.input, *_outer_names(inner)) if i and i not in own)
    return list(dict.fromkeys(names))


def _control_node(node: NodeProto, shapes: Shapes, reader: NodeReader) -> Node:
    """If, Loop and Scan: their bodies become graphs of their own; ``trips`` says how often they run."""
    attributes = read_attributes(node)
    bodies = _bodies(node)
    condition = shapes.values.get(node.input[0]) if node.op_type == "If" and node.input else None
    if condition is not None and len(bodies) == 2:
        chosen = attributes["then_branch" if bool(condition.ravel()[0]) else "else_branch"]
        bodies = [chosen]
    trips = 1
    if node.op_type == "Loop":
        count = shapes.values.get(node.input[0]) if node.input[0] else None
        trips = int(count.ravel()[0]) if count is not None else 1
        if count is None:
            reader.warnings.append(f"Loop {node.name!r} runs as often as its data says; it is counted once.")
    graphs = []
    for body in bodies:
        inner = Shapes(shapes.opsets, {v.name: known for v in (*body.value_info, *body.output) if (known := read_type(v.type)) is not None})
        inner_reader = NodeReader(inner)
        outer = [n for n in _outer_names(node) if n in shapes.known]
        for outer_name in outer:
            inner.enter(outer_name, *shapes.known[outer_name])
            if outer_name in shapes.values:
                inner.values[outer_name] = shapes.values[outer_name]
        trips = _enter_body_inputs(node, body, shapes, inner, attributes, trips)
        inner_nodes = _read_nodes(body, inner, inner_reader)
        names = (*(i.name for i in body.input), *outer)
        graphs.append(_finish(body, inner, inner_reader, inner_nodes, tuple(dict.fromkeys(names)), 1, body.name or node.op_type, mark=False))
        reader.warnings.extend(inner_reader.warnings)
        _enter_control_outputs(node, body, shapes, inner, trips)
    for name in node.output:
        if name and name not in shapes.known:
            if name not in shapes.declared:
                raise ModelError(f"The shape of {name!r}, made by {node.op_type} {node.name!r}, depends on data. Export the model without control flow.")
            shapes.enter(name, *shapes.declared[name])
    read = [n for n in (*node.input, *_outer_names(node)) if not n or n in shapes.known]
    return Node(node.name or node.output[0], node.op_type, tuple(read), tuple(node.output), {"trips": trips}, bodies=tuple(graphs))


def _enter_body_inputs(node: NodeProto, body: GraphProto, shapes: Shapes, inner: Shapes, attributes: dict[str, Any], trips: int) -> int:
    states = len(node.input) - int(attributes.get("num_scan_inputs", 0)) if node.op_type == "Scan" else 0
    for position, entry in enumerate(body.input):
        source = node.input[position] if position < len(node.input) else ""
        if node.op_type == "Loop" and position < 2:
            inner.enter(entry.name, (), TensorProto.INT64 if position == 0 else TensorProto.BOOL)
        elif source in shapes.known:
            shape, kind = shapes.known[source]
            if node.op_type == "Scan" and position >= states:
                trips, shape = shape[0] if shape else 1, shape[1:]
            inner.enter(entry.name, shape, kind)
        elif (known := read_type(entry.type)) is not None:
            inner.enter(entry.name, *known)
    return trips


def _enter_control_outputs(node: NodeProto, body: GraphProto, shapes: Shapes, inner: Shapes, trips: int) -> None:
    """States keep their shape; what is stacked over the trips gains an axis."""
    produced = [o.name for o in body.output][1 if node.op_type == "Loop" else 0 :]
    states = {"If": len(produced), "Loop": len(node.input) - 2, "SequenceMap": 0}.get(node.op_type, len(node.input) - len(body.input) + len(produced))
    for position, (outside, inside) in enumerate(zip(node.output, produced)):
        if outside and outside not in shapes.known and inside in inner.known:
            shape, kind = inner.known[inside]
            stacked = node.op_type in ("Loop", "Scan") and position >= states
            shapes.enter(outside, (trips, *shape) if stacked else shape, kind)


def _finish(
    proto: GraphProto, shapes: Shapes, reader: NodeReader, nodes: list[Node], inputs: tuple[str, ...], batch_size: int, name: str, mark: bool = True
) -> Graph:
    made = {o for node in nodes for o in node.outputs if o}
    touched = made | {i for node in nodes for i in node.inputs if i} | set(inputs) | {o.name for o in proto.output}
    tensors = {}
    for key in sorted(touched):
        if key not in shapes.known:
            if key in made:
                continue
            raise ModelError(f"The model reads {key!r}, which nothing makes.")
        shape, element_type = shapes.known[key]
        if math.prod(shape) > MAX_ELEMENTS:
            raise ModelError(f"Tensor {key!r} has the impossible shape {shape}.")
        kind = "input" if key in inputs else "activation" if key in made else reader.kind_of(key, shape)
        axis = 0 if kind == "input" and mark and shape and shape[0] % batch_size == 0 else None
        tensors[key] = Tensor(key, shape, dtype_of(element_type), kind, axis)  # type: ignore[arg-type]
    nodes = [_without_unknown_outputs(n, tensors) for n in nodes]
    outputs = [o.name for o in proto.output if o.name in tensors]
    graph = Graph.build(name, nodes, tensors, inputs, outputs, batch_size=batch_size, warnings=dict.fromkeys(reader.warnings))
    return mark_batch_axes(tie_patterns(graph)) if mark else graph


def _without_unknown_outputs(node: Node, tensors: Mapping[str, Tensor]) -> Node:
    if all(o in tensors or not o for o in node.outputs):
        return node
    outputs = tuple(o if o in tensors else "" for o in node.outputs)
    return Node(node.name, node.op, node.inputs, outputs, node.attributes, node.domain, node.module, node.origin, node.origin_op, node.bodies)


# ── checks before anything is converted ───────────────────────────────────────────────────────────────────────────────


def _check_external_data(model: ModelProto) -> None:
    """External weights are never opened; a location outside the model's folder is refused all the same."""
    for tensor in model.graph.initializer:
        if tensor.data_location != TensorProto.EXTERNAL:
            continue
        location = next((e.value for e in tensor.external_data if e.key == "location"), "")
        parts = re.split(r"[\\/]", location)
        if not location or os.path.isabs(location) or ".." in parts or re.match(r"^[A-Za-z]:", location):
            raise ModelError(f"Weight {tensor.name!r} keeps its data at {location!r}, outside the model's folder: refused.")


def _inlined(model: ModelProto) -> ModelProto:
    from onnx import inliner

    try:
        inlined: ModelProto = inliner.inline_local_functions(model)
    except (RuntimeError, ValueError, onnx.checker.ValidationError) as error:
        raise ModelError(f"The model's local functions cannot be expanded: {str(error).splitlines()[0][:200]}") from error
    return inlined


def _check_operators(graph: GraphProto, allow_unknown: bool) -> None:
    for node in graph.node:
        if node.domain not in KNOWN_DOMAINS and node.domain not in LOCAL_FUNCTION_DOMAINS and not allow_unknown:
            raise UnsupportedOperatorError(
                f"Operator {node.op_type!r} of the domain {node.domain!r} is unknown (node {node.name or node.output[0] if node.output else ''!r}). "
                "Allow it with --allow-unknown: it is then reported and counted by the bytes it moves."
            )
        for body in _bodies(node):
            _check_operators(body, allow_unknown)


def _open_inputs(graph: GraphProto, given: tuple[InputSpec, ...]) -> dict[str, tuple[tuple[int | None, ...], int]]:
    """Every real input with its shape; None stands for the batch where it is open."""
    constants = {t.name for t in graph.initializer}
    protos = [i for i in graph.input if i.name not in constants]
    specs = _match(given, [p.name for p in protos])
    symbols: dict[str, int] = {}
    found: dict[str, tuple[tuple[int | None, ...], int]] = {}
    for position, proto in enumerate(protos):
        if not proto.type.HasField("tensor_type"):
            raise ModelError(f"Input {proto.name!r} is not a tensor; foretell reads models whose inputs are tensors.")
        kind = proto.type.tensor_type
        spec = specs.get(proto.name)
        if not kind.HasField("shape"):
            if spec is None:
                raise InputError(f"Input {proto.name!r} has no shape. Give it, without the batch: --input {proto.name}=3x224x224")
            found[proto.name] = ((None, *spec.shape), kind.elem_type)
            continue
        dims = list(kind.shape.dim)
        found[proto.name] = (_resolve(proto.name, dims, spec, symbols, first=position == 0), kind.elem_type)
    return found


def _match(given: tuple[InputSpec, ...], names: list[str]) -> dict[str, InputSpec]:
    specs: dict[str, InputSpec] = {}
    unnamed = [s for s in given if s.name is None]
    for spec in given:
        if spec.name is not None and spec.name not in names:
            raise InputError(f"The model has no input {spec.name!r}. Its inputs: {', '.join(names) or 'none'}.")
        if spec.name is not None:
            specs[spec.name] = spec
    free = [n for n in names if n not in specs]
    if len(unnamed) > len(free):
        raise InputError(f"{len(given)} inputs were given; the model has {len(names)}: {', '.join(names) or 'none'}.")
    specs.update(zip(free, unnamed))
    return specs


def _resolve(name: str, dims: list[Any], spec: InputSpec | None, symbols: dict[str, int], first: bool) -> tuple[int | None, ...]:
    shape: list[int | None] = []
    sizes = list(spec.shape) if spec else []
    if spec and len(sizes) == len(dims) - 1:
        sizes = [0, *sizes]  # without the batch, as it should be
    elif spec and len(sizes) != len(dims):
        declared = "x".join(str(d.dim_value) if d.HasField("dim_value") else d.dim_param or "?" for d in dims[1:])
        raise InputError(f"--input {'x'.join(map(str, spec.shape))} has {len(spec.shape)} dimensions; {name!r} takes {len(dims) - 1} without the batch: {declared}.")
    for axis, dim in enumerate(dims):
        size = sizes[axis] if sizes else 0
        if dim.HasField("dim_value") and dim.dim_value != 0:
            if dim.dim_value < 0:
                raise ModelError(f"Input {name!r} has the negative dimension {dim.dim_value}.")
            if size and size != dim.dim_value:
                raise InputError(f"Axis {axis} of the input {name!r} is fixed at {dim.dim_value}; {size} was given.")
            shape.append(dim.dim_value)
        elif size:
            shape.append(size)
            if dim.dim_param:
                symbols[dim.dim_param] = size
        elif axis == 0:
            shape.append(None)
        elif dim.dim_param in symbols:
            shape.append(symbols[dim.dim_param])
        else:
            open_dims = "x".join(str(d.dim_value) if d.HasField("dim_value") else d.dim_param or "?" for d in dims[1:])
            raise InputError(f"Input {name!r} has open dimensions: {open_dims}. Give them, without the batch, e.g. --input {name}={_example(dims)}")
    return tuple(shape)


def _example(dims: list[Any]) -> str:
    spatial = len(dims) == 4
    return "x".join(str(d.dim_value) if d.HasField("dim_value") and d.dim_value else ("224" if spatial else "128") for d in dims[1:])
