"""Every network learns from graphs, ignores padding, and tells how its fit went."""

import numpy as np
import pytest

from lab.papers.dnn_occu.graphs import OccupancyGraph

pytest.importorskip("torch")

from lab.papers.dnn_occu.batches import PlacedGraphs
from lab.papers.dnn_occu.fitting import Fit, fit_network
from lab.papers.dnn_occu.networks import NETWORKS, torch

WIDTH = 6


def chain(length: int, level: float) -> OccupancyGraph:
    """A chain of nodes whose first feature is the same everywhere."""
    nodes = np.full((length, WIDTH), 0.1, np.float32)
    nodes[:, 0] = level
    edges = np.array([np.arange(length - 1), np.arange(1, length)])
    features = np.ones((length - 1, 3), np.float32)
    return OccupancyGraph("a", nodes, edges, features)


@pytest.mark.parametrize("name", NETWORKS)
def test_padding_takes_part_in_nothing(name: str) -> None:
    torch.manual_seed(0)
    network = NETWORKS[name](WIDTH, 3).eval()
    small, large = chain(3, 1.0), chain(9, -1.0)
    middle, spread = np.zeros(WIDTH, np.float32), np.ones(WIDTH, np.float32)
    with torch.no_grad():
        placed = PlacedGraphs([small, large], middle, spread, "cpu")
        alone, padded = (network(placed.batch(np.arange(count))) for count in (1, 2))
    assert padded[0].item() == pytest.approx(alone[0].item(), abs=1e-5)
    assert padded[0].item() != pytest.approx(padded[1].item(), abs=1e-7)


@pytest.mark.parametrize("name", NETWORKS)
def test_a_network_learns_and_keeps_its_losses(name: str) -> None:
    graphs = [chain(3 + number % 4, number / 12) for number in range(12)]
    truth = np.array([10.0 + 5 * number for number in range(12)])
    fit = Fit(epochs=25, patience=30, batch=4, rate=2e-3)
    fitted = fit_network(name, (graphs, truth), (graphs, truth), fit)
    assert len(fitted.losses) == 25
    assert min(error for _, error in fitted.losses) < 0.6 * fitted.losses[0][1]
    assert not fitted.converged
    predicted = fitted.predict(graphs)
    assert predicted.shape == (12,)
    assert ((predicted > 0) & (predicted <= 100)).all()
    # the best epoch was kept
    assert np.mean((predicted - truth) ** 2) / 1e4 == pytest.approx(min(e for _, e in fitted.losses), rel=1e-3)


def test_a_fit_ends_where_it_no_longer_improves() -> None:
    graphs = [chain(3, number / 4) for number in range(4)]
    fitted = fit_network(
        "mlp", (graphs, np.full(4, 40.0)), (graphs, np.full(4, 5.0)), Fit(epochs=200, patience=3, batch=4, rate=1e-2)
    )
    assert fitted.converged
    assert len(fitted.losses) < 200
