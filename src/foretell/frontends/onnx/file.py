"""Frontends: reads an ONNX file or ``ModelProto``. The values of weights are not needed; their data may be absent."""

from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path

import onnx
from google.protobuf.message import DecodeError
from onnx import GraphProto, ModelProto, NodeProto

from foretell.errors import ForetellError, InputError, ModelError
from foretell.frontends.batch_inputs import refuse_false_batch, shared_batch
from foretell.frontends.batch_mixing import mixes_batch
from foretell.frontends.budget import MAX_ONNX_BYTES, Budget, check_size
from foretell.frontends.onnx.checks import bodies, check_model, inline_functions, label
from foretell.frontends.onnx.control import CONTROL, mark_bodies, outer_names, read_control
from foretell.frontends.onnx.inputs import OpenInput, resolve_inputs
from foretell.frontends.onnx.nodes import NodeReader, dtype_of
from foretell.frontends.onnx.quantised import fuse_quantised
from foretell.frontends.onnx.sequences import OPERATORS as SEQUENCE_OPERATORS
from foretell.frontends.onnx.sequences import lower
from foretell.frontends.onnx.shapes import Declared, Shapes, read_attributes
from foretell.frontends.request import ModelRequest
from foretell.graph import Graph, Node, Tensor
from foretell.graph.ir.batch import mark_batch_axes
from foretell.graph.ir.graph import sort_nodes
from foretell.graph.ir.patterns import tie_patterns
from foretell.graph.ir.tensor import TensorKind

TRACE_BATCH = 11  # for models with an open batch; frontends/torch/export.py says why 11
_MALFORMED = (
    ValueError, TypeError, LookupError, ArithmeticError, AttributeError, AssertionError, RecursionError, StopIteration,
)  # fmt: skip


def read_model(request: ModelRequest) -> Graph:
    """Read the model, resolve its shapes and convert it; normalise it if a framework's converter wrote it."""
    if isinstance(request.source, ModelProto):
        proto, name = request.source, request.source.graph.name or "model"
    else:
        proto, name = _parse(Path(request.source)), Path(request.source).name
    if not isinstance(proto.graph.name, str):  # protobuf returns bytes for a string that is not UTF-8
        raise ModelError("The model is damaged: the name of its graph is not valid text.")
    graph = graph_from_proto(proto, request, name)
    graph = _normalised(graph) if _is_converted(proto) else graph
    return graph if request.as_written else _fused(graph)


def _fused(graph: Graph) -> Graph:
    """The graph with quantised operators as engines fuse them; as it is, with a warning, where that fails."""
    try:
        return fuse_quantised(graph)
    except (ForetellError, *_MALFORMED) as error:
        warning = f"Quantised operators could not be fused ({type(error).__name__}); they are read as written."
        return replace(graph, warnings=(*graph.warnings, warning))


def _is_converted(model: ModelProto) -> bool:
    """Whether tf2onnx (also behind Keras' own export), jax2onnx or paddle2onnx wrote the model.

    paddle2onnx does not write its name; the name of the graph gives it away.
    """
    return model.producer_name in ("tf2onnx", "jax2onnx") or "PaddlePaddle" in model.graph.name


def _normalised(graph: Graph) -> Graph:
    """Normalise the graph of a converted model; if that fails, return it as it is, with a warning."""
    from foretell.frontends.normalise.pipeline import normalise_converted  # here, because only these models need it

    try:
        return normalise_converted(graph)
    except (ForetellError, *_MALFORMED) as error:
        warning = f"The converted model could not be normalised ({type(error).__name__}); it is read as it is."
        return replace(graph, warnings=(*graph.warnings, warning))


def _parse(path: Path) -> ModelProto:
    """Read the file as protobuf; raise if it is too large or no ONNX model."""
    check_size(path, MAX_ONNX_BYTES, "an ONNX file")
    try:
        data = path.read_bytes()
    except OSError as error:
        raise ModelError(f"Cannot read {path}: {error.strerror or error}.") from error
    model = ModelProto()
    try:
        model.ParseFromString(data)
    except DecodeError as error:
        raise ModelError(f"{path.name} is not an ONNX model, or it is truncated ({len(data)} bytes).") from error
    if not model.HasField("graph") or not model.opset_import:
        raise ModelError(f"{path.name} is not an ONNX model, or it is truncated ({len(data)} bytes): it has no graph.")
    return model


def graph_from_proto(model: ModelProto, request: ModelRequest, name: str) -> Graph:
    """Return the graph of a parsed model."""
    try:
        return _graph_from_proto(model, request, name)
    except ForetellError:
        raise
    except _MALFORMED as error:
        reason = " ".join(str(error).split())[:200]
        raise ModelError(f"{name} is malformed: {type(error).__name__}: {reason}") from error


def _graph_from_proto(model: ModelProto, request: ModelRequest, name: str) -> Graph:
    """Check the model, then convert it with an open batch at 11, or else at 1."""
    opsets = {("" if o.domain == "ai.onnx" else o.domain): o.version for o in model.opset_import}
    newest = onnx.defs.onnx_opset_version()
    if not 1 <= opsets.get("", 1) <= newest:
        raise ModelError(
            f"{name} uses ONNX opset {opsets['']}; the installed onnx {onnx.__version__} knows 1 to {newest}. "
            "Upgrade onnx."
        )
    model = inline_functions(model, Budget(name))
    check_model(model, request.allow_unknown, Budget(name))
    inputs = resolve_inputs(model.graph, request)
    # some models compute with their batch size and fail at 11: these are read at 1
    batch_sizes = [TRACE_BATCH, 1] if any(None in i.shape for i in inputs) else [_fixed_batch(inputs) or 1]
    for position, batch_size in enumerate(batch_sizes):
        try:
            return _convert(model.graph, opsets, inputs, batch_size, name)
        except ModelError:
            if position == len(batch_sizes) - 1:
                raise
    raise AssertionError("unreachable")


def _fixed_batch(inputs: Iterable[OpenInput]) -> int | None:
    """The batch size of inputs of fixed shapes; None if they have no batch."""
    fixed = [i.at_batch(1) for i in inputs if not i.whole]
    return shared_batch(fixed) if fixed else None


def _convert(
    proto: GraphProto, opsets: Mapping[str, int], inputs: tuple[OpenInput, ...], batch_size: int, name: str
) -> Graph:
    """Convert the model at one batch size."""
    shapes = Shapes(opsets, Declared(proto, _symbols(proto, inputs, batch_size)), Budget(name))
    for entry in inputs:
        shapes.enter(entry.name, entry.at_batch(batch_size), entry.element_type)
    reader = NodeReader(shapes)
    nodes = _read_nodes(proto, shapes, reader)
    # inputs of fixed shapes that do not agree in their first axis have no batch
    has_batch = any(None in i.shape for i in inputs) or _fixed_batch(inputs) is not None
    axes = {i.name: i.batch_axis(batch_size) if has_batch else None for i in inputs}
    graph = _finish(proto, shapes, reader, nodes, axes, batch_size, name)
    marked = mark_bodies(mark_batch_axes(tie_patterns(graph)))
    if all(None not in i.shape for i in inputs):
        return marked if all(i.whole for i in inputs) else refuse_false_batch(marked, has_batch=has_batch)
    unnamed = next((i for i in inputs if i.open_axis), None)
    if unnamed is not None and (operator := mixes_batch(marked)) is not None:
        sizes = "x".join(str(d or "2708") for d in unnamed.shape)
        raise InputError(
            f"The open axis {unnamed.open_axis!r} of the input {unnamed.name!r} is no batch, because {operator} reads "
            f"across it. Give the whole shape, with ! for no batch, such as --input {unnamed.name}={sizes}!"
        )
    return marked


def _symbols(proto: GraphProto, inputs: Iterable[OpenInput], batch_size: int) -> dict[str, int]:
    """The sizes of the symbols in the shapes of inputs; one that has two sizes is left out."""
    dims = {entry.name: entry.type.tensor_type.shape.dim for entry in proto.input}
    found: dict[str, set[int]] = {}
    for entry in inputs:
        for dim, size in zip(dims[entry.name], entry.at_batch(batch_size)):
            if dim.dim_param:
                found.setdefault(dim.dim_param, set()).add(size)
    return {symbol: sizes.pop() for symbol, sizes in found.items() if len(sizes) == 1}


def _read_nodes(proto: GraphProto, shapes: Shapes, reader: NodeReader) -> list[Node]:
    """Convert the nodes of a graph in topological order; initializers first."""
    for tensor in proto.initializer:
        shapes.enter_constant(tensor.name, tensor)
        reader.constants[tensor.name] = tensor.data_type
        reader.initializers.add(tensor.name)
    for sparse in proto.sparse_initializer:
        shapes.enter(sparse.values.name, tuple(sparse.dims), sparse.values.data_type)
        reader.constants[sparse.values.name] = sparse.values.data_type
    nodes = []
    for node in _sorted(proto.node):
        try:
            converted = _read_node(node, shapes, reader)
        except ForetellError:
            raise
        except _MALFORMED as error:
            reason = " ".join(str(error).split())[:200]
            raise ModelError(
                f"Node {label(node)!r} ({node.op_type}) is malformed: {type(error).__name__}: {reason}"
            ) from error
        if converted is not None:
            nodes.append(converted)
    return nodes


def _read_node(node: NodeProto, shapes: Shapes, reader: NodeReader) -> Node | None:
    """Convert one node; None if nothing of it runs."""
    attributes = read_attributes(node)
    if node.op_type == "Constant":
        reader.read_constant(node, attributes)
        return None
    if node.op_type in CONTROL:
        return read_control(node, attributes, shapes, reader, _read_body)
    if node.op_type in SEQUENCE_OPERATORS:
        # sequences disappear here: what is left is an operator on tensors, or nothing
        plain = lower(node, attributes, shapes)
        if plain is None:
            return None
        node, attributes = plain, read_attributes(plain)
    elif node.op_type == "Identity" and node.input[0] in shapes.sequences:
        shapes.sequences[node.output[0]] = shapes.sequences[node.input[0]]
        return None
    shapes.run(node, attributes)
    return reader.convert(node, attributes)


def _read_body(proto: GraphProto, shapes: Shapes, reader: NodeReader, inputs: tuple[str, ...], name: str) -> Graph:
    return _finish(proto, shapes, reader, _read_nodes(proto, shapes, reader), dict.fromkeys(inputs), 1, name)


def _sorted(protos: Iterable[NodeProto]) -> list[NodeProto]:
    """Sort nodes topologically. ONNX requires that order, but some files break it; a cycle raises an error."""
    nodes = list(protos)
    names_read = [tuple(n.input) if not n.attribute or not bodies(n) else (*n.input, *outer_names(n)) for n in nodes]
    not_yet_made = {o for n in nodes for o in n.output if o}
    for node, names in zip(nodes, names_read):
        if not not_yet_made.isdisjoint(names):
            break
        not_yet_made.difference_update(node.output)
    else:
        return nodes
    # sort_nodes needs graph nodes; their names are the positions of the protos
    plain = [Node(str(i), n.op_type, names, tuple(n.output)) for i, (n, names) in enumerate(zip(nodes, names_read))]
    try:
        return [nodes[int(n.name)] for n in sort_nodes(tuple(plain))]
    except ForetellError as error:
        stuck = next((n for n, names in zip(nodes, names_read) if not not_yet_made.isdisjoint(names)), nodes[0])
        raise ModelError(
            f"The graph has a cycle; node {label(stuck)!r} ({stuck.op_type}) waits for its own result."
        ) from error


def _finish(
    proto: GraphProto,
    shapes: Shapes,
    reader: NodeReader,
    nodes: list[Node],
    axes: Mapping[str, int | None],
    batch_size: int,
    name: str,
) -> Graph:
    """Build the graph of converted nodes. ``axes`` maps each input to its batch axis."""
    produced = {o for node in nodes for o in node.outputs if o}
    outputs = [o.name for o in proto.output]
    used = produced | {i for node in nodes for i in node.inputs if i} | set(axes) | set(outputs)
    tensors = {}
    for key in sorted(used):
        if key not in shapes.known:
            if key in produced:
                continue  # an optional output that no node reads
            if key in shapes.sequences:
                raise ModelError(f"The model returns the sequence {key!r}; foretell reads models that return tensors.")
            raise ModelError(f"The shape of {key!r} is unknown. Export the model with fixed shapes.")
        shape, element_type = shapes.known[key]
        kind: TensorKind = "input" if key in axes else "activation" if key in produced else reader.kind_of(key, shape)
        tensors[key] = Tensor(key, shape, dtype_of(element_type), kind, axes.get(key))
    nodes = [_without_unknown_outputs(n, tensors) for n in nodes]
    warnings = dict.fromkeys(reader.warnings)
    return Graph.build(
        name, nodes, tensors, axes, [o for o in outputs if o in tensors], batch_size=batch_size, warnings=warnings
    )


def _without_unknown_outputs(node: Node, tensors: Mapping[str, Tensor]) -> Node:
    """The node without outputs that have no known shape, which no node reads."""
    if all(o in tensors or not o for o in node.outputs):
        return node
    outputs = tuple(o if o in tensors else "" for o in node.outputs)
    return Node(
        node.name,
        node.op,
        node.inputs,
        outputs,
        node.attributes,
        node.domain,
        node.module,
        node.origin,
        node.origin_op,
        node.bodies,
    )
