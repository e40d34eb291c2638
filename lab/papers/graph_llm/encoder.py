"""Lab: chapter 7's graph encoder: a GIN, pre-trained as a masked autoencoder (GraphMAE, Hou et al., KDD 2022).

As in the thesis (section 7.4.2, Table 7.7): Hˡ = (A + ε I) MLP(Hˡ⁻¹), where the MLP has a batch norm; five layers; half
of the nodes are masked, a tenth of those by another node's features; the decoder is one such layer, and masked nodes
are hidden from it again; the scaled cosine error with the power 2. A goes both ways. Features of a node are its class,
the number format, the attributes of a convolution and its output shape, 49 numbers for the thesis' 44.

The mean over nodes (equation 7.5) does not know how many nodes there are. `sizes` are what NNLQP adds to it: logarithms
of batch size, nodes, edges, MACs, parameters and memory.
"""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from foretell.optional import require
from lab.papers.graph_networks.arrays import CLASSED_ONE_HOT, CLASSED_WIDTH, WHOLE_COLUMNS, GraphArrays

torch = require("torch", extra="torch", purpose="Fitting graph networks")
Module: Any = torch.nn.Module
Tensor = Any

SIZES = ("batch", "nodes", "edges", "macs", "parameters", "memory_bytes")
_SIZE_COLUMNS = [WHOLE_COLUMNS.index(name) for name in SIZES]
_MASKED, _REPLACED, _POWER = 0.5, 0.1, 2
_LOG_SCALE = 4.0  # logarithms of shapes are then as large as one-hot columns
_SIZE_MIDDLE = np.array([2.0, 5.0, 5.0, 22.0, 16.0, 19.0], np.float32)
_SIZE_SPREAD = np.array([2.0, 1.5, 1.5, 3.0, 2.0, 2.5], np.float32)


@dataclass(frozen=True)
class Graphs:
    """Several graphs as one: node features, edges both ways, the graph of each node, and sizes of each graph."""

    nodes: Tensor
    edges: Tensor
    owner: Tensor
    sizes: Tensor

    @property
    def count(self) -> int:
        """How many graphs there are."""
        return len(self.sizes)


def features(graph: GraphArrays) -> NDArray[np.float32]:
    """The features of the nodes: one-hot columns, then logarithms."""
    found = graph.classed_nodes.copy()
    found[:, CLASSED_ONE_HOT:] = np.log1p(np.maximum(found[:, CLASSED_ONE_HOT:], 0)) / _LOG_SCALE
    return found


def sizes(graph: GraphArrays) -> NDArray[np.float32]:
    """Standardised logarithms of the whole graph's sizes."""
    logs = np.log1p(np.maximum(graph.whole[_SIZE_COLUMNS], 0)).astype(np.float32)
    return np.asarray((logs - _SIZE_MIDDLE) / _SIZE_SPREAD, np.float32)


# by the id of a graph, which is kept so that no other gets it: a fit draws each many times
_made: dict[int, tuple[GraphArrays, NDArray[np.float32], NDArray[np.float32]]] = {}


def _of(graph: GraphArrays) -> tuple[GraphArrays, NDArray[np.float32], NDArray[np.float32]]:
    if id(graph) not in _made:
        _made[id(graph)] = graph, features(graph), sizes(graph)
    return _made[id(graph)]


def stack(graphs: Sequence[GraphArrays], device: str) -> Graphs:
    """Some graphs as one, on a device; their features are made once."""
    counts = np.array([len(graph) for graph in graphs])
    starts = np.cumsum(counts) - counts
    edges = np.concatenate([graph.edges + start for graph, start in zip(graphs, starts, strict=True)], axis=1)
    edges = np.concatenate([edges, edges[::-1]], axis=1)
    return Graphs(
        torch.tensor(np.concatenate([_of(graph)[1] for graph in graphs]), device=device),
        torch.tensor(edges, device=device),
        torch.tensor(np.repeat(np.arange(len(graphs)), counts), device=device),
        torch.tensor(np.stack([_of(graph)[2] for graph in graphs]), device=device),
    )


class GinLayer(Module):  # type: ignore[misc, unused-ignore]
    """(A + ε I) MLP(H)."""

    def __init__(self, inputs: int, width: int) -> None:
        super().__init__()
        parts = (torch.nn.Linear(inputs, width), torch.nn.BatchNorm1d(width), torch.nn.ReLU())
        self.mlp = torch.nn.Sequential(*parts, torch.nn.Linear(width, width))
        self.own = torch.nn.Parameter(torch.ones(1))

    def forward(self, nodes: Tensor, edges: Tensor) -> Tensor:
        """What a node gathers from its neighbours and itself."""
        made = self.mlp(nodes)
        return (self.own * made).index_add(0, edges[1], made[edges[0]])


class GinEncoder(Module):  # type: ignore[misc, unused-ignore]
    """Layers of GIN, and the mean over nodes."""

    def __init__(self, width: int, layers: int) -> None:
        super().__init__()
        widths = (CLASSED_WIDTH, *(width,) * layers)
        self.width = width
        self.layers = torch.nn.ModuleList([GinLayer(*pair) for pair in itertools.pairwise(widths)])
        self.activations = torch.nn.ModuleList([torch.nn.PReLU() for _ in range(layers)])
        # neighbours are summed: without a norm their number would be most of what the next layer sees
        self.norms = torch.nn.ModuleList([torch.nn.BatchNorm1d(width) for _ in range(layers)])

    def forward(self, nodes: Tensor, edges: Tensor) -> Tensor:
        """The embedding of each node."""
        for layer, norm, activation in zip(self.layers, self.norms, self.activations, strict=True):
            nodes = activation(norm(layer(nodes, edges)))
        return nodes

    def pooled(self, graphs: Graphs) -> Tensor:
        """The embedding of each graph: the mean of its nodes' (7.5)."""
        found = self(graphs.nodes, graphs.edges)
        sums = torch.zeros(graphs.count, self.width, device=found.device, dtype=found.dtype)
        counts = torch.bincount(graphs.owner, minlength=graphs.count).clamp(min=1)
        return sums.index_add(0, graphs.owner, found) / counts[:, None]


class MaskedAutoencoder(Module):  # type: ignore[misc, unused-ignore]
    """GraphMAE around an encoder."""

    def __init__(self, encoder: GinEncoder) -> None:
        super().__init__()
        self.encoder = encoder
        self.mask = torch.nn.Parameter(torch.zeros(CLASSED_WIDTH))
        self.between = torch.nn.Linear(encoder.width, encoder.width, bias=False)
        self.decoder = GinLayer(encoder.width, encoder.width)
        self.out = torch.nn.Linear(encoder.width, CLASSED_WIDTH)

    def forward(self, graphs: Graphs, generator: Any = None) -> Tensor:
        """The scaled cosine error of the masked nodes."""
        count = len(graphs.nodes)
        order = torch.randperm(count, generator=generator).to(graphs.nodes.device)
        masked = order[: max(round(_MASKED * count), 1)]
        replaced = masked[: round(_REPLACED * len(masked))]
        nodes = graphs.nodes.clone()
        nodes[masked] = self.mask
        nodes[replaced] = graphs.nodes[order.flip(0)[: len(replaced)]]
        hidden = self.between(self.encoder(nodes, graphs.edges))
        hidden = hidden.index_fill(0, masked, 0.0)
        told = self.out(self.decoder(hidden, graphs.edges))[masked]
        alike = torch.nn.functional.cosine_similarity(told, graphs.nodes[masked], dim=-1)
        return (1 - alike).pow(_POWER).mean()
