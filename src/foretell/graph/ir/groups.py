"""Graph: groups of nodes that a framework runs as one operator.

One operator of a framework may be exported as several nodes. Nodes with the same origin form a group: their work adds
up, and only what crosses the edge of the group is read from or written to memory.
"""

from collections.abc import Mapping
from dataclasses import replace

from foretell.frozen import dataclass
from foretell.graph.cost.node_costs import Cost, CostTable, total
from foretell.graph.ir.graph import Graph
from foretell.graph.ir.layout import Layout, distinct_elements, layouts
from foretell.graph.ir.node import Node
from foretell.graph.ir.operators import lookup
from foretell.graph.ir.tensor import DTYPE_BITS


@dataclass(frozen=True, slots=True)
class Group:
    """Nodes of one origin. ``op`` names what they compute together; ``cost`` counts only traffic across their edge."""

    name: str
    op: str
    nodes: tuple[int, ...]
    cost: Cost


def run_groups(table: CostTable) -> tuple[Group, ...]:
    """Split a graph into the groups that a framework runs, in the order of their first nodes."""
    cache: dict[str, tuple[Group, ...]] = vars(table)  # writes past the frozen dataclass: a table never changes
    if "_groups" not in cache:
        pairs = zip(group_members(table.graph), group_costs(table), strict=True)
        cache["_groups"] = tuple(Group(name, op, positions, cost) for (name, op, positions), cost in pairs)
    return cache["_groups"]


def group_costs(table: CostTable) -> tuple[Cost, ...]:
    """The cost of every group, in their order."""
    graph = table.graph
    if is_ungrouped(graph):
        return table.nodes
    cache: dict[str, tuple[Cost, ...]] = vars(table)
    if "_group_costs" not in cache:
        laid_out, outputs = layouts(graph), frozenset(graph.outputs)
        cache["_group_costs"] = tuple(
            table.nodes[positions[0]] if len(positions) == 1 else _edge_cost(graph, positions, table, laid_out, outputs)
            for _, _, positions in group_members(graph)
        )
    return cache["_group_costs"]


def is_ungrouped(graph: Graph) -> bool:
    """Whether every node is a group of its own."""
    if "ungrouped" not in graph.structure:
        graph.structure["ungrouped"] = not any(node.origin for node in graph.nodes)
    return graph.structure["ungrouped"]  # type: ignore[no-any-return]


def group_members(graph: Graph) -> list[tuple[str, str, tuple[int, ...]]]:
    """The name, the operator and the nodes of every group, whatever the sizes of tensors."""
    if "groups" not in graph.structure and is_ungrouped(graph):
        graph.structure["groups"] = [(node.name, node.op, (n,)) for n, node in enumerate(graph.nodes)]
    elif "groups" not in graph.structure:
        members: dict[str, list[int]] = {}
        for position, node in enumerate(graph.nodes):
            # a node without an origin is a group of its own; no origin starts with a zero byte
            members.setdefault(node.origin or f"\0{position}", []).append(position)
        found = []
        for positions in members.values():
            nodes = [graph.nodes[position] for position in positions]
            found.append((nodes[0].origin or nodes[0].name, group_operator(nodes), tuple(positions)))
        graph.structure["groups"] = found
    return graph.structure["groups"]  # type: ignore[no-any-return]


def group_operator(nodes: list[Node]) -> str:
    """The operator that several nodes compute together: the one their origin names, or the heaviest of their own."""
    if len(nodes) == 1:
        return nodes[0].op
    if nodes[0].origin_op and lookup(nodes[0].origin_op).kind != "unknown":
        return nodes[0].origin_op
    ops = [n.op for n in nodes]
    if "Softmax" in ops and sum(op in ("MatMul", "Gemm") for op in ops) >= 2:
        return "Attention"
    # from the heaviest kind to the lightest
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
    graph: Graph, positions: tuple[int, ...], table: CostTable, laid_out: Mapping[str, Layout], outputs: frozenset[str]
) -> Cost:
    """The cost of a group: the work of all its nodes, but only the traffic that crosses its edge."""
    summed = total(table.nodes[p] for p in positions)
    if not summed.launches:
        return replace(summed, bytes_read=0, bytes_written=0, activation_bytes=0)
    inside = set(positions)
    produced = dict.fromkeys(o for p in positions for o in graph.nodes[p].outputs if o)
    leaving = [o for o in produced if o in outputs or any(c not in inside for c in graph.consumers.get(o, ()))]
    # a set of storages, not of tensors: several views of one storage are written once
    storages = {s for o in leaving if (s := laid_out[o].storage) in produced}
    # an in-place operator writes into storage that the group did not allocate
    overwritten = [
        o for o in leaving if laid_out[o].storage not in produced and table.nodes[graph.producers[o]].bytes_written
    ]
    readers: dict[str, list[int]] = {}
    for position in positions:
        for name in dict.fromkeys(graph.nodes[position].inputs):
            if name and name not in produced:
                readers.setdefault(name, []).append(table.nodes[position].bytes_read)
    return replace(
        summed,
        bytes_read=sum(_bytes_read(graph, name, by_node, laid_out) for name, by_node in readers.items()),
        bytes_written=sum(graph.tensors[n].bytes for n in (*storages, *overwritten)),
        activation_bytes=sum(graph.tensors[n].bytes for n in storages),
        # the group is one operator; a recurrent layer in it still launches once a time step
        launches=max(table.nodes[p].launches for p in positions),
    )


def _bytes_read(graph: Graph, name: str, by_node: list[int], laid_out: Mapping[str, Layout]) -> int:
    """The distinct bytes of a tensor, but no more than its readers take: a gather reads rows, not the whole table."""
    tensor = graph.tensors[name]
    stored = distinct_elements(tensor.shape, laid_out[name].strides) * DTYPE_BITS[tensor.dtype] // 8
    return min(stored, sum(by_node) or tensor.bytes)
