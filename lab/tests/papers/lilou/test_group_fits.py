"""LILOU's analyser on groups: sums of compiled workloads teach, and judge."""

from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("torch")

from lab.papers.lilou import group_fits
from lab.papers.lilou.features import DEVICE_COLUMNS, SIZES
from lab.papers.lilou.fitting import Gat, Schedule
from lab.papers.lilou.folds import PlannedFit
from lab.papers.lilou.group_fits import (
    GroupFit,
    call_tables,
    described,
    fit_group_fold,
    latencies_us,
    part_sums,
    read_times,
    tables,
    teaching_sums,
)
from lab.papers.lilou.groups import KNOWN, GroupSet
from lab.papers.lilou.subgraph_network import SHAPES, SubgraphFit

WORKLOADS = 30


@pytest.fixture
def groups() -> GroupSet:
    """Pairs of nodes and nodes alone, in workloads of one of each; a pair takes twice its bound."""
    draw, count = np.random.default_rng(0), 2 * WORKLOADS
    node_counts = np.tile([1, 2], WORKLOADS)
    bound_us = draw.uniform(1, 9, count)
    owner = np.repeat(np.arange(count), node_counts)
    sizes = np.zeros((len(owner), len(SIZES) + 2), np.float32)
    sizes[:, 0] = np.log2(bound_us)[owner]
    time_us = bound_us * node_counts
    library_us, generated_us = time_us[::2], time_us[1::2]
    library_us = np.where(np.arange(WORKLOADS) % 2, library_us, np.nan)
    return GroupSet(
        np.zeros(len(owner), np.int16), np.zeros(len(owner), np.int8), sizes,
        np.tile(np.array([[0], [1]]), (1, WORKLOADS)), node_counts, node_counts - 1,
        np.ones((count, len(DEVICE_COLUMNS) + len(KNOWN)), np.float32), bound_us, node_counts == 1,
        np.arange(count), np.ones(count), np.full(WORKLOADS, 2), time_us[::2] + time_us[1::2],
        library_us, np.where(np.isnan(library_us), np.nan, generated_us), time_us[::2] + time_us[1::2],
        np.arange(WORKLOADS) % 5, np.arange(WORKLOADS) % 7 == 0,
        np.array(["timm:a", "hf:b"] * (WORKLOADS // 2)), np.array([0, 1, 3]), time_us[[0, 1, 3]], np.array([0, 0, 1]),
    )  # fmt: skip


def settings(epochs: int, *, edges: bool = True) -> GroupFit:
    gat = Gat(width=16, layers=3, direction="mutual", published=False)
    return GroupFit(SubgraphFit(gat, Schedule(rate=1e-2, batch=8, epochs=epochs), SHAPES, half=False), edges)


def test_parts_teach_where_they_were_traced(groups: GroupSet) -> None:
    library, generated = part_sums(groups, library=True), part_sums(groups, library=False)
    assert (library.weights > 0).tolist() == (np.arange(WORKLOADS) % 2 == 1).tolist()
    assert library.lengths.tolist() == generated.lengths.tolist() == [1] * WORKLOADS
    assert groups.library[library.members].all()
    assert not groups.library[generated.members].any()
    taught = teaching_sums(groups, np.array([1, 2, 3]))
    assert len(taught) == 3 + 2 + 2
    times_us = np.zeros(2 * WORKLOADS)
    times_us[::2], times_us[1::2] = groups.bound_us[::2], 2 * groups.bound_us[1::2]
    assert np.allclose(taught.sums_of(times_us), taught.total_us)


def test_only_edges_tell_pairs_from_nodes_alone(groups: GroupSet) -> None:
    seen, unseen = (described(groups, settings(1, edges=edges)) for edges in (True, False))
    assert seen.edge_counts.sum() == WORKLOADS
    assert unseen.edge_counts.sum() == unseen.edges.shape[1] == 0
    assert np.array_equal(seen.base_us, groups.bound_us)


def test_latencies_are_those_of_networks_that_have_not_seen_the_fold(
    groups: GroupSet, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(group_fits, "load_groups", lambda _: groups)
    planned = []
    for fold in range(5):
        arrays, facts = fit_group_fold(tmp_path, settings(60), fold, None, lambda _: None)
        assert facts["epochs"] == len(arrays["curve"]) == 60
        file = tmp_path / f"{fold}.npz"
        np.savez(file, **arrays, facts=np.array("{}"))
        planned.append(PlannedFit("x", settings(60), fold, file))
    times_us = read_times(planned, groups)
    whole, by_zoo = tables(groups, {"x": latencies_us(groups, times_us["x"])})
    calls, patterns = call_tables(groups, times_us)
    assert {name: row["count"] for name, row in calls.rows.items()} == {
        "library calls": 1, "generated, one node": 0, "generated, several nodes": 2,
    }  # fmt: skip
    assert calls.rows["library calls"]["sum of bounds"] == 0.0
    assert calls.rows["generated, several nodes"]["sum of bounds"] == pytest.approx(0.5)
    assert len(patterns.rows) == 6
    assert whole.rows["foretell"]["mape"] == 0.0
    assert whole.rows["x"]["mape"] < 0.15 < whole.rows["sum of bounds"]["mape"]
    assert [row["count"] for row in by_zoo.rows.values()] == [15, 15]
