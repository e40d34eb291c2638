"""Datasets: graphs as columns: operators, tensors, edges and names in lists, a sixth of the size of compressed JSON.

Idea. Layers of a network repeat, and so do graphs of a store. A general compressor (zstd) finds repeats if equal things
are equal bytes. So everything that differs between two equal layers is made relative. Tensors are numbered in the order
in which the nodes mention them. An edge is stored as the distance back to the first mention of its tensor, and 0 for a
new tensor: equal layers have equal edges. Distinct operators (with their attributes) and distinct types of tensors are
listed once, and nodes and tensors refer to these lists. Names become templates with numbers
(`foretell.datasets.graphs.name_templates`).

A row is one graph and can be read without any other row.

Limits: a graph whose nodes have bodies (loops, conditions) has no such row, nor has one whose names contain the marks
of templates; `foretell.datasets.graphs.stored` keeps those as JSON. The columns are a file format: a change of their
meaning needs a new schema version.
"""

import json
from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from foretell.datasets.graphs.name_templates import TemplateReader, TemplateWriter
from foretell.errors import GraphError
from foretell.graph import Graph, Node, Tensor
from foretell.graph.ir.serde import KINDS

_ABSENT = -1
_FIXED = "!"  # after the dtype of a tensor that keeps it when the model is cast
INTEGERS = (
    "node_operator",  # the position of each node's operator in `operators`
    "node_module",  # distance back among the distinct modules; 0: a new one
    "module_template", "module_numbers", "node_template", "node_numbers", "origin_template", "origin_numbers",
    "edges",  # of all nodes, inputs before outputs: distance back among the tensors; 0: new, -1: absent
    "inputs", "outputs",  # the same for the inputs and outputs of the graph
    "tensor_type", "tensor_template", "tensor_numbers",  # in the order of the edges
    "tensor_order",  # the tensors in the order of the graph, as differences less 1; null: sorted by name
    "held",  # for each output of each node the number of nodes until it is let go of, 0: see the readers; null: unknown
)  # fmt: skip
TEXTS = ("templates", "operators", "types", "warnings")

Columns = dict[str, Any]
Numbers = NDArray[np.int32]


def pack(graph: Graph) -> Columns:
    """A graph as one row; raises `ValueError` where columns cannot hold it."""
    if any(node.bodies for node in graph.nodes):
        raise ValueError("A graph whose nodes have bodies is not one list of nodes.")
    tensors: dict[str, int] = {}
    modules: dict[str, int] = {}
    operators: dict[str, int] = {}
    edges: list[int] = []
    readers: dict[str, str] = {}  # tensor → the module that mentions it first, if it is an input there
    for node in graph.nodes:
        for name in node.inputs:
            if name and name not in tensors:
                readers[name] = node.module
            edges.append(_distance_back(tensors, name) if name else _ABSENT)
        edges += [_distance_back(tensors, name) if name else _ABSENT for name in node.outputs]
    outputs = [_distance_back(tensors, name) for name in graph.outputs]
    inputs = [_distance_back(tensors, name) for name in graph.inputs]
    # tensors that no node and no output mentions come last
    for name in graph.tensors:
        _distance_back(tensors, name)
    types: dict[str, int] = {}
    writer = TemplateWriter()
    columns: Columns = {
        "name": graph.name, "batch_size": graph.batch_size, "metadata": _json(dict(graph.metadata)),
        "warnings": list(graph.warnings), "edges": edges, "inputs": inputs, "outputs": outputs,
        "node_operator": [operators.setdefault(_operator_text(node), len(operators)) for node in graph.nodes],
        "node_module": [_distance_back(modules, node.module) for node in graph.nodes],
        "tensor_type": [
            types.setdefault(_type_text(graph.tensors[name], name in graph.fixed), len(types)) for name in tensors
        ],
        # most graphs sort their tensors by name: null takes no space
        "tensor_order": _order(list(graph.tensors), tensors),
        "operators": list(operators), "types": list(types), "held": _spans(graph),
    }  # fmt: skip
    first_outputs = [node.outputs[0] if node.outputs else "" for node in graph.nodes]
    names = {
        # each name comes with a text that the reader knows by then and that the name may contain
        "module": [(name, "") for name in modules],
        "tensor": [(name, readers.get(name, "")) for name in tensors],
        "node": [(node.name, known) for node, known in zip(graph.nodes, first_outputs, strict=True)],
        "origin": [(node.origin, known) for node, known in zip(graph.nodes, first_outputs, strict=True)],
    }
    for kind, texts in names.items():
        columns[f"{kind}_template"], columns[f"{kind}_numbers"] = writer.write(texts)
    return columns | {"templates": list(writer.templates)}


def _distance_back(numbers: dict[str, int], name: str) -> int:
    """The distance back to the first mention of ``name``; 0 where it is new and gets the next number."""
    if name in numbers:
        return len(numbers) - numbers[name]
    numbers[name] = len(numbers)
    return 0


def _order(names: list[str], numbers: Mapping[str, int]) -> list[int] | None:
    if names == sorted(names):
        return None
    order = [numbers[name] for name in names]
    return [after - before - 1 for before, after in zip([-1, *order], order)]


def _spans(graph: Graph) -> list[int] | None:
    """For each output of each node how many nodes later it is let go of, if the graph says so, else 0."""
    if graph.held is None:
        return None
    positions = {node.name: position for position, node in enumerate(graph.nodes)}
    return [
        max(positions.get(graph.held.get(name, ""), position) - position, 0)
        for position, node in enumerate(graph.nodes)
        for name in node.outputs
    ]


def _held(nodes: tuple[Node, ...], spans: Numbers | None) -> dict[str, str] | None:
    if spans is None:
        return None
    made = [(name, position) for position, node in enumerate(nodes) for name in node.outputs]
    if spans.size != len(made) or (spans < 0).any():
        raise ValueError("The spans of what is held do not match the outputs.")
    return {name: nodes[position + span].name for (name, position), span in zip(made, spans.tolist()) if span}


def _operator_text(node: Node) -> str:
    attributes = {name: list(value) if isinstance(value, tuple) else value for name, value in node.attributes.items()}
    return _json([node.op, node.domain, node.origin_op, len(node.inputs), len(node.outputs), attributes])


@lru_cache(maxsize=1 << 14)
def _operator(text: str) -> tuple[str, str, str, int, int, Mapping[str, Any]]:
    op, domain, origin_op, inputs, outputs, attributes = json.loads(text)
    values = {name: tuple(value) if isinstance(value, list) else value for name, value in attributes.items()}
    return op, domain, origin_op, inputs, outputs, values


def _type_text(tensor: Tensor, fixed: bool) -> str:
    axis = "-" if tensor.batch_axis is None else tensor.batch_axis
    return f"{'x'.join(map(str, tensor.shape))} {tensor.dtype}{_FIXED if fixed else ''} {tensor.kind} {axis}"


@lru_cache(maxsize=1 << 16)
def _type(text: str) -> tuple[tuple[int, ...], str, Any, int | None]:
    shape, dtype, kind, axis = text.replace(_FIXED, "").split(" ")
    if kind not in KINDS:
        raise ValueError(f"{kind!r} is not a kind of tensor.")
    return tuple(map(int, shape.split("x"))) if shape else (), dtype, kind, None if axis == "-" else int(axis)


def _json(value: object) -> str:
    return json.dumps(value, separators=(",", ":"))


def unpack(columns: Columns) -> Graph:
    """The graph of one row, whose numbers are arrays; raises `GraphError` where the row is damaged."""
    try:
        graph = _unpacked(columns)
    except (LookupError, TypeError, ValueError, AttributeError, OverflowError, RecursionError) as error:
        if isinstance(error, GraphError):
            raise
        raise GraphError(f"The columns of the graph {columns.get('name')!r} are damaged.") from error
    # columns that can be decoded may still be no sound graph
    graph.validate()
    return graph


def _unpacked(columns: Columns) -> Graph:
    operators = [_operator(text) for text in columns["operators"]]
    types, is_fixed = [_type(text) for text in columns["types"]], [_FIXED in text for text in columns["types"]]
    texts = TemplateReader(columns["templates"])

    def names(kind: str, known: Iterable[str]) -> list[str]:
        return texts.read(columns[f"{kind}_template"], columns[f"{kind}_numbers"], known)

    node_operator, node_count = columns["node_operator"].tolist(), len(columns["node_operator"])
    input_counts = np.array([operators[place][3] for place in node_operator], np.int64)
    edge_counts = input_counts + np.array([operators[place][4] for place in node_operator], np.int64)
    edges, ends = columns["edges"], np.cumsum(edge_counts)
    if edge_counts.sum() != edges.size:
        raise ValueError("The number of edges does not match the operators.")
    modules = names("module", [""] * len(columns["module_template"]))
    node_module = [modules[place] for place in _places(columns["node_module"], len(modules)).tolist()]
    owner = np.repeat(np.arange(node_count), edge_counts)
    # for each edge: is it among the inputs of its node?
    is_read = np.arange(edges.size) - np.repeat(ends - edge_counts, edge_counts) < np.repeat(input_counts, edge_counts)
    is_new = edges == 0
    readers = [
        node_module[node] if reads else "" for node, reads in zip(owner[is_new].tolist(), is_read[is_new].tolist())
    ]
    count = len(columns["tensor_type"])
    tensor_of_edge = _places(np.concatenate([edges, columns["outputs"], columns["inputs"]]), count).tolist()
    tensor_names = names("tensor", readers + [""] * (count - len(readers)))
    tensors = [
        Tensor(name, *types[place]) for name, place in zip(tensor_names, columns["tensor_type"].tolist(), strict=True)
    ]
    tensor_names.append("")  # position −1: an absent input
    mentioned = [tensor_names[place] for place in tensor_of_edge]
    starts = [0, *ends.tolist()]
    output_starts = [start + inputs for start, inputs in zip(starts, input_counts.tolist())]
    first_outputs = [mentioned[start] if start < end else "" for start, end in zip(output_starts, starts[1:])]
    nodes = tuple(
        Node(
            name, operator[0], tuple(mentioned[start:half]), tuple(mentioned[half:end]), dict(operator[5]),
            operator[1], module, origin, operator[2],
        )
        for name, origin, module, operator, start, half, end in zip(
            names("node", first_outputs), names("origin", first_outputs), node_module,
            [operators[place] for place in node_operator], starts[:-1], output_starts, starts[1:], strict=True,
        )
    )  # fmt: skip
    outputs_end = edges.size + len(columns["outputs"])
    return Graph(
        columns["name"],
        nodes,
        {tensor.name: tensor for tensor in _ordered(tensors, columns["tensor_order"])},
        tuple(mentioned[outputs_end:]),
        tuple(mentioned[edges.size : outputs_end]),
        columns["batch_size"],
        tuple(columns["warnings"]),
        json.loads(columns["metadata"]),
        _held(nodes, columns["held"]),
        frozenset(t.name for t, place in zip(tensors, columns["tensor_type"].tolist()) if is_fixed[place]),
    )


def _places(distances: Numbers, count: int) -> NDArray[np.int64]:
    """The numbers that `_back` encoded, below ``count``; −1 where a tensor is absent."""
    is_new = distances == 0
    numbered_before = np.cumsum(is_new) - is_new
    places = np.where(distances == _ABSENT, _ABSENT, numbered_before - distances)
    if distances.size and (
        places.max() >= count or distances.min() < _ABSENT or (places < 0)[distances != _ABSENT].any()
    ):
        raise ValueError("An edge refers to a tensor that does not exist.")
    return places


def _ordered(tensors: list[Tensor], order: Numbers | None) -> list[Tensor]:
    if order is None:
        return sorted(tensors, key=lambda tensor: tensor.name)
    places = np.cumsum(order.astype(np.int64) + 1) - 1
    if not np.array_equal(np.sort(places), np.arange(len(tensors))):
        raise ValueError("The order of the tensors is not a permutation.")
    return [tensors[place] for place in places.tolist()]
