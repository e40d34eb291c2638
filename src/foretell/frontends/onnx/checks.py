"""Frontends: checks an ONNX model before conversion.

It refuses broken structure, unknown operators, external data outside the model's folder, and functions or sub-graphs
that are nested too deeply.
"""

import os
import re
from collections.abc import Iterable, Iterator

import onnx
from onnx import FunctionProto, GraphProto, ModelProto, NodeProto, SparseTensorProto, TensorProto

from foretell.errors import ModelError, UnsupportedOperatorError
from foretell.frontends.onnx.contrib import canonical_name

MAX_DEPTH = 16  # of nested sub-graphs
MAX_INLINED_NODES = 10**6
_GRAPHS = (onnx.AttributeProto.GRAPH, onnx.AttributeProto.GRAPHS)


def bodies(node: NodeProto) -> list[GraphProto]:
    """Return the sub-graphs of a node."""
    return [g for a in node.attribute if a.type in _GRAPHS for g in ((a.g,) if a.type == _GRAPHS[0] else a.graphs)]


def check_model(model: ModelProto, allow_unknown: bool) -> None:
    """Raise if the model cannot be converted."""
    graph = model.graph
    if not graph.output:
        raise ModelError("The model's graph has no outputs: the file is truncated, or is not a model.")
    if not graph.node:
        raise ModelError("The model's graph has no operators.")
    _check_graph(graph, frozenset(), allow_unknown, depth=0)


def _check_graph(graph: GraphProto, outer: frozenset[str], allow_unknown: bool, depth: int) -> None:
    """Check one graph and its sub-graphs; ``outer`` are the names that are visible from around it."""
    if depth > MAX_DEPTH:
        raise ModelError(f"The model nests sub-graphs more than {MAX_DEPTH} deep, which is not allowed.")
    defined = _defined_names(graph)
    visible: frozenset[str] | None = None
    for tensor in graph.initializer:
        _check_location(tensor)
    for sparse in graph.sparse_initializer:
        _check_sparse(sparse)
    for node in graph.node:
        if not (type(node.name) is type(node.op_type) is type(node.domain) is str):
            raise ModelError("The model is damaged: the name of a node is not valid text.")
        if not allow_unknown and canonical_name(node) is None:
            raise UnsupportedOperatorError(
                f"Operator {node.op_type!r} of the domain {node.domain or 'ai.onnx'!r} is unknown "
                f"(node {label(node)!r}). "
                "Allow it with --allow-unknown: it is then reported, and only the bytes that it moves are counted."
            )
        for name in node.input:
            if name and name not in defined and name not in outer:
                raise ModelError(f"Node {label(node)!r} ({node.op_type}) reads {name!r}, which nothing makes.")
        if node.attribute:
            _check_attributes(node)
            for body in bodies(node):
                visible = visible if visible is not None else outer | defined
                _check_graph(body, visible, allow_unknown, depth + 1)
    for output in graph.output:
        if output.name not in defined and output.name not in outer:
            raise ModelError(f"The output {output.name!r} of the graph {graph.name!r} is made by no node.")


def label(node: NodeProto) -> str:
    """Return the name of a node for messages."""
    return str(node.name or next((o for o in node.output if o), node.op_type))


def _defined_names(graph: GraphProto) -> set[str]:
    """All names that a graph defines; raise if one is defined twice."""
    defined: set[str] = set()
    for entry in graph.input:
        if not entry.name or entry.name in defined:
            raise ModelError(f"The input {entry.name!r} is listed twice, or has no name.")
        defined.add(entry.name)
    weights: set[str] = set()
    for name in (*(t.name for t in graph.initializer), *(s.values.name for s in graph.sparse_initializer)):
        if not name:
            raise ModelError("The model has an initializer without a name.")
        if name in weights:
            raise ModelError(f"The initializer {name!r} is defined twice.")
        weights.add(name)
    defined |= weights
    for node in graph.node:
        for name in node.output:
            if name in defined:
                raise ModelError(
                    f"Tensor {name!r} is made twice, the second time by node {label(node)!r} ({node.op_type})."
                )
            if name:
                defined.add(name)
    if not all(type(name) is str for name in defined):  # protobuf returns bytes for a string that is not UTF-8
        raise ModelError("The model is damaged: the name of a tensor is not valid text.")
    return defined


def _check_attributes(node: NodeProto) -> None:
    """Check the tensors in the attributes of a node."""
    for attribute in node.attribute:
        if attribute.ref_attr_name:
            raise ModelError(f"Node {label(node)!r} refers to an attribute of a function, outside any function.")
        if attribute.type in (onnx.AttributeProto.TENSOR, onnx.AttributeProto.TENSORS):
            for tensor in (attribute.t, *attribute.tensors):
                _check_location(tensor)
        elif attribute.type in (onnx.AttributeProto.SPARSE_TENSOR, onnx.AttributeProto.SPARSE_TENSORS):
            for sparse in (attribute.sparse_tensor, *attribute.sparse_tensors):
                _check_sparse(sparse)


def _check_sparse(sparse: SparseTensorProto) -> None:
    _check_location(sparse.values)
    _check_location(sparse.indices)


def _check_location(tensor: TensorProto) -> None:
    """Refuse external data outside the model's folder. It is never opened here, but other programs would open it."""
    if tensor.data_location != TensorProto.EXTERNAL and not tensor.external_data:
        return
    for location in [e.value for e in tensor.external_data if e.key == "location"] or [""]:
        if not isinstance(location, str):
            raise ModelError(
                f"The model is damaged: the location {location!r} of the data of weight {tensor.name!r} is not text."
            )
        # both separators and drive letters: the file may be opened on another system
        parts = re.split(r"[\\/]", location)
        absolute = os.path.isabs(location) or location.startswith("\\") or re.match(r"^[A-Za-z]:", location)
        if not location or absolute or ".." in parts or "\0" in location:
            raise ModelError(
                f"Weight {tensor.name!r} has its data at {location!r}, outside the model's folder. Keep it inside."
            )


# ── local functions ───────────────────────────────────────────────────────────────────────────────────────────────────


def inline_functions(model: ModelProto) -> ModelProto:
    """Return the model with its local functions inlined; raise if they are recursive or become too large."""
    if not model.functions:
        return model
    from onnx import inliner

    _check_expansion(model)
    try:
        inlined: ModelProto = inliner.inline_local_functions(model)
    except Exception as error:
        reason = " ".join(str(error).split())[:200]
        raise ModelError(f"The model's local functions cannot be expanded: {reason}") from error
    return inlined


def _check_expansion(model: ModelProto) -> None:
    """Count the nodes after inlining without inlining: functions that call functions can grow exponentially."""
    functions = {(f.domain, f.name): f for f in model.functions}
    sizes: dict[tuple[str, str], int] = {}
    pending: set[tuple[str, str]] = set()

    def size(key: tuple[str, str]) -> int:
        if key not in sizes:
            if key in pending:
                raise ModelError(f"The model's function {key[1]!r} calls itself.")
            if len(pending) > 200:
                raise ModelError("The model's functions call each other more than 200 deep, which is not allowed.")
            pending.add(key)
            sizes[key] = count(_all_nodes(functions[key]))
            pending.remove(key)
        return sizes[key]

    def count(nodes: Iterable[NodeProto]) -> int:
        nodes_after = sum(size((n.domain, n.op_type)) if (n.domain, n.op_type) in functions else 1 for n in nodes)
        if nodes_after > MAX_INLINED_NODES:
            raise ModelError(f"The model's functions expand to more than {MAX_INLINED_NODES} nodes, which is too many.")
        return nodes_after

    count(_all_nodes(model.graph))


def _all_nodes(graph: GraphProto | FunctionProto, depth: int = 0) -> Iterator[NodeProto]:
    if depth > MAX_DEPTH:
        raise ModelError(f"The model nests sub-graphs more than {MAX_DEPTH} deep, which is not allowed.")
    for node in graph.node:
        yield node
        for body in bodies(node):
            yield from _all_nodes(body, depth + 1)
