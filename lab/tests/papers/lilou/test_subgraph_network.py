"""LILOU's analyser: latency and kernel of a sub-graph on a device."""

from dataclasses import replace

import numpy as np
import pytest

pytest.importorskip("torch")

from lab.papers.lilou.features import DEVICE_COLUMNS, NodeTable
from lab.papers.lilou.fitting import Gat, Scale, Schedule
from lab.papers.lilou.subgraph_network import (
    PUBLISHED,
    SHAPES,
    Measured,
    SubgraphFit,
    SubgraphNetwork,
    Subgraphs,
    Sums,
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
    return Subgraphs(nodes, edges, sizes, sizes - 1, device, np.ones(count)), Measured(
        time_us, operator, np.ones(count), 3
    )


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


def random_sums(known: tuple[Subgraphs, Measured], numbers: range) -> Sums:
    """Sums of five sub-graphs each."""
    draw, count = np.random.default_rng(1), len(numbers)
    members = np.concatenate([draw.choice(np.array(numbers), 5, replace=False) for _ in numbers])
    repeats, lengths = draw.integers(1, 4, len(members)).astype(float), np.full(count, 5)
    total_us = np.add.reduceat(known[1].time_us[members] * repeats, np.arange(0, len(members), 5))
    return Sums(members, repeats, lengths, total_us, np.ones(count), np.arange(count))


def test_sums_alone_teach_what_each_takes(known: tuple[Subgraphs, Measured]) -> None:
    subgraphs, measured = known
    none, empty = Measured(np.zeros(0), np.zeros(0, np.int64), np.zeros(0), 0), np.zeros(0, np.int64)
    sums = random_sums(known, range(160)), random_sums(known, range(160))
    settings = SubgraphFit(QUICK.gat, Schedule(rate=1e-2, batch=16, epochs=40), half=False)
    network, _ = fit_subgraph_network(subgraphs, none, empty, empty, settings, "cpu", sums=sums)
    time_us, likeliest = network.predict(subgraphs)
    assert likeliest.shape == (240, 0)
    held_out = random_sums(known, range(160, 240))
    assert held_out.error(time_us) < 0.25
    assert held_out.error(np.full(240, measured.time_us.mean())) > 0.3  # equal times would not do


def test_some_sums_are_those_sums(known: tuple[Subgraphs, Measured]) -> None:
    sums = random_sums(known, range(20))
    chosen = np.array([7, 2])
    assert np.array_equal(sums.of(chosen).sums_of(known[1].time_us), sums.sums_of(known[1].time_us)[chosen])
    assert sums.error(known[1].time_us) == pytest.approx(0.0)


def test_a_ratio_to_the_bound_is_learned(known: tuple[Subgraphs, Measured]) -> None:
    subgraphs, measured = known
    bounded = replace(subgraphs, base_us=measured.time_us / 3)
    quick = SubgraphFit(QUICK.gat, Schedule(rate=1e-2, batch=16, epochs=3), known=SHAPES)
    network, _ = fit_subgraph_network(bounded, measured, np.arange(160), np.arange(160), quick, "cpu")
    time_us, _ = network.predict(bounded)
    assert np.abs(time_us / measured.time_us - 1.0).max() < 0.1  # the ratio is 3 everywhere


def test_a_network_begins_as_the_saved_one(known: tuple[Subgraphs, Measured]) -> None:
    subgraphs, measured = known
    first, _ = fit_subgraph_network(subgraphs, measured, np.arange(40), np.arange(40), QUICK, "cpu")
    wider = replace(subgraphs, device=np.concatenate([subgraphs.device, np.zeros((240, 2), np.float32)], axis=1))
    scales = Scale.of(wider.nodes.sizes), Scale.of(wider.device)
    second = SubgraphNetwork(scales, 0.0, 1.0, measured.classes, QUICK, "cpu")
    assert not np.allclose(second.predict(wider)[0], first.predict(subgraphs)[0])
    second.adopt(first.saved())
    assert np.allclose(second.predict(wider)[0], first.predict(subgraphs)[0], rtol=1e-5)


def test_nodes_alone_are_subgraphs_without_edges(known: tuple[Subgraphs, Measured]) -> None:
    nodes = known[0].nodes.of(np.array([0, 1, 2]))
    alone = Subgraphs.of_nodes(nodes, np.ones(len(DEVICE_COLUMNS), np.float32))
    assert len(alone) == 3
    assert alone.edges.shape == (2, 0)
    assert alone.device.shape == (3, len(DEVICE_COLUMNS))


def test_the_published_network_is_the_papers() -> None:
    assert (PUBLISHED.gat.width, PUBLISHED.gat.layers) == (256, 3)
    assert (PUBLISHED.schedule.rate, PUBLISHED.schedule.batch, PUBLISHED.schedule.epochs) == (5e-4, 512, 100)
