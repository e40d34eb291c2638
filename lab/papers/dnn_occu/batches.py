"""Lab: graphs on a device: the steps between their nodes, and graphs of similar size padded to one batch.

Putting a batch together takes longer than learning from it: thousands of small copies. So batches are made once, in
several shuffles, stay on the device, and each epoch takes one of the shuffles.
"""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lab.papers.dnn_occu.graphs import FARTHEST, MOST_LINKS, OccupancyGraph
from lab.papers.dnn_occu.networks import Batch, torch

# pairs of nodes in a batch; a GPU has room for the attention of more of them
_MOST_PAIRS = {"cpu": 4_000_000, "cuda": 24_000_000}
Part = NDArray[np.intp]


def steps_between(count: int, edges: Any) -> Any:
    """The length of the shortest way between each two nodes, whatever the direction of its edges.

    One product of matrices for every step: on a GPU that takes no time.

    >>> steps_between(3, torch.tensor([[0, 1], [1, 2]])).tolist()
    [[0, 1, 2], [1, 0, 1], [2, 1, 0]]
    """
    near = torch.eye(count, device=edges.device)
    near[edges[0], edges[1]] = near[edges[1], edges[0]] = 1.0
    steps = torch.full((count, count), FARTHEST, dtype=torch.uint8, device=edges.device)
    reached = torch.eye(count, device=edges.device)
    for distance in range(FARTHEST):
        new = (reached > 0) & (steps == FARTHEST)
        if not new.any():
            break
        steps[new] = distance
        reached = ((reached @ near) > 0).float()
    return steps


class PlacedGraphs:
    """Graphs whose arrays lie on a device, with their inputs scaled."""

    def __init__(
        self,
        graphs: Sequence[OccupancyGraph],
        middle: NDArray[np.float32],
        spread: NDArray[np.float32],
        device: str,
        *,
        has_steps: bool = True,
        has_pairs: bool = True,
    ) -> None:
        self._has_pairs = has_pairs
        self._lengths = [len(graph) for graph in graphs]
        self._nodes = [torch.from_numpy((graph.nodes - middle) / spread).to(device) for graph in graphs]
        self._edges = [torch.from_numpy(graph.edges).to(device) for graph in graphs]
        self._edge_features = [torch.from_numpy(graph.edge_features).to(device) for graph in graphs]
        every = zip(self._lengths, self._edges, strict=True)
        self._steps = [steps_between(length, edges) for length, edges in every] if has_steps else []
        self._counts = [
            torch.ones(len(graph), device=device) if graph.counts is None else torch.from_numpy(graph.counts).to(device)
            for graph in graphs
        ]
        self._device = device

    def batch(self, places: Part) -> Batch:
        """Some graphs, padded to the largest of them."""
        most = max(self._lengths[place] for place in places.tolist())
        shape = (len(places), most)
        nodes = torch.zeros((*shape, self._nodes[0].shape[1]), device=self._device)
        is_node = torch.zeros(shape, dtype=torch.bool, device=self._device)
        links = torch.zeros(shape, dtype=torch.long, device=self._device)
        steps = torch.zeros((*shape, most), dtype=torch.uint8, device=self._device) if self._steps else None
        counts = torch.zeros(shape, device=self._device)
        edges = list[Any]()
        for row, place in enumerate(places.tolist()):
            count, own = self._lengths[place], self._edges[place]
            nodes[row, :count], is_node[row, :count] = self._nodes[place], True
            links[row, :count] = torch.bincount(own.flatten(), minlength=count).clamp(max=MOST_LINKS)
            counts[row, :count] = self._counts[place]
            if steps is not None:
                steps[row, :count, :count] = self._steps[place]
            edges.append(own + row * most)
        features = torch.cat([self._edge_features[place] for place in places.tolist()])
        return Batch(nodes, is_node, links, steps, torch.cat(edges, dim=1), features, counts)

    def batches(self, size: int, order: Part | None = None) -> list[tuple[Any, Batch]]:
        """All graphs in batches, each with the places of its graphs; ``order`` shuffles what is of one size."""
        most_pairs = _MOST_PAIRS[self._device] if self._has_pairs else math.inf
        return [
            (torch.from_numpy(part).to(self._device), self.batch(part))
            for part in parts(self._lengths, size, order, most_pairs)
        ]


def parts(lengths: Sequence[int], size: int, order: Part | None = None, most_pairs: float = 4_000_000) -> list[Part]:
    """Places of graphs of similar size, so that little is padded.

    A part has at most ``size`` graphs, and fewer where they are large: attention takes their nodes squared. A network
    that reads one node after the other takes as many steps for one graph as for ``size``.
    """
    shuffled = np.arange(len(lengths)) if order is None else order
    own = np.array(lengths)[shuffled]
    by_size = shuffled[np.argsort((2 * np.log2(own)).round(), kind="stable")]
    found, part, most = list[Part](), list[int](), 0
    for place in by_size.tolist():
        longest = max(most, lengths[place])
        if part and (len(part) == size or (len(part) + 1) * longest**2 > most_pairs):
            found.append(np.array(part))
            part, longest = [], lengths[place]
        part.append(place)
        most = longest
    return [*found, np.array(part)]
