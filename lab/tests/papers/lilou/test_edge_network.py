"""LILOU's partitioner: an edge's two ends, in their order, under a runtime."""

import numpy as np
import pytest

from foretell.predictors.fusion.edges import RUNTIMES

pytest.importorskip("torch")

from lab.papers.lilou.edge_network import FITS, EdgeExamples, EdgeFit, fit_edge_network
from lab.papers.lilou.features import NodeTable
from lab.papers.lilou.fitting import Gat, Schedule

CONV, RELU = 3, 9
PUBLISHED = EdgeFit(Gat(width=16, layers=1, direction="forward"), Schedule(rate=1e-2, batch=8, epochs=1), lstm=8)
DEEPER = EdgeFit(Gat(16, 2, "mutual", published=False), Schedule(rate=1e-2, batch=4, epochs=20), lstm=16)


@pytest.fixture(scope="module")
def examples() -> EdgeExamples:
    """Chains of convolutions and activations: one runtime fuses Conv-Relu, never Relu-Conv; another nothing."""
    draw = np.random.default_rng(0)
    operators = [draw.choice([CONV, RELU], size) for size in draw.integers(4, 9, 40)]
    counts = np.array([len(chain_ops) for chain_ops in operators])
    edges = np.concatenate([np.stack([np.arange(size - 1), np.arange(1, size)]) for size in counts], axis=1)
    flat = np.concatenate(operators)
    nodes = NodeTable(flat.astype(np.int16), np.zeros(len(flat), np.int8), draw.random((len(flat), 4), np.float32))
    runtime = np.arange(40) % 2
    fused = [
        (chain_ops[:-1] == CONV) & (chain_ops[1:] == RELU) & bool(own)
        for chain_ops, own in zip(operators, runtime, strict=True)
    ]
    return EdgeExamples(nodes, edges, counts, counts - 1, np.arange(40), runtime, np.concatenate(fused))


def test_order_and_runtime_are_learned_for_unseen_graphs(examples: EdgeExamples) -> None:
    taught, held_out = np.arange(32), np.arange(32, 40)
    network, history = fit_edge_network(examples, taught, taught, DEEPER, "cpu")
    assert max(epoch["score"] for epoch in history) > 0.95
    starts = np.cumsum(examples.sizes) - examples.sizes
    truth = np.concatenate(
        [examples.fused[starts[graph] : starts[graph] + examples.sizes[graph]] for graph in held_out]
    )
    predicted = network.predict(held_out)
    assert (predicted & truth).sum() > 0.7 * truth.sum()
    assert network.accuracy(held_out) == (predicted == truth).mean() > 0.9
    assert len(network.predict(np.zeros(0, np.int64))) == 0


def test_the_same_seed_gives_the_same_network(examples: EdgeExamples) -> None:
    every = np.arange(24)
    first, second = (fit_edge_network(examples, every, every, PUBLISHED, "cpu")[1][0]["loss"] for _ in range(2))
    assert first == second


def test_the_published_network_is_the_papers() -> None:
    gat, schedule = FITS["lilou"].gat, FITS["lilou"].schedule
    assert (gat.width, gat.layers, gat.published, FITS["lilou"].lstm) == (128, 1, True, 128)
    assert (schedule.rate, schedule.batch, schedule.epochs) == (1e-2, 32, 20)
    assert len(RUNTIMES) == 3
