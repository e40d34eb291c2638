"""Lab: graphs without labels for TraPPM's pre-training, made from the arrays of known graphs, without tracing anything.

The thesis has 25,053 graphs of timm: eleven families, each at many widths, resolutions and batch sizes, so that most
differ from others in their sizes alone. Here a variant is a known graph at another batch size, width and resolution,
cut after a share of its nodes:

    batch, width b, w   the first axis times b, channels times w
    side s              spatial axes times s; of sequences, whose second axis is the area, times s²
    depth               the first nodes in the order in which they run, and the edges between them

MACs grow with b w² s², parameters with w² (products) or w, memory with b w s². These are the sizes that such a network
would have if every layer followed: nobody has built it, and groups or heads may not divide. The topology of a variant
is that of a known network or of its beginning. That is enough for an autoencoder, which is asked for edges.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from lab.papers.graph_networks.arrays import ATTRIBUTES, WHOLE_COLUMNS, GraphArrays

_BATCHES = (1, 2, 4, 8, 16, 32, 64)
_WIDTHS = (0.25, 0.5, 0.75, 1.0, 1.25, 1.5, 2.0)
_SIDES = (0.5, 0.75, 1.0, 1.25, 1.5, 2.0)
_DEPTHS = (0.4, 0.6, 0.8, 1.0, 1.0, 1.0)  # half of the variants are whole
_LEAST_NODES = 8


@dataclass(frozen=True)
class Variant:
    """How a graph is changed."""

    batch: float = 1.0
    width: float = 1.0
    side: float = 1.0
    depth: float = 1.0

    @classmethod
    def draw(cls, random: np.random.Generator) -> "Variant":
        """A variant by chance."""
        return cls(*(float(random.choice(values)) for values in (_BATCHES, _WIDTHS, _SIDES, _DEPTHS)))

    def of(self, graph: GraphArrays) -> GraphArrays:
        """The graph, changed."""
        graph = _first_nodes(graph, max(round(len(graph) * self.depth), min(_LEAST_NODES, len(graph))))
        macs, parameters, memory = graph.costs.T
        is_product = macs > 0
        costs = np.stack([
            macs * (self.batch * self.width**2 * self.side**2),
            np.rint(parameters * np.where(is_product, self.width**2, self.width)),
            memory * (self.batch * self.width * self.side**2),
        ], axis=1)  # fmt: skip
        attributes = graph.attributes.copy()
        channels = ATTRIBUTES.index("channels")
        attributes[:, channels] = _resized(attributes[:, channels], self.width)
        changed = replace(
            graph, attributes=attributes, input_shapes=self._shapes(graph.input_shapes),
            output_shapes=self._shapes(graph.output_shapes), costs=costs.astype(np.float32),
        )  # fmt: skip
        return replace(changed, whole=_whole_of(changed, self.batch, self.side))

    def _shapes(self, shapes: NDArray[np.float32]) -> NDArray[np.float32]:
        result = shapes.copy()
        rank = (shapes > 0).sum(axis=1)
        result[:, 0] = _resized(result[:, 0], self.batch)
        image, sequence, row = rank >= 4, rank == 3, rank == 2
        result[image, 1] = _resized(result[image, 1], self.width)
        result[image, 2:] = _resized(result[image, 2:], self.side)
        result[sequence, 1] = _resized(result[sequence, 1], self.side**2)
        result[sequence, 2] = _resized(result[sequence, 2], self.width)
        result[row, 1] = _resized(result[row, 1], self.width)
        return result


def unlabelled(graphs: Sequence[GraphArrays], count: int, seed: int) -> list[GraphArrays]:
    """``count`` graphs: each known one as it is, then variants of them by chance."""
    random = np.random.default_rng((seed, 5))
    known = list(graphs[:count])
    chosen = random.integers(0, len(graphs), count - len(known))
    return known + [Variant.draw(random).of(graphs[number]) for number in chosen]


def _resized(values: NDArray[np.float32], factor: float) -> NDArray[np.float32]:
    """Sizes times a factor, at least 1; what is not there (0) stays."""
    return np.where(values > 0, np.maximum(np.rint(values * factor), 1), 0).astype(np.float32)


def _first_nodes(graph: GraphArrays, count: int) -> GraphArrays:
    if count >= len(graph):
        return graph
    keep = (graph.edges < count).all(axis=0)
    return replace(
        graph, operators=graph.operators[:count], classes=graph.classes[:count], attributes=graph.attributes[:count],
        input_shapes=graph.input_shapes[:count], output_shapes=graph.output_shapes[:count], costs=graph.costs[:count],
        edges=graph.edges[:, keep],
    )  # fmt: skip


def _whole_of(graph: GraphArrays, batch: float, side: float) -> NDArray[np.float64]:
    whole = graph.whole.copy()
    totals = graph.costs.astype(np.float64).sum(axis=0)
    known = {
        "batch": whole[WHOLE_COLUMNS.index("batch")] * batch, "nodes": len(graph), "edges": graph.edges.shape[1],
        "macs": totals[0], "parameters": totals[1], "memory_bytes": totals[2],
        "input_side": max(round(whole[WHOLE_COLUMNS.index("input_side")] * side), 1),
    }  # fmt: skip
    for name, value in known.items():
        whole[WHOLE_COLUMNS.index(name)] = value
    return whole
