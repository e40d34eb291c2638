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

from lab.papers.dnn_occu.batches import PlacedGraphs
from lab.papers.dnn_occu.graphs import OccupancyGraph
from lab.papers.dnn_occu.merging import merge_equal
from lab.papers.dnn_occu.networks import LOOKS_AT_SOURCES, NETWORKS, torch

_LEAST_SPREAD = 0.05
_LEAST_SHARE = 1e-3
_SHUFFLES = 8  # ways in which graphs are put into batches

Values = NDArray[np.float64]
Log = Callable[[str], None]


@dataclass(frozen=True)
class Fit:
    """How a network is fitted; ``seconds`` limits it, None does not."""

    epochs: int = 600
    patience: int = 60
    batch: int = 16
    rate: float = 1e-4
    decay: float = 1e-4
    seed: int = 0
    seconds: float | None = None
    device: str = "cpu"


@dataclass(frozen=True)
class Fitted:
    """A fitted network: the scale of its inputs, the losses of every epoch, and whether it stopped by itself."""

    name: str
    network: Any
    middle: NDArray[np.float32]
    spread: NDArray[np.float32]
    fit: Fit
    losses: tuple[tuple[float, float], ...]
    converged: bool

    def predict(self, graphs: Sequence[OccupancyGraph]) -> Values:
        """The occupancy of each graph, in per cent."""
        placed = _placed(self.name, graphs, self.middle, self.spread, self.fit.device)
        return _predict(self.network, placed.batches(self.fit.batch), len(graphs))


def _placed(
    name: str, graphs: Sequence[OccupancyGraph], middle: NDArray[np.float32], spread: NDArray[np.float32], device: str
) -> PlacedGraphs:
    """Graphs as a network needs them: equal nodes once where it cannot tell them apart, steps where it asks."""
    if name in LOOKS_AT_SOURCES:
        graphs = [merge_equal(graph, LOOKS_AT_SOURCES[name]) for graph in graphs]
    return PlacedGraphs(graphs, middle, spread, device, has_steps=name == "dnn-occu", has_pairs=name != "lstm")


def _predict(network: Any, batches: Sequence[tuple[Any, Any]], count: int) -> Values:
    network.eval()
    with torch.no_grad():
        values = torch.zeros(count, device=batches[0][0].device)
        for places, batch in batches:
            values[places] = network(batch)
    return np.asarray(100.0 * np.clip(values.double().cpu().numpy(), _LEAST_SHARE, 1.0))


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
    is_gpu = fit.device == "cuda"
    torch.set_float32_matmul_precision("high" if is_gpu else "highest")
    optimizer = torch.optim.Adam(network.parameters(), lr=fit.rate, weight_decay=fit.decay, fused=is_gpu)
    target = torch.tensor(truth / 100.0, dtype=torch.float32, device=fit.device)
    placed = _placed(name, graphs, middle, spread, fit.device)
    shuffles = [placed.batches(fit.batch, random.permutation(len(graphs))) for _ in range(min(_SHUFFLES, fit.epochs))]
    judging = _placed(name, validation[0], middle, spread, fit.device).batches(fit.batch)
    losses, best, stale, began, converged = list[tuple[float, float]](), dict[str, Any](), 0, time.monotonic(), False
    for epoch in range(fit.epochs):
        network.train()
        total = torch.zeros((), device=fit.device)
        batches = shuffles[random.integers(len(shuffles))]
        for number in random.permutation(len(batches)):
            places, batch = batches[number]
            loss = ((network(batch) - target[places]) ** 2).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            total += loss.detach() * len(places)
        error = float(np.mean((_predict(network, judging, len(validation[0])) - validation[1]) ** 2)) / 1e4
        losses.append((total.item() / len(graphs), error))
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
    return Fitted(name, network, middle, spread, fit, tuple(losses), converged)


def _copy(state: Mapping[str, Any]) -> dict[str, Any]:
    return {name: array.detach().clone() for name, array in state.items()}
