"""graph: nodes that run as one. An operator of the framework may export as several nodes; its origin ties them together."""

from collections.abc import Mapping
from dataclasses import dataclass

from foretell.graph.cost import Cost, CostTable
from foretell.graph.graph import Graph
from foretell.graph.layout import Layout, distinct_elements, layouts
from foretell.graph.node import Node
from foretell.graph.ops import lookup
from foretell.graph.tensor import DTYPE_BITS


@dataclass(frozen=True, slots=True)
class Group:
    """Nodes of one origin: ``op`` names what they compute together, ``cost`` counts only what crosses the group's edge."""

    name: str
    op: str
    nodes: tuple[int, ...]
    cost: Cost


def run_groups(table: CostTable) -> tuple[Group, ...]:
    """The units in which a framework runs the graph, in order of their first node."""
    graph, laid_out = table.graph, layouts(table.graph)
    members: dict[str, list[int]] = {}
    for position, node in enumerate(graph.nodes):
        members.setdefault(node.origin or f"\0{position}", []).append(position)
    groups = []
    for positions in members.values():
        nodes = [graph.nodes[p] for p in positions]
        own = table.nodes[positions[0]] if len(positions) == 1 else _edge_cost(graph, positions, table, laid_out)
        groups.append(Group(nodes[0].origin or nodes[0].name, group_operator(nodes, own), tuple(positions), own))
    return tuple(groups)


def group_operator(nodes: list[Node], cost: Cost) -> str:
    """What several nodes compute together: told by their origin, or by their most telling member."""
    if len(nodes) == 1:
        return nodes[0].op
    if nodes[0].origin_op and lookup(nodes[0].origin_op).kind != "unknown":
        return nodes[0].origin_op
    ops = [n.op for n in nodes]
    if "Softmax" in ops and sum(op in ("MatMul", "Gemm") for op in ops) >= 2:
        return "Attention"
    order = ("recurrent", "attention", "contraction", "normalisation", "pooling", "sort", "scatter", "gather", "reduction", "elementwise", "movement")
    for kind in order:
        for op in ops:
            if lookup(op).kind == kind:
                return op
    return ops[-1]


def _edge_cost(graph: Graph, positions: list[int], table: CostTable, laid_out: Mapping[str, Layout]) -> Cost:
    inside = set(positions)
    made = {o for p in positions for o in graph.nodes[p].outputs if o}
    entering = dict.fromkeys(i for p in positions for i in graph.nodes[p].inputs if i and i not in made)
    leaving = [o for o in made if o in graph.outputs or any(c not in inside for c in graph.consumers.get(o, ()))]
    inner = [table.nodes[p] for p in positions]
    working = [c for c in inner if c.launches]
    if not working:
        return Cost(parameters=sum(c.parameters for c in inner), parameter_bytes=sum(c.parameter_bytes for c in inner))
    read = sum(min(_storage_bytes(graph, n, laid_out), _most_read(graph, n, positions, table)) for n in entering)
    written = sum(graph.tensors[n].bytes for n in leaving)
    return Cost(
        macs=sum(c.macs for c in inner),
        flops=sum(c.flops for c in inner),
        parameters=sum(c.parameters for c in inner),
        parameter_bytes=sum(c.parameter_bytes for c in inner),
        bytes_read=read,
        bytes_written=written,
        activation_bytes=sum(graph.tensors[n].bytes for n in leaving if laid_out[n].storage in made),
        tensor_core_macs=sum(c.tensor_core_macs for c in inner),
        launches=max(c.launches for c in inner),
    )


def _storage_bytes(graph: Graph, name: str, laid_out: Mapping[str, Layout]) -> int:
    tensor = graph.tensors[name]
    return distinct_elements(tensor.shape, laid_out[name].strides) * DTYPE_BITS[tensor.dtype] // 8


def _most_read(graph: Graph, name: str, positions: list[int], table: CostTable) -> int:
    """No node of the group reads more of a tensor than its own cost says: a gather reads rows, not the table."""
    readers = [p for p in positions if name in graph.nodes[p].inputs]
    reading = [table.nodes[p].bytes_read for p in readers if table.nodes[p].bytes_read]
    return sum(reading) if reading else graph.tensors[name].bytes
