"""Lab: equal nodes of a graph, merged with a multiplicity: a network with few layers cannot tell them apart.

Idea. After k layers the row of a node depends on its features and on what it hears within k steps, no more. Two nodes
for which both are equal have equal rows; the layers of a deep network repeat, so that most nodes have many twins.
Colour refinement (Weisfeiler and Leman, 1968) finds them: a colour is the features, then k times the colour together
with the multiset of the colours that a node hears. One node of each colour stays, with all of its incoming edges (two
neighbours of one colour are two edges) and the number of nodes that it stands for; sums over a graph are weighted.

Why this is exact: nodes of one colour after k rounds also have one colour after fewer rounds, so a neighbour may be
replaced by the node that stands for it in each of the k layers. It holds where rows do not depend on chance: with
dropout, merged nodes share what is dropped. Colours are hashes of 64 bits; two of a million nodes have one by accident
with a probability below 1e-7.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from lab.papers.graph_networks.arrays import GraphArrays
from lab.papers.graph_networks.recipes import Recipe, node_matrix

_MIX = (np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB))
_SEED = 20_230_817


@dataclass(frozen=True)
class Rows:
    """The rows of many graphs: nodes, edges numbered within each graph, and how many nodes each row stands for.

    ``counts`` is None where nothing is merged. Where it is not, the edges go from who speaks to who hears, whatever the
    direction of the recipe.
    """

    nodes: NDArray[np.float32]
    edges: NDArray[np.int64]
    counts: NDArray[np.float32] | None
    node_counts: NDArray[np.int64]
    edge_counts: NDArray[np.int64]


def layers_of(recipe: Recipe) -> int:
    """How many steps away a node is heard."""
    layers = recipe.blocks * recipe.layers if recipe.block != "none" else 0
    return max(layers, len(recipe.encoder_widths)) if recipe.embedding == "frozen" else layers


def can_merge(recipe: Recipe) -> bool:
    """Whether merging changes nothing: not where an encoder hears other neighbours, or has norms over all nodes."""
    if recipe.readout == "mean":
        return False
    return recipe.embedding in ("none", "zeros") or (recipe.embedding == "frozen" and recipe.direction == "forward")


def rows_of(graphs: Sequence[GraphArrays], recipe: Recipe, *, merged: bool = False) -> Rows:
    """The rows of graphs in the layout of a recipe, each node once, or equal ones merged."""
    nodes = np.concatenate([node_matrix(graph, recipe) for graph in graphs])
    edges = np.concatenate([graph.edges for graph in graphs], axis=1)
    node_counts = np.array([len(graph) for graph in graphs], np.int64)
    edge_counts = np.array([graph.edges.shape[1] for graph in graphs], np.int64)
    rows = Rows(nodes, edges, None, node_counts, edge_counts)
    return _merge(rows, recipe) if merged and can_merge(recipe) else rows


def _merge(rows: Rows, recipe: Recipe) -> Rows:
    graphs = len(rows.node_counts)
    graph_of = np.repeat(np.arange(graphs), rows.node_counts)
    starts = np.cumsum(rows.node_counts) - rows.node_counts
    source, target = _heard(rows.edges + np.repeat(starts, rows.edge_counts), recipe.direction)
    # GCN divides by the number of neighbours of both ends, so the degree is part of the first colour
    degree = np.bincount(target, minlength=len(graph_of)).astype(np.uint64)
    colour = _mixed(_hashed_rows(rows.nodes) + _mixed(degree) + _mixed(graph_of.astype(np.uint64)))
    for _ in range(layers_of(recipe)):
        total = np.zeros(len(colour), np.uint64)
        # a sum of mixed hashes is that of a multiset: the order of neighbours does not matter
        np.add.at(total, target, _mixed(colour[source]))
        colour = _mixed(colour + _mixed(total + np.uint64(1)))
    _, first, place, counts = np.unique(colour, return_index=True, return_inverse=True, return_counts=True)
    order = np.argsort(first)
    kept = first[order]  # in the order of the nodes: graph by graph
    rank = np.argsort(order)
    is_kept = np.zeros(len(colour), bool)
    is_kept[kept] = True
    use = np.flatnonzero(is_kept[target])
    use = use[np.argsort(graph_of[target[use]], kind="stable")]
    node_counts = np.bincount(graph_of[kept], minlength=graphs)
    edge_counts = np.bincount(graph_of[target[use]], minlength=graphs)
    stands_for = rank[place]
    first_rows = np.repeat(np.cumsum(node_counts) - node_counts, edge_counts)
    edges = np.stack([stands_for[source[use]], stands_for[target[use]]]) - first_rows
    return Rows(rows.nodes[kept], edges, counts[order].astype(np.float32), node_counts, edge_counts)


def _heard(ends: NDArray[np.int64], direction: str) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Who speaks and who hears, for every edge; both, where messages go both ways."""
    maker, reader = ends
    if direction == "mutual":
        return np.concatenate([maker, reader]), np.concatenate([reader, maker])
    return (reader, maker) if direction == "backward" else (maker, reader)


def _mixed(values: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """SplitMix64 (Steele, Lea, Flood, 2014): a bijection that spreads every bit."""
    with np.errstate(over="ignore"):
        values = (values ^ (values >> np.uint64(30))) * _MIX[0]
        values = (values ^ (values >> np.uint64(27))) * _MIX[1]
        return values ^ (values >> np.uint64(31))


def _hashed_rows(nodes: NDArray[np.float32]) -> NDArray[np.uint64]:
    bits = np.ascontiguousarray(nodes + np.float32(0)).view(np.uint32)  # + 0: −0 and 0 are one number
    draw: NDArray[np.uint64] = np.random.default_rng(_SEED).integers(1, 2**63, nodes.shape[1:], dtype=np.uint64)
    total = np.zeros(len(nodes), np.uint64)
    with np.errstate(over="ignore"):
        for column in range(nodes.shape[1]):
            total += _mixed(bits[:, column].astype(np.uint64) + draw[column])
    return total
