"""Frontends: checks an ONNX model before conversion.

It refuses broken structure, unknown operators, external data outside the model's folder, and functions or sub-graphs
that are nested too deeply.
"""

import os
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import onnx
from onnx import FunctionProto, GraphProto, ModelProto, NodeProto, SparseTensorProto, TensorProto

from foretell.errors import ModelError, UnsupportedOperatorError
from foretell.frontends.budget import Budget
from foretell.frontends.onnx.contrib import canonical_name

MAX_DEPTH = 16  # of nested sub-graphs
MAX_CALL_DEPTH = 200  # of functions that call functions
MAX_COPIED_BYTES = 2**29  # of attributes and tensors in inlined functions
_TENSORS = (
    onnx.AttributeProto.TENSOR,
    onnx.AttributeProto.TENSORS,
    onnx.AttributeProto.SPARSE_TENSOR,
    onnx.AttributeProto.SPARSE_TENSORS,
)
_GRAPHS = (onnx.AttributeProto.GRAPH, onnx.AttributeProto.GRAPHS)


def bodies(node: NodeProto) -> list[GraphProto]:
    """Return the sub-graphs of a node."""
    return [g for a in node.attribute if a.type in _GRAPHS for g in ((a.g,) if a.type == _GRAPHS[0] else a.graphs)]


def check_model(model: ModelProto, allow_unknown: bool, budget: Budget | None = None) -> None:
    """Raise if the model cannot be converted, or takes more than the budget."""
    graph = model.graph
    if not graph.output:
        raise ModelError("The model's graph has no outputs: the file is truncated, or is not a model.")
    if not graph.node:
        raise ModelError("The model's graph has no operators.")
    _check_graph(graph, set(), allow_unknown, 0, budget or Budget("The model"))


def _check_graph(graph: GraphProto, visible: set[str], allow_unknown: bool, depth: int, budget: Budget) -> None:
    """Check one graph and its sub-graphs; ``visible`` are the names of the graphs around it, and here its own, too."""
    if depth > MAX_DEPTH:
        raise ModelError(f"The model nests sub-graphs more than {MAX_DEPTH} deep, which is not allowed.")
    if not isinstance(graph.name, str):  # protobuf returns bytes for a string that is not UTF-8
        raise ModelError("The model is damaged: the name of a graph is not valid text.")
    _draw(graph, budget)
    # one set for all graphs: a union for each of thousands of sub-graphs would be quadratic
    added = _defined_names(graph) - visible
    visible |= added
    _check_nodes(graph, visible, allow_unknown, depth, budget)
    for output in graph.output:
        if output.name not in visible:
            raise ModelError(f"The output {output.name!r} of the graph {graph.name!r} is made by no node.")
    visible -= added


def _draw(graph: GraphProto, budget: Budget) -> None:
    """Take the nodes, edges, names and attributes of one graph from the budget."""
    lists = (graph.input, graph.output, graph.initializer, graph.value_info, graph.sparse_initializer)
    budget.draw("nodes", len(graph.node))
    budget.draw("edges", sum(map(len, lists)))
    budget.draw_names([graph.name, *(entry.name for entries in lists[:4] for entry in entries)])
    for node in graph.node:
        names = (node.name, node.op_type, node.domain, *node.input, *node.output)
        budget.draw("edges", len(names) - 3)
        budget.draw_names(names)
        if node.attribute:
            budget.draw("bytes of attributes", _attribute_bytes(node))


def _attribute_bytes(node: NodeProto) -> int:
    """The size of a node's attributes, without tensors and sub-graphs."""
    return sum(a.ByteSize() for a in node.attribute if a.type not in _TENSORS and a.type not in _GRAPHS)


def _check_nodes(graph: GraphProto, visible: set[str], allow_unknown: bool, depth: int, budget: Budget) -> None:
    """Check the weights and nodes of one graph."""
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
            if name and name not in visible:
                raise ModelError(f"Node {label(node)!r} ({node.op_type}) reads {name!r}, which nothing makes.")
        if not any(node.output):
            raise ModelError(f"Node {label(node)!r} ({node.op_type}) has no outputs: malformed.")
        if node.attribute:
            _check_attributes(node)
            for body in bodies(node):
                _check_graph(body, visible, allow_unknown, depth + 1, budget)


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


def inline_functions(model: ModelProto, budget: Budget | None = None) -> ModelProto:
    """Return the model with its local functions inlined; raise if they are recursive or take more than the budget."""
    if not model.functions:
        return model
    from onnx import inliner

    check_expansion(model, budget or Budget("The model"))
    try:
        inlined: ModelProto = inliner.inline_local_functions(model)
    except Exception as error:
        reason = " ".join(str(error).split())[:200]
        raise ModelError(f"The model's local functions cannot be expanded: {reason}") from error
    return inlined


@dataclass
class _Expansion:
    """What a graph or function becomes when all functions are inlined; ``references`` take a caller's attributes."""

    nodes: int = 0
    edges: int = 0
    name_bytes: int = 0
    attribute_bytes: int = 0
    references: int = 0


def check_expansion(model: ModelProto, budget: Budget) -> None:
    """Draw what inlining would make without inlining: functions that call functions can grow exponentially."""
    functions = {(f.domain, f.name): f for f in model.functions}
    sizes: dict[tuple[str, str], _Expansion] = {}
    pending: set[tuple[str, str]] = set()

    def size(key: tuple[str, str]) -> _Expansion:
        if key not in sizes:
            if key in pending:
                raise ModelError(f"The model's function {key[1]!r} calls itself.")
            if len(pending) > MAX_CALL_DEPTH:
                raise ModelError(
                    f"The model's functions call each other more than {MAX_CALL_DEPTH} deep, which is not allowed."
                )
            pending.add(key)
            sizes[key] = expand(_all_nodes(functions[key]), copied=True)
            pending.remove(key)
        return sizes[key]

    def expand(nodes: Iterable[NodeProto], *, copied: bool) -> _Expansion:
        total = _Expansion()
        for node in nodes:
            names = (node.name, *node.input, *node.output)
            own = _Expansion(
                1,
                len(node.input) + len(node.output),
                sum(map(len, names)),
                # tensors are copied with the function that they stand in; those of the model itself are not
                sum(a.ByteSize() for a in node.attribute if a.type not in _GRAPHS)
                if copied
                else _attribute_bytes(node),
                sum(bool(a.ref_attr_name) for a in node.attribute),
            )
            function = functions.get((node.domain, node.op_type))
            if function is not None:
                inner = size((node.domain, node.op_type))
                largest = max((a.ByteSize() for a in (*node.attribute, *function.attribute_proto)), default=0)
                own = _Expansion(
                    inner.nodes,
                    inner.edges,
                    # a function's names get the names of the call: every edge may become as long as the longest
                    inner.name_bytes + inner.edges * max(map(len, names)),
                    inner.attribute_bytes + inner.references * largest,
                    inner.references if own.references else 0,
                )
            total.nodes += own.nodes
            total.edges += own.edges
            total.name_bytes += own.name_bytes
            total.attribute_bytes += own.attribute_bytes
            total.references += own.references
        # a budget of its own: what fits is drawn again, exactly, when the inlined graph is checked
        check = Budget(
            f"{budget.model} with its functions expanded", {**budget.limits, "bytes of attributes": MAX_COPIED_BYTES}
        )
        check.draw("nodes", total.nodes)
        check.draw("edges", total.edges)
        check.draw("bytes of names", total.name_bytes)
        check.draw("bytes of attributes", total.attribute_bytes)
        return total

    expand(_all_nodes(model.graph), copied=False)


def _all_nodes(graph: GraphProto | FunctionProto, depth: int = 0) -> Iterator[NodeProto]:
    if depth > MAX_DEPTH:
        raise ModelError(f"The model nests sub-graphs more than {MAX_DEPTH} deep, which is not allowed.")
    for node in graph.node:
        yield node
        for body in bodies(node):
            yield from _all_nodes(body, depth + 1)
