"""Lab: fitting DNN-occu and its baselines: Adam on the squared error, the best epoch on held-out architectures kept.

As in the paper: rate and decay 1e-4, occupancy as a share, mean squared error. Fitting ends when the validation error
has not fallen for ``patience`` epochs; the losses of all epochs are kept, so that one can see whether it converged.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lab.papers.dnn_occu.graphs import OccupancyGraph
from lab.papers.dnn_occu.networks import NETWORKS, Batch, torch

_LEAST_SPREAD = 0.05
_LEAST_SHARE = 1e-3
_MOST_PAIRS = 4_000_000  # of nodes in a batch: a gigabyte of attention

Values = NDArray[np.float64]
Log = Callable[[str], None]


@dataclass(frozen=True)
class Fit:
    """How a network is fitted; ``seconds`` limits it, None does not."""

    epochs: int = 400
    patience: int = 40
    batch: int = 16
    rate: float = 1e-4
    decay: float = 1e-4
    seed: int = 0
    seconds: float | None = None
    device: str = "cpu"


@dataclass(frozen=True)
class Fitted:
    """A fitted network: the scale of its inputs, the losses of every epoch, and whether it stopped by itself."""

    network: Any
    middle: NDArray[np.float32]
    spread: NDArray[np.float32]
    device: str
    losses: tuple[tuple[float, float], ...]
    converged: bool

    def predict(self, graphs: Sequence[OccupancyGraph]) -> Values:
        """The occupancy of each graph, in per cent."""
        self.network.eval()
        values = np.zeros(len(graphs))
        with torch.no_grad():
            for part in _parts(graphs, 16):
                batch = make_batch([graphs[place] for place in part], self.middle, self.spread, self.device)
                values[part] = self.network(batch).double().cpu().numpy()
        return 100.0 * np.clip(values, _LEAST_SHARE, 1.0)


def make_batch(
    graphs: Sequence[OccupancyGraph], middle: NDArray[np.float32], spread: NDArray[np.float32], device: str
) -> Batch:
    """Graphs padded to the largest of them."""
    most = max(map(len, graphs))
    nodes = np.zeros((len(graphs), most, len(middle)), np.float32)
    is_node, links = np.zeros((len(graphs), most), bool), np.zeros((len(graphs), most), np.int64)
    steps = np.zeros((len(graphs), most, most), np.int32)
    edges, features = list[Any](), list[Any]()
    for place, graph in enumerate(graphs):
        count = len(graph)
        nodes[place, :count] = (graph.nodes - middle) / spread
        is_node[place, :count], links[place, :count] = True, graph.links
        steps[place, :count, :count] = graph.steps
        edges.append(graph.edges + place * most)
        features.append(graph.edge_features)
    arrays = (nodes, is_node, links, steps, np.concatenate(edges, axis=1), np.concatenate(features))
    return Batch(*(torch.from_numpy(array).to(device) for array in arrays))


def _parts(graphs: Sequence[OccupancyGraph], size: int, order: NDArray[np.intp] | None = None) -> list[Any]:
    """Places of graphs of similar size, so that little is padded; ``order`` shuffles what is of one size.

    A part has at most ``size`` graphs, and fewer where they are large: attention takes their nodes squared.
    """
    shuffled = np.arange(len(graphs)) if order is None else order
    lengths = np.array([len(graphs[place]) for place in shuffled])
    by_size = shuffled[np.argsort((2 * np.log2(lengths)).round(), kind="stable")]
    parts, part, most = list[Any](), list[int](), 0
    for place in by_size.tolist():
        longest = max(most, len(graphs[place]))
        if part and (len(part) == size or (len(part) + 1) * longest**2 > _MOST_PAIRS):
            parts.append(np.array(part))
            part, longest = [], len(graphs[place])
        part.append(place)
        most = longest
    return [*parts, np.array(part)]


def fit_network(
    name: str,
    train: tuple[Sequence[OccupancyGraph], Values],
    validation: tuple[Sequence[OccupancyGraph], Values],
    fit: Fit,
    log: Log = lambda _: None,
) -> Fitted:
    """Fit a network of `NETWORKS` to graphs and their occupancy in per cent."""
    torch.manual_seed(fit.seed)
    random = np.random.default_rng(fit.seed)
    graphs, truth = train
    every = np.concatenate([graph.nodes for graph in graphs])
    middle, spread = every.mean(axis=0), np.maximum(every.std(axis=0), _LEAST_SPREAD)
    network = NETWORKS[name](len(middle), graphs[0].edge_features.shape[1]).to(fit.device)
    optimizer = torch.optim.Adam(network.parameters(), lr=fit.rate, weight_decay=fit.decay)
    target = torch.tensor(truth / 100.0, dtype=torch.float32, device=fit.device)
    losses, best, stale, began, converged = list[tuple[float, float]](), dict[str, Any](), 0, time.monotonic(), False
    for epoch in range(fit.epochs):
        network.train()
        total = 0.0
        parts = _parts(graphs, fit.batch, random.permutation(len(graphs)))
        for number in random.permutation(len(parts)):
            part = parts[number]
            batch = make_batch([graphs[place] for place in part], middle, spread, fit.device)
            loss = ((network(batch) - target[part]) ** 2).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            total += loss.item() * len(part)
        fitted = Fitted(network, middle, spread, fit.device, (), False)
        error = float(np.mean((fitted.predict(validation[0]) - validation[1]) ** 2)) / 1e4
        losses.append((total / len(graphs), error))
        if error <= min(other for _, other in losses):
            best, stale = _copy(network.state_dict()), 0
        else:
            stale += 1
        elapsed_s = time.monotonic() - began
        if epoch % 10 == 0:
            log(f"{name}, epoch {epoch}: loss {losses[-1][0]:.5f}, validation {error:.5f}, {elapsed_s:.0f} s")
        converged = stale >= fit.patience
        if converged or (fit.seconds is not None and elapsed_s > fit.seconds):
            break
    network.load_state_dict(best)
    return Fitted(network, middle, spread, fit.device, tuple(losses), converged)


def _copy(state: Mapping[str, Any]) -> dict[str, Any]:
    return {name: array.detach().clone() for name, array in state.items()}
