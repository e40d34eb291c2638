"""Frontends: reads If, Loop and Scan of ONNX. Each body becomes a graph; it may read tensors of the graph around it."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from onnx import GraphProto, NodeProto, TensorProto

from foretell.errors import ModelError
from foretell.frontends.onnx.checks import bodies, label
from foretell.frontends.onnx.nodes import NodeReader
from foretell.frontends.onnx.shapes import Declared, Shapes, read_type
from foretell.graph import Graph, Node
from foretell.graph.ir.batch import mark_batch_axes

CONTROL = frozenset({"If", "Loop", "Scan", "SequenceMap"})
MAX_TRIPS = 2**31
ReadBody = Callable[[GraphProto, Shapes, NodeReader, tuple[str, ...], str], Graph]


def outer_names(node: NodeProto) -> list[str]:
    """The names that the bodies of a node read from the graph around it."""
    names: list[str] = []
    for body in bodies(node):
        defined = (
            {i.name for i in body.input} | {t.name for t in body.initializer} | {o for n in body.node for o in n.output}
        )
        for inner in body.node:
            names.extend(i for i in (*inner.input, *outer_names(inner)) if i and i not in defined)
        names.extend(o.name for o in body.output if o.name not in defined)
    return list(dict.fromkeys(names))


def read_control(
    node: NodeProto, attributes: dict[str, Any], shapes: Shapes, reader: NodeReader, read_body: ReadBody
) -> Node:
    """Convert a control operator. The attribute ``trips`` of the node is the number of times that its body runs."""
    sub_graphs, captured = bodies(node), [n for n in outer_names(node) if n in shapes.known]
    _check(node, sub_graphs, shapes)
    condition = shapes.values.get(node.input[0]) if node.op_type == "If" else None
    if condition is not None and len(sub_graphs) == 2:  # the condition is a constant: only one branch ever runs
        sub_graphs = [attributes["then_branch" if bool(condition.ravel()[0]) else "else_branch"]]
    trips = _loop_trips(node, shapes, reader) if node.op_type == "Loop" else 1
    graphs = []
    for body in sub_graphs:
        inner = Shapes(shapes.opsets, Declared(body), shapes.budget)
        for name in captured:
            inner.enter(name, *shapes.known[name])
            if name in shapes.values:
                inner.keep(name, shapes.values[name])
        trips = _enter_inputs(node, body, shapes, inner, attributes, trips)
        inner_reader = NodeReader(inner)
        names = tuple(dict.fromkeys((*(i.name for i in body.input), *captured)))
        graphs.append(read_body(body, inner, inner_reader, names, body.name or node.op_type))
        reader.warnings.extend(inner_reader.warnings)
        _enter_outputs(node, body, shapes, inner, trips)
    for name in node.output:
        if name and name not in shapes.known:
            declared = shapes.declared.get(name)
            if declared is None:
                raise ModelError(
                    f"The shape of {name!r}, made by {node.op_type} {label(node)!r}, depends on data. Export the "
                    "model without control flow."
                )
            shapes.enter(name, *declared)
    read = [n if n in shapes.known else "" for n in node.input] + captured
    return Node(label(node), node.op_type, tuple(read), tuple(node.output), {"trips": trips}, bodies=tuple(graphs))


def _check(node: NodeProto, sub_graphs: list[GraphProto], shapes: Shapes) -> None:
    """Raise if the node does not have the sub-graphs of its operator, or works on sequences."""
    expected = 2 if node.op_type == "If" else 1
    if len(sub_graphs) != expected or not node.input:
        raise ModelError(
            f"Node {label(node)!r} ({node.op_type}) has {len(sub_graphs)} sub-graphs and {len(node.input)} inputs: "
            "malformed."
        )
    scanned = _scanned(node)
    if node.op_type == "Scan" and not 0 <= scanned <= len(node.input):
        raise ModelError(f"Node {label(node)!r} (Scan) scans {scanned} of its {len(node.input)} inputs: malformed.")
    if any(i in shapes.sequences for i in node.input) or node.op_type == "SequenceMap":
        raise ModelError(
            f"Node {label(node)!r} ({node.op_type}) works on a sequence. Export the model without sequences."
        )


def _loop_trips(node: NodeProto, shapes: Shapes, reader: NodeReader) -> int:
    """The number of iterations of a Loop; 1 with a warning if it is not known."""
    count = shapes.values.get(node.input[0]) if node.input[0] else None
    if count is None:
        reader.warnings.append(f"The number of iterations of loop {label(node)!r} depends on data; one is counted.")
        return 1
    trips = max(int(count.ravel()[0]), 0)
    if trips > MAX_TRIPS:
        # exporters write the largest integer if only the condition ends a loop
        reader.warnings.append(f"Loop {label(node)!r} runs until its condition is false; one iteration is counted.")
        return 1
    return trips


def _scanned(node: NodeProto) -> int:
    """The number of inputs that a Scan walks through; 0 for other operators."""
    return next((int(a.i) for a in node.attribute if a.name == "num_scan_inputs"), 0) if node.op_type == "Scan" else 0


def _scan_axes(attributes: Mapping[str, Any], which: str, count: int) -> list[int]:
    return [int(a) for a in attributes.get(f"scan_{which}_axes") or [0] * count]


def _enter_inputs(
    node: NodeProto, body: GraphProto, shapes: Shapes, inner: Shapes, attributes: Mapping[str, Any], trips: int
) -> int:
    """Give the inputs of a body their shapes; returns the number of iterations, which a scanned input decides."""
    scanned = _scanned(node)
    states, axes = len(node.input) - scanned, _scan_axes(attributes, "input", scanned)
    for position, entry in enumerate(body.input):
        source = node.input[position] if position < len(node.input) else ""
        # a Loop hands its body the iteration number and the condition first
        if node.op_type == "Loop" and position < 2:
            inner.enter(entry.name, (), TensorProto.INT64 if position == 0 else TensorProto.BOOL)
        elif source in shapes.known:
            shape, kind = shapes.known[source]
            if node.op_type == "Scan" and position >= states:
                axis = axes[position - states] % max(len(shape), 1)
                trips, shape = shape[axis], shape[:axis] + shape[axis + 1 :]
            inner.enter(entry.name, shape, kind)
        elif (known := read_type(entry.type)) is not None:
            inner.enter(entry.name, *known)
    return trips


def _enter_outputs(node: NodeProto, body: GraphProto, shapes: Shapes, inner: Shapes, trips: int) -> None:
    """Give the outputs of a control node their shapes: states keep theirs, stacked outputs gain an axis of trips."""
    # the first output of a Loop's body is the condition
    produced = [o.name for o in body.output][1 if node.op_type == "Loop" else 0 :]
    scanned = _scanned(node)
    states = {"If": len(produced), "Loop": len(node.input) - 2}.get(node.op_type, len(node.input) - scanned)
    for position, (outer_name, inner_name) in enumerate(zip(node.output, produced)):
        if outer_name and outer_name not in shapes.known and inner_name in inner.known:
            shape, kind = inner.known[inner_name]
            shapes.enter(outer_name, (trips, *shape) if position >= states else shape, kind)


def mark_bodies(graph: Graph) -> Graph:
    """Return the graph with batch axes marked in the bodies of its control nodes, too."""
    if not any(node.bodies for node in graph.nodes):
        return graph
    return replace(graph, nodes=tuple(_marked(node, graph) if node.bodies else node for node in graph.nodes))


def _marked(node: Node, graph: Graph) -> Node:
    """A control node with batch axes marked in its bodies."""
    axes = {n: graph.tensors[n].batch_axis for n in node.inputs if n}
    marked = []
    for body in node.bodies:
        tensors = dict(body.tensors)
        for position, name in enumerate(body.inputs):
            outside = (
                name
                if name in axes
                else node.inputs[position]
                if node.op != "If" and position < len(node.inputs)
                else ""
            )
            axis = axes.get(outside)
            if axis is not None and len(tensors[name].shape) < len(graph.tensors[outside].shape):
                axis = axis - 1 if axis else None  # inside the body the scanned axis is missing
            if axis is not None and axis < len(tensors[name].shape):
                tensors[name] = replace(tensors[name], batch_axis=axis)
        marked.append(mark_bodies(mark_batch_axes(replace(body, tensors=tensors, batch_size=graph.batch_size))))
    return replace(node, bodies=tuple(marked))
