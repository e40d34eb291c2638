import os
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

from foretell.errors import MeasurementError
from foretell.profiling.campaign.job import Job
from foretell.profiling.campaign.journal import read_records
from foretell.profiling.campaign.plan import Measuring, Slices
from foretell.profiling.replays import slices
from small.measured import TINY, plan_of

FAKE = (sys.executable, str(Path(__file__).parents[2] / "fakes" / "fake_replay_worker.py"))
SLICES = Slices(percents=(10, 100), batch=2, sm_counts=(33, 66), green_workloads=3, green_processes=1)


def measure(plan, out, device="cpu", seconds=600.0, skip=(), limit=0, command=FAKE):
    return slices.run(Job(plan, out, device, seconds, time.monotonic(), tuple(skip), "abc", limit), command)


def rows_of(out):
    return [line for line in read_records(out) if line["kind"] == "slices"]


def test_every_workload_gets_every_share_by_both_methods(tmp_path):
    plan = plan_of(tmp_path / "earlier", slices=SLICES)
    assert measure(plan, tmp_path / "out") == {"ok": 6 * 2 + 3 * 2}
    rows = rows_of(tmp_path / "out")
    assert {(row["percent"], row["sm_count"]) for row in rows if row["method"] == "mps"} == {
        (10, 10),
        (100, 100),
    }
    for begin in (0, 4, 8):  # a set is complete before the next workloads are prepared
        assert len({row["workload_id"] for row in rows[begin : begin + 4]}) == 2
    green = [row for row in rows if row["method"] == "green-context"]
    assert {(row["percent"], row["sm_count"]) for row in green} == {(25.0, 33), (50.0, 66)}
    assert {row["workload_id"] for row in green} < {row["workload_id"] for row in rows}
    head = next(iter(read_records(tmp_path / "out")))
    assert head["kind"] == "campaign"
    assert head["code_version"].startswith("abc")
    assert rows[0]["error"] is None
    assert rows[0]["part"] == "tiny"
    assert rows[0]["latency_ms"] == 10.0


def test_what_is_done_is_not_measured_again(tmp_path):
    plan = plan_of(tmp_path / "earlier", TINY[:4], slices=SLICES)
    measure(plan, tmp_path / "first", limit=2)
    assert measure(plan, tmp_path / "second", skip=[tmp_path / "first"]) == {"ok": 2 * 2 + 1 * 2}
    assert measure(plan, tmp_path / "second", skip=[tmp_path / "first"]) == {}
    keys = [
        (r["workload_id"], r["method"], r["percent"]) for out in ("first", "second") for r in rows_of(tmp_path / out)
    ]
    assert len(keys) == len(set(keys)) == 4 * 2 + 3 * 2


def test_a_workload_that_kills_or_fails_costs_its_own_rows_alone(tmp_path):
    specs = (TINY[0], "synthetic:crash", "synthetic:oom", TINY[1])
    plan = plan_of(tmp_path / "earlier", specs, slices=replace(SLICES, methods=("mps",), percents=(50,)))
    assert measure(plan, tmp_path / "out") == {"ok": 2, "crash": 1, "oom": 1}
    by_status = {row["status"]: row for row in rows_of(tmp_path / "out")}
    assert by_status["crash"]["spec"] == "synthetic:crash"
    assert by_status["crash"]["error"] == "exit code 9"
    assert by_status["oom"]["error"] == "no memory"


def test_a_process_that_hangs_is_ended(tmp_path, monkeypatch):
    monkeypatch.setattr(slices, "_SILENCE_S", 3.0)
    specs = (TINY[0], "synthetic:hang")
    plan = plan_of(tmp_path / "earlier", specs, slices=replace(SLICES, methods=("mps",), percents=(50,)))
    assert measure(plan, tmp_path / "out") == {"ok": 1, "timeout": 1}


def test_the_campaign_ends_soon_after_its_time_is_over(tmp_path, monkeypatch):
    monkeypatch.setattr(slices, "_MAX_RESERVE_S", 1.0)
    plan = plan_of(tmp_path / "earlier", ("synthetic:hang",), slices=replace(SLICES, methods=("mps",), percents=(50,)))
    began = time.monotonic()
    with pytest.raises(MeasurementError, match="No slice could be measured"):
        measure(plan, tmp_path / "out", seconds=1.0)
    assert time.monotonic() - began < 300  # a process that hangs is waited for, but not for its ten minutes


def test_shares_that_all_see_the_whole_device_are_refused(tmp_path, monkeypatch):
    binary = tmp_path / "bin" / "nvidia-cuda-mps-control"
    binary.parent.mkdir()
    binary.write_text("#!/bin/sh\nexit 0\n")
    binary.chmod(0o755)
    monkeypatch.setenv("PATH", f"{binary.parent}:{os.environ['PATH']}")
    plan = plan_of(tmp_path / "earlier", slices=replace(SLICES, methods=("mps",), percents=(10, 10.2)))
    with pytest.raises(MeasurementError, match="No slice could be measured"):
        measure(plan, tmp_path / "out", device="cuda")
    assert rows_of(tmp_path / "out") == []


def test_without_mps_green_contexts_are_still_measured(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    plan = plan_of(tmp_path / "earlier", slices=SLICES)
    assert measure(plan, tmp_path / "out", device="cuda") == {"ok": 6}


@pytest.mark.slow
def test_real_processes_measure_real_steps(tmp_path):
    some = replace(SLICES, methods=("mps", "green-context"), percents=(100,), batch=2)
    plan = plan_of(tmp_path / "earlier", TINY[:3], slices=some, measuring=Measuring(warmups=1, tries=1, max_cv=9.0))
    assert measure(plan, tmp_path / "out", seconds=60.0, command=slices.WORKER) == {"ok": 3}
    for row in rows_of(tmp_path / "out"):
        assert 0 < row["latency_min_ms"] <= row["latency_ms"]
        assert row["repeats"] >= 20
        assert row["noisy"] is False
