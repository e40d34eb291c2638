"""Lab: graph networks on torch: the operations of their forward pass, and graphs on a device.

Only fitting imports this module; a fitted network is served without torch.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from foretell.optional import require
from lab.papers.graph_networks.arrays import GraphArrays
from lab.papers.graph_networks.forward import Inputs
from lab.papers.graph_networks.merging import rows_of
from lab.papers.graph_networks.onnx_model import BATCH_NORM_EPSILON, SHORTEST_ROW
from lab.papers.graph_networks.recipes import Recipe, whole_matrix
from lab.papers.graph_networks.weights import Weights, is_learned

torch = require("torch", extra="torch", purpose="Fitting graph networks")
torch.backends.cuda.matmul.allow_tf32 = True  # a third of the time, and rounding errors far below the errors of a fit
functional = torch.nn.functional

Tensor = Any
Tensors = dict[str, Any]
# nodes whose activations fit into memory together; a larger batch is done in parts
MAX_NODES = {"cpu": 16_384, "cuda": 131_072}


def to_tensors(weights: Weights, device: str) -> Tensors:
    """Weights on a device; the learned ones require gradients."""
    tensors = {name: torch.tensor(value, device=device) for name, value in weights.items()}
    for name, tensor in tensors.items():
        tensor.requires_grad_(is_learned(name))
    return tensors


def to_arrays(tensors: Tensors) -> Weights:
    """Weights as numpy arrays."""
    return {name: tensor.detach().cpu().numpy().copy() for name, tensor in tensors.items()}


@dataclass(frozen=True)
class Routes:
    """Edges sorted by target and by source: the other ends, and where the edges of each node begin."""

    into: tuple[Tensor, Tensor]
    back: tuple[Tensor, Tensor]

    @classmethod
    def of(cls, source: Tensor, target: Tensor, nodes: int) -> "Routes":
        """Sort the edges between some nodes."""
        return cls(_by_end(source, target, nodes), _by_end(target, source, nodes))


def _by_end(other: Tensor, end: Tensor, nodes: int) -> tuple[Tensor, Tensor]:
    counts = end.new_zeros(nodes + 1).index_add_(0, end + 1, torch.ones_like(end))
    return other[torch.argsort(end, stable=True)], torch.cumsum(counts, 0)


def _bags(x: Tensor, bags: tuple[Tensor, Tensor]) -> Tensor:
    """The sum of some rows for each bag.

    ``embedding_bag`` gathers and adds in one pass over memory, where a gather and a scatter would take three.
    """
    numbers, starts = bags
    if not len(numbers):
        return torch.zeros_like(x)
    return functional.embedding_bag(numbers, x, starts, mode="sum", include_last_offset=True)


class _Neighbours(torch.autograd.Function):  # type: ignore[misc, name-defined]
    """Sums over incoming edges; the gradient is the sum over outgoing edges."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, routes: Routes) -> Tensor:
        ctx.routes = routes
        return _bags(x.contiguous(), routes.into)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        return _bags(gradient.contiguous(), ctx.routes.back), None


class _UnitRows(torch.autograd.Function):  # type: ignore[misc, name-defined]
    """y = x / |x|; dx = (dy − y (y · dy)) / |x|: half the passes over memory that autograd would take."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        lengths = torch.linalg.vector_norm(x, dim=1, keepdim=True).clamp(min=SHORTEST_ROW)
        y = x / lengths
        ctx.save_for_backward(y, lengths)
        return y

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        y, lengths = ctx.saved_tensors
        along = torch.linalg.vecdot(gradient, y).unsqueeze(1)
        # a row of zeros has no direction, so no gradient
        shrink = torch.where(lengths > SHORTEST_ROW, 1 / lengths, 0)
        return torch.addcmul(gradient, y, along, value=-1) * shrink


@dataclass(frozen=True)
class TorchOperations:
    """The operations of a forward pass on tensors.

    While fitting, ``dropping`` is true, and ``momentum`` is that of the running statistics of batch norms; where it is
    None they stay. With ``narrow_nodes``, nodes are computed in bfloat16; sums over a graph and all that follows are
    not. ``real`` says which rows are no padding: batch norms count those alone.
    """

    weights: Tensors
    dropping: bool = False
    momentum: float | None = None
    narrow_nodes: bool = False
    real: Tensor | None = None
    _constants: dict[bytes, Tensor] = field(default_factory=dict)

    def weight(self, name: str) -> Tensor:
        """A weight by its name."""
        return self.weights[name]

    def constant(self, value: NDArray[np.float32]) -> Tensor:
        """An array on the device of the weights; sent there once, because a captured step cannot send anything."""
        key = f"{value.shape}".encode() + value.tobytes()
        if key not in self._constants:
            self._constants[key] = torch.from_numpy(value).to(next(iter(self.weights.values())).device)
        return self._constants[key]

    def narrow(self, x: Tensor) -> Tensor:
        """x in the precision in which nodes are computed."""
        return x.to(torch.bfloat16) if self.narrow_nodes else x

    def cast_like(self, x: Tensor, other: Tensor) -> Tensor:
        """x in the precision of another tensor."""
        return x.to(other.dtype)

    def relu(self, x: Tensor, slope: float = 0.0) -> Tensor:
        """x, or slope × x below 0."""
        return functional.leaky_relu(x, slope) if slope else torch.relu(x)

    def exp(self, x: Tensor) -> Tensor:
        """e to the x."""
        return torch.exp(x)

    def log(self, x: Tensor) -> Tensor:
        """The natural logarithm."""
        return torch.log(x)

    def softplus(self, x: Tensor) -> Tensor:
        """log(1 + exp(x))."""
        return functional.softplus(x)

    def absolute(self, x: Tensor) -> Tensor:
        """|x|."""
        return torch.abs(x)

    def sign(self, x: Tensor) -> Tensor:
        """−1, 0 or 1."""
        return torch.sign(x)

    def clip_min(self, x: Tensor, minimum: float) -> Tensor:
        """The larger of x and a number."""
        return torch.clamp(x, min=minimum)

    def concat(self, parts: Sequence[Tensor], axis: int) -> Tensor:
        """Parts side by side (1) or one after the other (0)."""
        return torch.cat(list(parts), axis)

    def edge_ends(self, edges: Tensor) -> tuple[Tensor, Tensor]:
        """The makers and the readers of all edges."""
        return edges[0], edges[1]

    def rows(self, x: Tensor, index: Tensor) -> Tensor:
        """Rows selected by number."""
        return x.index_select(0, index)

    def sum_into(self, x: Tensor, index: Tensor, like: Tensor) -> Tensor:
        """The sum of the rows with each number."""
        # `index_add_` adds up repeated numbers; assignment would keep one
        return x.new_zeros(like.shape[0], x.shape[1]).index_add_(0, index, x)

    def count_into(self, index: Tensor, like: Tensor) -> Tensor:
        """How often each number occurs."""
        return self.sum_into(like.new_ones(index.shape[0], 1), index, like)

    def max_into(self, x: Tensor, index: Tensor, start: Tensor) -> Tensor:
        """The largest of ``start`` and the rows with each number."""
        with torch.no_grad():
            # it only shifts the exponents of a softmax, which does not change the result: no gradient is needed
            return start.scatter_reduce(0, index.unsqueeze(1).expand_as(x), x, "amax")

    def routes(self, source: Tensor, target: Tensor, like: Tensor) -> "Routes":
        """Edges sorted both ways."""
        return Routes.of(source, target, like.shape[0])

    def neighbours(self, x: Tensor, routes: "Routes") -> Tensor:
        """For every node the sum of the rows that reach it."""
        return _Neighbours.apply(x, routes)

    def affine(self, x: Tensor, weight: Tensor, addend: Tensor) -> Tensor:
        """x · W + a row or a matrix."""
        return torch.addmm(addend, x, weight)

    def unit_rows(self, x: Tensor) -> Tensor:
        """Rows scaled to the Euclidean length 1; rows of zeros stay, and have no gradient."""
        return _UnitRows.apply(x)

    def layer_norm(self, x: Tensor, name: str) -> Tensor:
        """Rows of mean 0 and deviation 1, then scaled and shifted."""
        gain, bias = (self.cast_like(self.weights[f"{name}.{part}"], x) for part in ("gain", "bias"))
        return functional.layer_norm(x, x.shape[1:], gain, bias)

    def batch_norm(self, x: Tensor, name: str) -> Tensor:
        """Columns of mean 0 and deviation 1, then scaled and shifted."""
        parts = [self.weights[f"{name}.{part}"] for part in ("mean", "variance", "gain", "bias")]
        if self.momentum is not None and self.real is not None:
            return _norm_of_real_rows(x, self.real, parts, self.momentum)
        updates_statistics = self.momentum is not None
        return functional.batch_norm(x, *parts, updates_statistics, self.momentum or 0.0, BATCH_NORM_EPSILON)

    def dropout(self, x: Tensor, share: float, /) -> Tensor:
        """While fitting, zeros for a share of the values."""
        return functional.dropout(x, share) if self.dropping else x


def _norm_of_real_rows(x: Tensor, real: Tensor, parts: Sequence[Tensor], momentum: float) -> Tensor:
    """A batch norm whose statistics are those of some rows; all rows are normalised."""
    running_mean, running_variance, gain, bias = parts
    wide, counted = x.float(), real.unsqueeze(1)
    count = counted.sum()
    mean = torch.where(counted, wide, 0.0).sum(dim=0) / count
    variance = torch.where(counted, (wide - mean) ** 2, 0.0).sum(dim=0) / count
    with torch.no_grad():
        running_mean.lerp_(mean, momentum)
        running_variance.lerp_(variance * (count / (count - 1)), momentum)  # as torch keeps it: without bias
    return ((wide - mean) * torch.rsqrt(variance + BATCH_NORM_EPSILON) * gain + bias).to(x.dtype)


@dataclass(frozen=True)
class DeviceGraphs:
    """Many graphs on a device; a batch of them is selected there, by number."""

    nodes: Tensor
    edges: Tensor  # numbered within each graph
    whole: Tensor
    counts: Tensor | None
    node_counts: NDArray[np.int64]
    edge_counts: NDArray[np.int64]

    @classmethod
    def place(
        cls, graphs: Sequence[GraphArrays], recipe: Recipe, device: str, *, merged: bool = False
    ) -> "DeviceGraphs":
        """Put graphs on a device, in the layout of a recipe; equal nodes may be merged."""
        rows = rows_of(graphs, recipe, merged=merged)
        return cls(
            torch.from_numpy(rows.nodes).to(device),
            torch.from_numpy(rows.edges).to(device),
            torch.from_numpy(whole_matrix(graphs, recipe)).to(device),
            None if rows.counts is None else torch.from_numpy(rows.counts).to(device).unsqueeze(1),
            rows.node_counts,
            rows.edge_counts,
        )

    def __len__(self) -> int:
        return len(self.node_counts)

    def pick(self, numbers: NDArray[np.int64], embedding: Tensor | None = None) -> Inputs:
        """Graphs by number, stacked into one without edges between them."""
        device = self.nodes.device
        nodes, graph_index = _ranges(self.node_counts, numbers, device)
        edges, _ = _ranges(self.edge_counts, numbers, device)
        # edges are numbered within each graph: shift them by the nodes before
        starts = np.cumsum(self.node_counts[numbers]) - self.node_counts[numbers]
        offsets = _repeat(starts, self.edge_counts[numbers], device)
        chosen = torch.from_numpy(numbers).to(device)
        return Inputs(
            self.nodes.index_select(0, nodes),
            self.edges.index_select(1, edges) + offsets,
            graph_index,
            self.whole.index_select(0, chosen),
            None if embedding is None else embedding.index_select(0, chosen),
            None if self.counts is None else self.counts.index_select(0, nodes),
        )

    def parts(self, numbers: NDArray[np.int64]) -> Iterator[NDArray[np.int64]]:
        """The numbers in parts that fit into memory; a graph that is too large is a part of its own."""
        most = MAX_NODES["cuda" if self.nodes.is_cuda else "cpu"]
        filled, start = 0, 0
        for place, count in enumerate(self.node_counts[numbers]):
            if filled and filled + count > most:
                yield numbers[start:place]
                filled, start = 0, place
            filled += int(count)
        if start < len(numbers):
            yield numbers[start:]


def _repeat(values: NDArray[np.int64], counts: NDArray[np.int64], device: Any) -> Tensor:
    # with the length known, torch need not wait for the device
    return torch.repeat_interleave(
        torch.from_numpy(values).to(device), torch.from_numpy(counts).to(device), output_size=int(counts.sum())
    )


def _ranges(counts: NDArray[np.int64], numbers: NDArray[np.int64], device: Any) -> tuple[Tensor, Tensor]:
    """The positions of the rows of some graphs among all rows, and the graph of each."""
    starts, chosen = np.cumsum(counts) - counts, counts[numbers]
    shift = _repeat(starts[numbers] - (np.cumsum(chosen) - chosen), chosen, device)
    graph_index = _repeat(np.arange(len(numbers), dtype=np.int64), chosen, device)
    return shift + torch.arange(len(shift), device=device), graph_index
