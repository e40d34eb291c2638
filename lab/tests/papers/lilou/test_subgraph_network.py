"""LILOU's analyser: latency and kernel of a sub-graph on a device."""

import numpy as np
import pytest

pytest.importorskip("torch")

from lab.papers.lilou.features import DEVICE_COLUMNS, NodeTable
from lab.papers.lilou.fitting import Gat, Schedule
from lab.papers.lilou.subgraph_network import (
    PUBLISHED,
    Measured,
    SubgraphFit,
    Subgraphs,
    fit_subgraph_network,
)

QUICK = SubgraphFit(Gat(width=32, layers=3, direction="mutual"), Schedule(rate=1e-2, batch=16, epochs=30))


@pytest.fixture(scope="module")
def known() -> tuple[Subgraphs, Measured]:
    """Pairs of nodes and nodes alone: a kernel by the operator, a time by size and SMs."""
    draw, count = np.random.default_rng(0), 240
    sizes = np.where(np.arange(count) % 2, 2, 1)
    operator, log_size = draw.integers(0, 3, count), draw.uniform(2, 12, count)
    sms = draw.choice([33.0, 66.0, 132.0], count)
    owner = np.repeat(np.arange(count), sizes)
    nodes = NodeTable(
        operator[owner].astype(np.int16), np.zeros(len(owner), np.int8),
        np.repeat(log_size[owner, None], 4, axis=1).astype(np.float32),
    )  # fmt: skip
    device = np.ones((count, len(DEVICE_COLUMNS)), np.float32)
    device[:, DEVICE_COLUMNS.index("sms")] = sms
    edges = np.tile(np.array([[0], [1]]), (1, int((sizes == 2).sum())))
    time_us = np.exp2(log_size) * 132 / sms * sizes
    return Subgraphs(nodes, edges, sizes, sizes - 1, device), Measured(time_us, operator, np.ones(count), 3)


def test_time_and_kernel_are_predicted_for_unseen_subgraphs(known: tuple[Subgraphs, Measured]) -> None:
    subgraphs, measured = known
    taught, held_out = np.arange(160), np.arange(160, 240)
    network, history = fit_subgraph_network(subgraphs, measured, taught, taught, QUICK, "cpu")
    assert len(history) == QUICK.schedule.epochs
    time_us, likeliest = network.predict(subgraphs)
    assert (likeliest[held_out, 0] == measured.label[held_out]).all()
    assert likeliest.shape == (240, 3)
    off = np.abs(time_us / measured.time_us - 1.0)[held_out]
    assert np.median(off) < 0.35
    small = held_out[subgraphs.device[held_out, DEVICE_COLUMNS.index("sms")] == 33.0]
    assert np.median(np.abs(time_us / measured.time_us - 1.0)[small]) < 0.4  # what a slice has is heard


def test_nodes_alone_are_subgraphs_without_edges(known: tuple[Subgraphs, Measured]) -> None:
    nodes = known[0].nodes.of(np.array([0, 1, 2]))
    alone = Subgraphs.of_nodes(nodes, np.ones(len(DEVICE_COLUMNS), np.float32))
    assert len(alone) == 3
    assert alone.edges.shape == (2, 0)
    assert alone.device.shape == (3, len(DEVICE_COLUMNS))


def test_the_published_network_is_the_papers() -> None:
    assert (PUBLISHED.gat.width, PUBLISHED.gat.layers) == (256, 3)
    assert (PUBLISHED.schedule.rate, PUBLISHED.schedule.batch, PUBLISHED.schedule.epochs) == (5e-4, 512, 100)
