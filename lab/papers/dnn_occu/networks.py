"""Lab: DNN-occu and its baselines as torch modules; each takes a padded batch and gives one number a graph.

DNN-occu: one ANEE layer (Y. Gao et al., DNNPerf, ICSE-SEIP 2023), two Graphormer layers (C. Ying et al., NeurIPS 2021),
and a Set Transformer decoder (J. Lee et al., ICML 2019), 256 wide. Baselines with the sizes of the paper: an MLP of 80,
512, 512 and 256; an LSTM of two layers of 256; a transformer encoder of three layers with four heads and 512; DNNPerf
with three ANEE layers; BRP-NAS.

Where the paper is silent: Graphormer's layers have the biases of its own paper (links of a node, steps between nodes);
the decoder has one seed vector and two set attention blocks; four heads everywhere. A batch of graphs is padded, and
padding takes part in nothing.
"""

from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from foretell.optional import require
from lab.papers.dnn_occu.graphs import FARTHEST, MOST_LINKS
from lab.papers.graph_networks.arrays import OPERATOR_COLUMNS

torch: Any = require("torch", extra="train", purpose="Networks of papers")
nn = torch.nn
Module: Any = nn.Module
# the fast path of inference takes what is added to scores for flags
torch.backends.mha.set_fastpath_enabled(False)
HEADS = 4


@dataclass(frozen=True)
class Batch:
    """Graphs of one size: ``is_node`` flags what is no padding, ``counts`` is how many equal nodes each stands for."""

    nodes: Any  # (graphs, most, features)
    is_node: Any  # (graphs, most)
    links: Any  # (graphs, most)
    steps: Any  # (graphs, most, most); None where no network asks for it
    edges: Any  # (2, edges): positions in graphs × most
    edge_features: Any  # (edges, features)
    counts: Any  # (graphs, most); 0 where nothing is


class Anee(Module):  # type: ignore[misc]
    """The attention-based encoder of nodes and edges: edges from their ends, nodes from edges that reach them."""

    def __init__(self, nodes: int, edges: int, width: int) -> None:
        super().__init__()
        self.of_node = nn.Linear(nodes, width, bias=False)
        self.of_edge = nn.Linear(edges, width, bias=False)
        self.attention = nn.Linear(2 * width, 1, bias=False)
        self.message = nn.Linear(width, width, bias=False)

    def forward(self, nodes: Any, edges: Any, edge_features: Any) -> tuple[Any, Any]:
        """New states of nodes (in one long row) and of edges."""
        state = nn.functional.leaky_relu(self.of_node(nodes))
        start, end = state[edges[0]], state[edges[1]]
        new_edges = torch.sigmoid(self.attention(torch.cat([start, end], dim=1)) * self.of_edge(edge_features))
        messages = torch.softmax(self.message(new_edges), dim=1) * start
        # the paper sums over neighbours alone; a node without any keeps its own state
        gathered = state.new_zeros(state.shape).index_add(0, edges[1], messages)
        return nn.functional.leaky_relu(gathered + state), new_edges


class GraphormerLayer(Module):  # type: ignore[misc]
    """Pre-normalised self-attention with a bias for the steps between two nodes, then a feed-forward network."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.first, self.second = nn.LayerNorm(width), nn.LayerNorm(width)
        self.into, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.feed = nn.Sequential(nn.Linear(width, width), nn.GELU(), nn.Linear(width, width))

    def forward(self, state: Any, bias: Any) -> Any:
        """``bias`` has a row for each head; padding is minus infinity there."""
        graphs, most, width = state.shape
        parts = self.into(self.first(state)).view(graphs, most, 3, HEADS, width // HEADS).permute(2, 0, 3, 1, 4)
        mixed = nn.functional.scaled_dot_product_attention(parts[0], parts[1], parts[2], attn_mask=bias)
        state = state + self.out(mixed.transpose(1, 2).reshape(graphs, most, width))
        return state + self.feed(self.second(state))


class AttentionBlock(Module):  # type: ignore[misc]
    """The MAB of the Set Transformer: attention to a second set, with normalisations after each sum."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(width, HEADS, batch_first=True)
        self.first, self.second = nn.LayerNorm(width), nn.LayerNorm(width)
        self.feed = nn.Sequential(nn.Linear(width, width), nn.ReLU(), nn.Linear(width, width))

    def forward(self, state: Any, other: Any, is_padding: Any = None) -> Any:
        """The first set, having looked at the second."""
        mixed, _ = self.attention(state, other, other, key_padding_mask=is_padding, need_weights=False)
        state = self.first(state + mixed)
        return self.second(state + self.feed(state))


class DnnOccu(Module):  # type: ignore[misc]
    """The network of the paper."""

    def __init__(self, nodes: int, edges: int, width: int = 256) -> None:
        super().__init__()
        self.anee = Anee(nodes, edges, width)
        self.links = nn.Embedding(MOST_LINKS + 1, width)
        self.steps = nn.Embedding(FARTHEST + 1, HEADS)
        self.layers = nn.ModuleList([GraphormerLayer(width) for _ in range(2)])
        self.seed = nn.Parameter(torch.randn(1, 1, width) * 0.02)
        self.before = nn.Sequential(nn.Linear(width, width), nn.ReLU(), nn.Linear(width, width))
        self.pool = AttentionBlock(width)
        self.sets = nn.ModuleList([AttentionBlock(width) for _ in range(2)])
        self.leave = nn.Sequential(nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 1))

    def forward(self, batch: Batch) -> Any:
        """One number for each graph."""
        graphs, most, _ = batch.nodes.shape
        rows, _ = self.anee(batch.nodes.flatten(0, 1), batch.edges, batch.edge_features)
        state = rows.view(graphs, most, -1) + self.links(batch.links)
        # a product with indicators: the gradient of a lookup among nine rows would sort a hundred million indices
        is_step = batch.steps[..., None] == torch.arange(FARTHEST + 1, device=batch.steps.device, dtype=torch.uint8)
        bias = (is_step.to(state.dtype) @ self.steps.weight).permute(0, 3, 1, 2)
        bias = bias.masked_fill(~batch.is_node[:, None, None, :], float("-inf"))
        for layer in self.layers:
            state = layer(state, bias)
        pooled = self.pool(self.seed.expand(graphs, -1, -1), self.before(state), ~batch.is_node)
        for block in self.sets:
            pooled = block(pooled, pooled)
        return self.leave(pooled)[:, 0, 0]


class DnnPerf(Module):  # type: ignore[misc]
    """Three ANEE layers, the sum and the mean over nodes, and a small network."""

    def __init__(self, nodes: int, edges: int, width: int = 256) -> None:
        super().__init__()
        sizes = ((nodes, edges), (width, width), (width, width))
        self.layers = nn.ModuleList([Anee(inputs, others, width) for inputs, others in sizes])
        self.leave = nn.Sequential(nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 1))

    def forward(self, batch: Batch) -> Any:
        """One number for each graph."""
        state, edges = batch.nodes.flatten(0, 1), batch.edge_features
        for layer in self.layers:
            state, edges = layer(state, batch.edges, edges)
        return self.leave(_mean(state.view(*batch.is_node.shape, -1), batch.counts))[:, 0]


class Mlp(Module):  # type: ignore[misc]
    """The mean over the features of nodes, then layers of 80, 512, 512 and 256."""

    def __init__(self, nodes: int, edges: int) -> None:
        super().__init__()
        del edges  # it reads nodes alone, and so do the next two
        sizes, layers = (nodes, 80, 512, 512, 256), list[Any]()
        for inputs, outputs in pairwise(sizes):
            layers += [nn.Linear(inputs, outputs), nn.ReLU()]
        self.layers = nn.Sequential(*layers, nn.Linear(sizes[-1], 1))

    def forward(self, batch: Batch) -> Any:
        """One number for each graph."""
        return self.layers(_mean(batch.nodes, batch.counts))[:, 0]


class Lstm(Module):  # type: ignore[misc]
    """Two layers of 256 over the nodes in the order in which they run; the last state is the graph."""

    def __init__(self, nodes: int, edges: int, width: int = 256) -> None:
        super().__init__()
        del edges
        self.lstm = nn.LSTM(nodes, width, 2, batch_first=True)
        self.leave = nn.Linear(width, 1)

    def forward(self, batch: Batch) -> Any:
        """One number for each graph."""
        # packed sequences give the same numbers, and their backward pass takes steps squared on a processor
        states, _ = self.lstm(batch.nodes)
        last = batch.is_node.sum(1) - 1
        return self.leave(states[torch.arange(len(last), device=last.device), last])[:, 0]


class Transformer(Module):  # type: ignore[misc]
    """Three encoder layers with four heads and 512 over the nodes, then their mean."""

    def __init__(self, nodes: int, edges: int, width: int = 128) -> None:
        super().__init__()
        del edges
        self.enter = nn.Linear(nodes, width)
        layer = nn.TransformerEncoderLayer(width, HEADS, 512, dropout=0.0, batch_first=True)
        self.layers = nn.TransformerEncoder(layer, 3, enable_nested_tensor=False)
        self.leave = nn.Linear(width, 1)

    def forward(self, batch: Batch) -> Any:
        """One number for each graph."""
        # added to every score: n equal nodes get n times the attention of one, and padding gets none
        state = self.layers(self.enter(batch.nodes), src_key_padding_mask=torch.log(batch.counts))
        return self.leave(_mean(state, batch.counts))[:, 0]


class BrpNas(Module):  # type: ignore[misc]
    """BRP-NAS (Dudziak et al., 2020): four graph convolutions of 600 over the operators alone, then their mean.

    A node takes the mean over itself and the nodes that reach it. As published, it knows no size, so no batch either.
    """

    def __init__(self, nodes: int, edges: int, width: int = 600) -> None:
        super().__init__()
        del edges
        self.operators = min(nodes, len(OPERATOR_COLUMNS))
        sizes = (self.operators, *(width,) * 4)
        self.layers = nn.ModuleList([nn.Linear(inputs, outputs) for inputs, outputs in pairwise(sizes)])
        self.leave = nn.Linear(width, 1)

    def forward(self, batch: Batch) -> Any:
        """One number for each graph."""
        state = batch.nodes[..., : self.operators].flatten(0, 1)
        start, end = batch.edges
        reached = 1.0 + torch.bincount(end, minlength=len(state)).to(state.dtype)[:, None]
        for layer in self.layers:
            state = torch.relu(layer(state.index_add(0, end, state[start]) / reached))
        return self.leave(_mean(state.view(*batch.is_node.shape, -1), batch.counts))[:, 0]


def _mean(state: Any, counts: Any) -> Any:
    weights = counts[..., None].to(state.dtype)
    return (state * weights).sum(1) / weights.sum(1)


NETWORKS = {
    "dnn-occu": DnnOccu, "dnnperf": DnnPerf, "transformer": Transformer, "lstm": Lstm, "mlp": Mlp, "brp-nas": BrpNas,
}  # fmt: skip
# how many layers deep a network looks at the sources of a node; equal nodes are merged where it sees nothing else
LOOKS_AT_SOURCES = {"dnnperf": 3, "transformer": 0, "mlp": 0, "brp-nas": 4}
