import os
import sys
import time
from pathlib import Path

import pytest

from foretell.errors import MeasurementError
from foretell.profiling.campaign.job import Job
from foretell.profiling.campaign.journal import read_records
from foretell.profiling.campaign.plan import Colocation, Measuring
from lab.campaigns import colocation
from lab.campaigns.colocation_groups import group_id
from small.measured import TINY, plan_of

FAKE = (sys.executable, str(Path(__file__).parents[3] / "tests" / "fakes" / "fake_replay_worker.py"))
SMALL = Colocation(processes=3, groups=4, together_s=0.2)


def measure(plan, out, seconds=600.0, skip=(), limit=0, command=FAKE):
    return colocation.run(Job(plan, out, "cpu", seconds, time.monotonic(), tuple(skip), "", limit), command)


def rows_of(out):
    return [line for line in read_records(out) if line["kind"] == "colocation"]


def groups_of(rows):
    groups = {}
    for row in rows:
        groups.setdefault((row["method"], row["group_id"]), []).append(row)
    return groups


def test_both_methods_measure_the_same_groups(tmp_path):
    plan = plan_of(tmp_path / "earlier", colocation=SMALL)
    counts = measure(plan, tmp_path / "out")
    assert counts["groups mps"] == counts["groups time-slicing"] == 4
    groups = groups_of(rows_of(tmp_path / "out"))
    assert counts["ok"] == sum(map(len, groups.values()))
    members = {"mps": set(), "time-slicing": set()}
    for (method, name), rows in groups.items():
        workloads = [row["workload_id"] for row in rows]
        assert name == group_id(method, workloads)
        assert [row["member"] for row in rows] == [*range(rows[0]["members"])]
        members[method].add(frozenset(workloads))
    assert members["mps"] == members["time-slicing"]
    for row in rows_of(tmp_path / "out"):
        assert row["solo_ms"] == pytest.approx(1.0, rel=0.01)
        assert row["together_ms"] == pytest.approx(2.0, rel=0.01)
        assert row["together_median_ms"] == pytest.approx(2.0, rel=0.01)
        assert row["repeats"] > 100
        assert row["overlap_s"] == pytest.approx(0.388, abs=0.01)
        assert row["clock_mhz"] == 1980
        assert row["error"] is None


def test_what_one_method_has_measured_the_other_measures_first(tmp_path):
    plan = plan_of(tmp_path / "earlier", colocation=Colocation(("mps",), processes=3, groups=2))
    measure(plan, tmp_path / "first")
    both = plan_of(tmp_path / "earlier", colocation=SMALL)
    counts = measure(both, tmp_path / "second", skip=[tmp_path / "first"])
    assert counts["groups mps"] == counts["groups time-slicing"] == 4
    rows = rows_of(tmp_path / "second")
    old = {
        frozenset(r["workload_id"] for r in group_rows)
        for group_rows in groups_of(rows_of(tmp_path / "first")).values()
    }
    sliced = [frozenset(r["workload_id"] for r in g) for (m, _), g in groups_of(rows).items() if m == "time-slicing"]
    assert {*sliced[:2]} == old
    assert not {name for m, name in groups_of(rows) if m == "mps"} & {
        r["group_id"] for r in rows_of(tmp_path / "first")
    }
    assert measure(both, tmp_path / "second", skip=[tmp_path / "first"])["groups mps"] == 4
    assert rows_of(tmp_path / "second") == rows


def test_a_member_that_dies_is_recorded_and_the_others_go_on(tmp_path):
    specs = ("synthetic:abort", *TINY, "synthetic:crash", "synthetic:oom")
    plan = plan_of(tmp_path / "earlier", specs, colocation=Colocation(("mps",), processes=5, groups=4))
    counts = measure(plan, tmp_path / "out")
    assert counts["groups mps"] == 4
    assert counts["crash"] == 1
    (broken,) = [
        group_rows
        for group_rows in groups_of(rows_of(tmp_path / "out")).values()
        if {r["status"] for r in group_rows} != {"ok"}
    ]
    assert {row["status"] for row in broken} == {"crash", "skipped"}
    for row in broken:
        assert "together_ms" not in row
        assert row["error"] == ("exit code 9" if row["status"] == "crash" else "another member failed")


def test_a_campaign_without_ready_workloads_is_an_error(tmp_path):
    plan = plan_of(tmp_path / "earlier", ("synthetic:oom",), colocation=SMALL)
    with pytest.raises(MeasurementError, match="No group could be measured"):
        measure(plan, tmp_path / "out")


def test_real_processes_replay_real_steps_side_by_side(tmp_path):
    some = Colocation(("time-slicing",), (2,), groups=2, processes=2, together_s=0.15)
    plan = plan_of(tmp_path / "earlier", TINY[:4], colocation=some, measuring=Measuring(warmups=1, tries=1))
    counts = measure(plan, tmp_path / "out", seconds=600.0, command=colocation.WORKER)
    assert counts == {"ok": 4, "groups time-slicing": 2}
    for row in rows_of(tmp_path / "out"):
        assert row["solo_ms"] > 0
        assert row["together_ms"] > 0
        assert row["repeats"] >= 5
        assert 0 < row["overlap_s"] <= 1.5


def test_processes_are_limited_under_mps_only_and_workloads_meet_themselves(tmp_path):
    some = Colocation(processes=4, groups=12, together_s=0.2, percentages=(100.0, 50.0), copies=1)
    plan = plan_of(tmp_path / "earlier", colocation=some)
    measure(plan, tmp_path / "out")
    rows = rows_of(tmp_path / "out")
    assert {row["percentage"] for row in rows if row["method"] == "mps"} == {50.0, 100.0}
    assert {row["percentage"] for row in rows if row["method"] == "time-slicing"} == {100.0}
    groups = groups_of(rows)
    for method in ("mps", "time-slicing"):
        equal = [g for (m, _), g in groups.items() if m == method and len({row["workload_id"] for row in g}) == 1]
        assert {len(group) for group in equal} == {2, 3}
    for (method, name), group in groups.items():
        limited = [f"@{row['percentage']:g}" if row["percentage"] < 100 else "" for row in group]
        assert name == group_id(method, (row["workload_id"] + limit for row, limit in zip(group, limited, strict=True)))
    # a second run measures none of them again
    measure(plan, tmp_path / "out")
    assert rows_of(tmp_path / "out") == rows


def test_sets_of_cores_share_out_the_workloads_and_a_group_stays_on_its_set(tmp_path, monkeypatch):
    monkeypatch.setattr(colocation, "core_sets", lambda count: [(0, 1), (2, 3)][:count])
    some = Colocation(("cores",), (2,), groups=4, processes=2, together_s=0.2, core_sets=2)
    plan = plan_of(tmp_path / "earlier", colocation=some)
    counts = measure(plan, tmp_path / "out")
    assert counts["groups cores"] >= 4
    order = [chosen.workload.id for chosen in colocation.choose(plan)]
    for group in groups_of(rows_of(tmp_path / "out")).values():
        assert len({order.index(row["workload_id"]) % 2 for row in group}) == 1
        assert {row["method"] for row in group} == {"cores"}


def test_a_plan_of_cores_says_how_many_sets(tmp_path):
    plan = plan_of(tmp_path / "earlier", colocation=Colocation(("cores",), groups=4, processes=2))
    with pytest.raises(MeasurementError, match="No group could be measured"):
        measure(plan, tmp_path / "out")


def test_on_a_processor_the_reference_product_is_timed_before_a_step(tmp_path, monkeypatch):
    monkeypatch.setattr(colocation, "core_sets", lambda count: [tuple(sorted(os.sched_getaffinity(0)))])
    some = Colocation(("cores",), (2,), groups=1, processes=2, together_s=0.15, core_sets=1)
    plan = plan_of(tmp_path / "earlier", TINY[:2], colocation=some, measuring=Measuring(warmups=1, tries=1))
    measure(plan, tmp_path / "out", command=colocation.WORKER)
    for row in rows_of(tmp_path / "out"):
        assert row["reference_ms"] > 0
        assert row["solo_reference_ms"] > 0
