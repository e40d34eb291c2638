"""Lab: training steps of fixed shape: batches are padded to a few sizes, so that a GPU can replay a captured step.

A step of a graph network launches some three hundred small kernels, and the host needs longer to launch them than the
device to run them. With fixed shapes the whole step (forward, backward, optimizer) is captured once for each size and
then replayed. The indices of a batch are made by numpy.

Padding changes nothing: rows beyond the batch belong to a graph of their own whose loss is masked, and count 0 times.
The last row speaks to the one before it, along all edges beyond the batch, and hears nothing: nothing can grow.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lab.papers.graph_networks.forward import Flow, Inputs
from lab.papers.graph_networks.recipes import Recipe
from lab.papers.graph_networks.tensors import DeviceGraphs, Routes, Tensor, torch

_GROWTH = 1.25  # between one size of a batch and the next: a fifth of the rows are padding at most
_LEAST = 64
_WARM_UP = 2
_SENT_AT_ONCE = 16  # batches


@dataclass(frozen=True)
class Size:
    """The rows, edges and graphs of a padded batch."""

    nodes: int
    edges: int
    graphs: int

    @property
    def places(self) -> int:
        """How many indices describe such a batch."""
        return 2 * self.nodes + 3 * self.edges + 2 * (self.nodes + 1) + self.graphs + 1


def padded(count: int) -> int:
    """The next size that holds a number of rows.

    >>> padded(3), padded(64), padded(65), padded(1000)
    (64, 64, 80, 1168)
    """
    if count <= _LEAST:
        return _LEAST
    step = math.ceil(math.log(count / _LEAST) / math.log(_GROWTH) - 1e-9)
    size = math.ceil(_LEAST * _GROWTH**step / 8) * 8
    return size if size >= count else size + 8


class FixedBatches:
    """The batches of some graphs as indices of fixed length, and as inputs made from such indices.

    The graphs must have been merged, or their recipe be ``forward``: edges are taken as who speaks and who hears.
    """

    def __init__(self, graphs: DeviceGraphs, embedding: Tensor | None, logs: Tensor) -> None:
        nodes, edges = graphs.node_counts, graphs.edges.cpu().numpy()
        self._node_counts, self._edge_counts = nodes, graphs.edge_counts
        self._node_starts, self._edge_starts = (
            np.cumsum(nodes) - nodes,
            np.cumsum(self._edge_counts) - graphs.edge_counts,
        )
        rows = edges + np.repeat(self._node_starts, self._edge_counts)
        total = int(nodes.sum())
        # graphs are one after the other, so that sorting all edges sorts those of each graph
        by_target, by_source = (np.argsort(end, kind="stable") for end in (rows[1], rows[0]))
        self._into, self._target, self._back = edges[0][by_target], edges[1][by_target], edges[1][by_source]
        self._heard, self._spoken = (np.bincount(end, minlength=total) for end in (rows[1], rows[0]))
        self._nodes, self._whole, self._logs = (
            _with_row(graphs.nodes),
            _with_row(graphs.whole),
            _with_row(logs, math.nan),
        )
        device = graphs.nodes.device
        counts = graphs.counts if graphs.counts is not None else torch.ones(total, 1, device=device)
        self._counts = _with_row(counts)
        self._reached = _with_row(torch.from_numpy(self._heard.astype(np.float32)).to(device).unsqueeze(1))
        self._embedding = None if embedding is None else _with_row(embedding)

    def size_of(self, numbers: NDArray[np.int64], graphs: int) -> Size:
        """The size of a batch; two rows are left for padding."""
        nodes, edges = self._node_counts[numbers].sum(), self._edge_counts[numbers].sum()
        return Size(padded(int(nodes) + 2), padded(int(edges)), graphs)

    def indices(self, numbers: NDArray[np.int64], size: Size) -> NDArray[np.int64]:
        """A batch as one row of indices."""
        counts, edge_counts = self._node_counts[numbers], self._edge_counts[numbers]
        nodes, edges = _ranges(self._node_starts[numbers], counts), _ranges(self._edge_starts[numbers], edge_counts)
        offsets = np.repeat(np.cumsum(counts) - counts, edge_counts)
        n, e, last = len(nodes), len(edges), size.nodes - 1
        heard_starts = np.full(size.nodes + 1, e)
        heard_starts[1 : n + 1] = np.cumsum(self._heard[nodes])
        heard_starts[0], heard_starts[last:] = 0, size.edges
        spoken_starts = np.full(size.nodes + 1, e)
        spoken_starts[1 : n + 1] = np.cumsum(self._spoken[nodes])
        spoken_starts[0], spoken_starts[-1] = 0, size.edges
        return np.concatenate([
            _filled(nodes, size.nodes, len(self._heard)),
            _filled(np.repeat(np.arange(len(numbers)), counts), size.nodes, size.graphs),
            _filled(self._into[edges] + offsets, size.edges, last),
            _filled(self._target[edges] + offsets, size.edges, last - 1),
            _filled(self._back[edges] + offsets, size.edges, last - 1),
            heard_starts,
            spoken_starts,
            _filled(numbers, size.graphs + 1, len(self._node_counts)),
        ])  # fmt: skip

    def inputs(self, indices: Tensor, size: Size) -> tuple[Inputs, Tensor]:
        """The inputs that indices describe, and the logarithms of their truths; the last graph is padding."""
        lengths = (size.nodes,) * 2 + (size.edges,) * 3 + (size.nodes + 1,) * 2 + (size.graphs + 1,)
        nodes, graph_index, into, target, back, heard_starts, spoken_starts, graphs = torch.split(indices, lengths)
        routes = Routes((into, heard_starts), (back, spoken_starts))
        flow = Flow(into, target, self._reached.index_select(0, nodes), routes)
        inputs = Inputs(
            self._nodes.index_select(0, nodes),
            None,
            graph_index,
            self._whole.index_select(0, graphs),
            None if self._embedding is None else self._embedding.index_select(0, graphs),
            self._counts.index_select(0, nodes),
            flow,
        )
        return inputs, self._logs.index_select(0, graphs)


class FixedSteps:
    """Steps of an optimizer on padded batches, replayed where a GPU has captured them.

    ``loss`` gets inputs and logarithms of truths and returns the sum of the losses and the number of labels.
    """

    def __init__(self, batches: FixedBatches, loss: Any, optimizer: Any, recipe: Recipe, *, captured: bool) -> None:
        self._batches, self._loss, self._optimizer, self._recipe = batches, loss, optimizer, recipe
        self._learned = [tensor for group in optimizer.param_groups for tensor in group["params"]]
        self._device = self._learned[0].device
        self._captured, self._graphs, self._pool = captured, dict[Size, tuple[Tensor, Any]](), None
        self._total = torch.zeros((), device=self._device)

    def epoch(self, order: NDArray[np.int64]) -> float:
        """One step for each batch of an order; the sum of all losses."""
        count = self._recipe.batch
        parts = [order[begin : begin + count] for begin in range(0, len(order), count)]
        self._total.zero_()
        for size, indices in self._placed(parts, count):
            if not self._captured:
                self._step(indices, size)
                continue
            if size not in self._graphs:
                self._graphs[size] = self._capture(indices, size)
            buffer, graph = self._graphs[size]
            buffer.copy_(indices)
            graph.replay()
        return float(self._total)

    def _placed(self, parts: Sequence[NDArray[np.int64]], count: int) -> Iterator[tuple[Size, Tensor]]:
        """The size and the indices of each batch; while the device runs some batches, the next are made."""
        for begin in range(0, len(parts), _SENT_AT_ONCE):
            some = parts[begin : begin + _SENT_AT_ONCE]
            sizes = [self._batches.size_of(part, count) for part in some]
            flat = np.concatenate([self._batches.indices(part, size) for part, size in zip(some, sizes, strict=True)])
            indices = torch.from_numpy(flat)
            if self._device.type == "cuda":
                # from pinned memory a copy does not wait for the steps before it
                indices = indices.pin_memory().to(self._device, non_blocking=True)
            yield from zip(sizes, torch.split(indices, [size.places for size in sizes]), strict=True)

    def _gradients(self, indices: Tensor, size: Size) -> Tensor:
        total, known = self._loss(*self._batches.inputs(indices, size))
        loss = total / known.clamp(min=1)
        gradients = torch.autograd.grad(loss, self._learned, allow_unused=True)
        for tensor, gradient in zip(self._learned, gradients, strict=True):
            tensor.grad = torch.zeros_like(tensor) if tensor.grad is None else tensor.grad
            tensor.grad.copy_(gradient) if gradient is not None else tensor.grad.zero_()
        return total.detach()

    def _step(self, indices: Tensor, size: Size) -> None:
        total = self._gradients(indices, size)
        self._optimizer.step()
        self._total.add_(total)

    def _capture(self, indices: Tensor, size: Size) -> tuple[Tensor, Any]:
        buffer = indices.clone()
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(_WARM_UP):  # libraries set themselves up in the first runs, which must not be captured
                self._gradients(buffer, size)
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=self._pool):
            self._step(buffer, size)
        self._pool = self._pool or graph.pool()
        return buffer, graph


def _with_row(rows: Tensor, value: float = 0.0) -> Tensor:
    """The rows, and one more that padding points to."""
    return torch.cat([rows, rows.new_full((1, *rows.shape[1:]), value)])


def _ranges(starts: NDArray[np.int64], counts: NDArray[np.int64]) -> NDArray[np.int64]:
    return np.repeat(starts - (np.cumsum(counts) - counts), counts) + np.arange(int(counts.sum()))


def _filled(values: NDArray[np.int64], length: int, value: int) -> NDArray[np.int64]:
    result = np.full(length, value, np.int64)
    result[: len(values)] = values
    return result
