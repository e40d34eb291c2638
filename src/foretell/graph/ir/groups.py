"""graph: nodes that run as one. One operator of a framework may export as several nodes; its origin ties them."""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from foretell.graph.cost.node_costs import Cost, CostTable, total
from foretell.graph.ir.graph import Graph
from foretell.graph.ir.layout import Layout, distinct_elements, layouts
from foretell.graph.ir.node import Node
from foretell.graph.ir.operators import lookup
from foretell.graph.ir.tensor import DTYPE_BITS


@dataclass(frozen=True, slots=True)
class Group:
    """Nodes of one origin: ``op`` names what they compute together, ``cost`` only the traffic across their edge."""

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
    groups, outputs = [], frozenset(graph.outputs)
    for positions in members.values():
        nodes = [graph.nodes[p] for p in positions]
        own = (
            table.nodes[positions[0]] if len(positions) == 1 else _edge_cost(graph, positions, table, laid_out, outputs)
        )
        groups.append(Group(nodes[0].origin or nodes[0].name, group_operator(nodes), tuple(positions), own))
    return tuple(groups)


def group_operator(nodes: list[Node]) -> str:
    """What several nodes compute together: told by their origin, or by their most telling member."""
    if len(nodes) == 1:
        return nodes[0].op
    if nodes[0].origin_op and lookup(nodes[0].origin_op).kind != "unknown":
        return nodes[0].origin_op
    ops = [n.op for n in nodes]
    if "Softmax" in ops and sum(op in ("MatMul", "Gemm") for op in ops) >= 2:
        return "Attention"
    order = (
        "recurrent",
        "attention",
        "contraction",
        "normalisation",
        "pooling",
        "sort",
        "scatter",
        "gather",
        "reduction",
        "elementwise",
        "movement",
    )
    for kind in order:
        for op in ops:
            if lookup(op).kind == kind:
                return op
    return ops[-1]


def _edge_cost(
    graph: Graph, positions: list[int], table: CostTable, laid_out: Mapping[str, Layout], outputs: frozenset[str]
) -> Cost:
    """Work as the sum of its nodes, traffic only across the group's edge."""
    own = total(table.nodes[p] for p in positions)
    if not own.launches:
        return replace(own, bytes_read=0, bytes_written=0, activation_bytes=0)
    inside = set(positions)
    made = dict.fromkeys(o for p in positions for o in graph.nodes[p].outputs if o)
    leaving = [o for o in made if o in outputs or any(c not in inside for c in graph.consumers.get(o, ()))]
    kept = {s for o in leaving if (s := laid_out[o].storage) in made}  # several views of one storage are written once
    overwritten = [
        o for o in leaving if laid_out[o].storage not in made and table.nodes[graph.producers[o]].bytes_written
    ]
    readers: dict[str, list[int]] = {}
    for position in positions:
        for name in dict.fromkeys(graph.nodes[position].inputs):
            if name and name not in made:
                readers.setdefault(name, []).append(table.nodes[position].bytes_read)
    return replace(
        own,
        bytes_read=sum(_read_once(graph, name, reading, laid_out) for name, reading in readers.items()),
        bytes_written=sum(graph.tensors[n].bytes for n in (*kept, *overwritten)),
        activation_bytes=sum(graph.tensors[n].bytes for n in kept),
        launches=max(table.nodes[p].launches for p in positions),
    )


def _read_once(graph: Graph, name: str, reading: list[int], laid_out: Mapping[str, Layout]) -> int:
    """A tensor's distinct bytes, but no more than its readers take: a gather reads rows, not the table."""
    tensor = graph.tensors[name]
    stored = distinct_elements(tensor.shape, laid_out[name].strides) * DTYPE_BITS[tensor.dtype] // 8
    return min(stored, sum(reading) or tensor.bytes)
