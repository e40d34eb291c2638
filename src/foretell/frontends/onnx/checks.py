"""frontends: what is refused before an ONNX model is converted: broken structure, unknown operators, escaping paths."""

import os
import re
from collections.abc import Iterable, Iterator

import onnx
from onnx import FunctionProto, GraphProto, ModelProto, NodeProto, SparseTensorProto, TensorProto

from foretell.errors import ModelError, UnsupportedOperatorError
from foretell.frontends.onnx.contrib import canonical_name

MAX_DEPTH = 16  # of sub-graphs in sub-graphs
MAX_INLINED_NODES = 10**6
_GRAPHS = (onnx.AttributeProto.GRAPH, onnx.AttributeProto.GRAPHS)


def bodies(node: NodeProto) -> list[GraphProto]:
    """The sub-graphs of a node."""
    return [g for a in node.attribute if a.type in _GRAPHS for g in ((a.g,) if a.type == _GRAPHS[0] else a.graphs)]


def check_model(model: ModelProto, allow_unknown: bool) -> None:
    """Raise where the model cannot be read as it stands."""
    graph = model.graph
    if not graph.output:
        raise ModelError("The model's graph has no outputs: it is cut short, or no model.")
    if not graph.node:
        raise ModelError("The model's graph has no operators.")
    _check_graph(graph, frozenset(), allow_unknown, depth=0)


def _check_graph(graph: GraphProto, outer: frozenset[str], allow_unknown: bool, depth: int) -> None:
    if depth > MAX_DEPTH:
        raise ModelError(f"The model nests sub-graphs more than {MAX_DEPTH} deep: refused.")
    made = _names_made(graph)
    visible: frozenset[str] | None = None
    for tensor in graph.initializer:
        _check_location(tensor)
    for sparse in graph.sparse_initializer:
        _check_sparse(sparse)
    for node in graph.node:
        if not (type(node.name) is type(node.op_type) is type(node.domain) is str):
            raise ModelError("The model has a node whose name is no text: it is damaged.")
        if not allow_unknown and canonical_name(node) is None:
            raise UnsupportedOperatorError(
                f"Operator {node.op_type!r} of the domain {node.domain or 'ai.onnx'!r} is unknown "
                f"(node {label(node)!r}). "
                "Allow it with --allow-unknown: it is then reported and counted by the bytes it moves."
            )
        for name in node.input:
            if name and name not in made and name not in outer:
                raise ModelError(f"Node {label(node)!r} ({node.op_type}) reads {name!r}, which nothing makes.")
        if node.attribute:
            _check_attributes(node)
            for body in bodies(node):
                visible = visible if visible is not None else outer | made
                _check_graph(body, visible, allow_unknown, depth + 1)
    for output in graph.output:
        if output.name not in made and output.name not in outer:
            raise ModelError(f"The output {output.name!r} of the graph {graph.name!r} is made by no node.")


def label(node: NodeProto) -> str:
    """How to call a node in a message."""
    return str(node.name or next((o for o in node.output if o), node.op_type))


def _names_made(graph: GraphProto) -> set[str]:
    """All names that a graph defines; each may be defined once."""
    made: set[str] = set()
    for entry in graph.input:
        if not entry.name or entry.name in made:
            raise ModelError(f"The input {entry.name!r} is listed twice, or has no name.")
        made.add(entry.name)
    weights: set[str] = set()
    for name in (*(t.name for t in graph.initializer), *(s.values.name for s in graph.sparse_initializer)):
        if not name:
            raise ModelError("The model has an initializer without a name.")
        if name in weights:
            raise ModelError(f"The initializer {name!r} is there twice.")
        weights.add(name)
    made |= weights
    for node in graph.node:
        for name in node.output:
            if name in made:
                raise ModelError(
                    f"Tensor {name!r} is made twice, the second time by node {label(node)!r} ({node.op_type})."
                )
            if name:
                made.add(name)
    if not all(type(name) is str for name in made):  # protobuf hands out bytes where a text is none
        raise ModelError("The model has a tensor whose name is no text: it is damaged.")
    return made


def _check_attributes(node: NodeProto) -> None:
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
    """External weights are never opened; a location outside the model's folder is refused all the same."""
    if tensor.data_location != TensorProto.EXTERNAL and not tensor.external_data:
        return
    for location in [e.value for e in tensor.external_data if e.key == "location"] or [""]:
        if not isinstance(location, str):
            raise ModelError(
                f"Weight {tensor.name!r} keeps its data at {location!r}, which is no text: the model is damaged."
            )
        parts = re.split(r"[\\/]", location)
        absolute = os.path.isabs(location) or location.startswith("\\") or re.match(r"^[A-Za-z]:", location)
        if not location or absolute or ".." in parts or "\0" in location:
            raise ModelError(
                f"Weight {tensor.name!r} keeps its data at {location!r}, outside the model's folder: refused."
            )


# ── local functions ───────────────────────────────────────────────────────────────────────────────────────────────────


def inline_functions(model: ModelProto) -> ModelProto:
    """The model with its local functions expanded, unless they call themselves or expand to too much."""
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
    functions = {(f.domain, f.name): f for f in model.functions}
    sizes: dict[tuple[str, str], int] = {}
    pending: set[tuple[str, str]] = set()

    def size(key: tuple[str, str]) -> int:
        if key not in sizes:
            if key in pending:
                raise ModelError(f"The model's function {key[1]!r} calls itself.")
            if len(pending) > 200:
                raise ModelError("The model's functions call each other more than 200 deep: refused.")
            pending.add(key)
            sizes[key] = count(_all_nodes(functions[key]))
            pending.remove(key)
        return sizes[key]

    def count(nodes: Iterable[NodeProto]) -> int:
        found = sum(size((n.domain, n.op_type)) if (n.domain, n.op_type) in functions else 1 for n in nodes)
        if found > MAX_INLINED_NODES:
            raise ModelError(f"The model's functions expand to more than {MAX_INLINED_NODES} nodes: refused.")
        return found

    count(_all_nodes(model.graph))


def _all_nodes(graph: GraphProto | FunctionProto, depth: int = 0) -> Iterator[NodeProto]:
    if depth > MAX_DEPTH:
        raise ModelError(f"The model nests sub-graphs more than {MAX_DEPTH} deep: refused.")
    for node in graph.node:
        yield node
        for body in bodies(node):
            yield from _all_nodes(body, depth + 1)
