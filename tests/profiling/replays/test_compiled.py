import math
import sys
import time
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest

from foretell.errors import MeasurementError
from foretell.profiling.campaign import schedule
from foretell.profiling.campaign.job import Job
from foretell.profiling.campaign.journal import read_records, read_traces
from foretell.profiling.campaign.plan import Compiled, Limits, Part, Plan, read_plan
from foretell.profiling.replays import compiled
from foretell.profiling.replays.compiled import CompiledCampaign, lay_out
from foretell.profiling.zoos.zoo import Entry

COMMAND = (sys.executable, str(Path(__file__).parents[2] / "fakes" / "fake_compiled_worker.py"))
PLANS = Path(__file__).parents[3] / "plans"
PART = Part("fake", 1.0, ("timm",), per_model=1)
PLAN = Plan(1, (PART,), "compiled", limits=Limits(timeout_s=600.0), compiled=Compiled(2, 0.5))


class FakeZoo:
    """Models that exist by name only."""

    def __init__(self, names):
        self._names = names

    def entries(self, _part, _seed):
        return [Entry(f"fake:{name}", name.rstrip("0123456789"), (3, 8, 8)) for name in self._names]


@pytest.fixture
def campaign(tmp_path, monkeypatch):
    """Runs a plan over models of the given names; returns how they ended."""

    def run(names, plan=PLAN, *, out=tmp_path / "out", seconds=600.0, skip=(), limit=0, command=COMMAND):
        monkeypatch.setattr(schedule, "load_zoo", lambda _name: FakeZoo(names))
        return CompiledCampaign(Job(plan, out, "cpu", seconds, time.monotonic(), skip, "", limit), command).run()

    return run


@pytest.fixture
def measures_once(monkeypatch):
    """Measuring begins when something was heard instead of after some seconds: a busy machine takes its time."""

    def when(*expected):
        missing, handle_message = list(expected), CompiledCampaign._handle_message

        def listen(self, worker, message):
            handle_message(self, worker, message)
            known = self._known.get(str(message.get("id", "")))
            event = message["event"], known.workload.spec if known else ""
            if event in missing:
                missing.remove(event)

        monkeypatch.setattr(CompiledCampaign, "_handle_message", listen)
        monkeypatch.setattr(CompiledCampaign, "_measuring_begins", lambda _: math.inf if missing else 0.0)
        monkeypatch.setattr(schedule, "interleave", lambda entries, *_: list(entries))

    return when


def _rows(folder):
    return [line for line in read_records(folder) if line["kind"] == "compiled"]


def _statuses(folder):
    return Counter(
        f"{str(row['spec']).partition(':')[2].rstrip('0123456789')} {row['status']}" for row in _rows(folder)
    )


def test_every_model_is_timed_twice_and_traced(campaign, tmp_path):
    assert campaign([f"net{i}" for i in range(7)]) == {"ok": 7}
    header, *_ = read_records(tmp_path / "out")
    assert (header["kind"], header["runtime"], header["workers"]) == ("campaign", "compiled", 2)
    rows = _rows(tmp_path / "out")
    assert {row["campaign_id"] for row in rows} == {header["campaign_id"]}
    row = rows[0]
    assert (row["eager_ms"], row["compiled_ms"], row["compile_s"], row["graph_breaks"]) == (2.0, 1.0, 1.5, None)
    assert (row["kernels"], row["kernel_ms"], row["part"], row["error"]) == (2, pytest.approx(0.9), "fake", None)
    traces = list(read_traces(tmp_path / "out"))
    for kind in ("compiled_kernels", "compiled_calls"):
        own = [trace for trace in traces if trace["kind"] == kind]
        assert Counter(trace["workload_id"] for trace in own) == Counter(row["workload_id"] for row in rows)
        assert {trace["campaign_id"] for trace in own} == {header["campaign_id"]}
    assert traces[1]["duration_us"] == [300.0, 600.0]


def test_crashes_hangs_and_refusals_are_recorded_and_lost_models_are_compiled_again(campaign, tmp_path):
    plan = replace(PLAN, limits=Limits(timeout_s=3.0))
    campaign(["net1", "net2", "net3", "crash1", "hang1", "broken1", "uncaptured1"], plan)
    assert _statuses(tmp_path / "out") == {
        "net ok": 3, "crash crash": 1, "hang timeout": 1, "broken build_error": 1, "uncaptured run_error": 1,
    }  # fmt: skip
    by_name = {str(row["spec"]).partition(":")[2]: row for row in _rows(tmp_path / "out")}
    assert by_name["hang1"]["error"] == "silent for 3 s"
    assert by_name["uncaptured1"]["eager_ms"] == 2.0
    assert "compiled_ms" not in by_name["uncaptured1"]


def test_a_process_that_dies_while_it_measures_costs_one_workload_and_a_trace_at_most(campaign, tmp_path):
    campaign(["net1", "net2", "fatal1", "mortal1", "net3"])
    assert _statuses(tmp_path / "out") == {"net ok": 3, "mortal ok": 1, "fatal crash": 1}
    mortal = next(row for row in _rows(tmp_path / "out") if "mortal" in row["spec"])
    assert mortal["compiled_ms"] == 1.0
    assert "kernels" not in mortal


def test_what_is_done_is_not_compiled_again(campaign, tmp_path):
    names = [f"net{i}" for i in range(6)]
    assert campaign(names, limit=2) == {"ok": 2}
    assert campaign(names) == {"ok": 4}
    assert _statuses(tmp_path / "out") == {"net ok": 6}
    assert campaign(names, out=tmp_path / "again", skip=[tmp_path / "out"]) == {}


def test_full_processes_measure_and_go_on(campaign):
    assert campaign([f"net{i}" for i in range(5)], replace(PLAN, compiled=Compiled(1, 0.5, per_process=2))) == {"ok": 5}


def test_a_compilation_that_is_not_ready_in_time_is_interrupted_and_left_for_later(
    campaign, measures_once, monkeypatch
):
    monkeypatch.setattr(compiled, "_INTERRUPT_S", 300.0)
    measures_once(("begin", "fake:slow1"))
    assert campaign(["net1", "slow1"], replace(PLAN, compiled=Compiled(1, 0.5))) == {"ok": 1}


def test_a_process_that_cannot_be_interrupted_stands_still_and_is_measured_last(
    campaign, measures_once, tmp_path, monkeypatch
):
    monkeypatch.setattr(compiled, "_INTERRUPT_S", 0.1)
    measures_once(("begin", "fake:deaf1"), ("done", ""))  # the other one is done
    assert campaign(["deaf1", "net1"]) == {"ok": 2}
    assert [str(row["spec"]) for row in _rows(tmp_path / "out")] == ["fake:net1", "fake:deaf1"]


def test_workers_that_never_start_end_the_campaign(campaign):
    with pytest.raises(MeasurementError, match="No worker could start"):
        campaign(["net1"], command=(sys.executable, "-c", "raise SystemExit(1)"))


def test_the_plan_of_the_h200_has_one_small_inference_a_model():
    plan = read_plan(PLANS / "h200-compiled.toml")
    assert (plan.kind, plan.compiled.processes, plan.compiled.measure_share) == ("compiled", 14, 0.25)
    few = replace(plan, parts=tuple(replace(part, zoos=("synthetic",), models=40) for part in plan.parts))
    chosen = list(lay_out(few, ()))
    assert {selected.workload.batch_size for selected in chosen} == {1, 8, 32}
    assert {selected.workload.mode for selected in chosen} == {"inference"}
    assert {selected.workload.dtype for selected in chosen} == {"fp32", "fp16", "bf16"}
    assert len(chosen) > len({selected.workload.spec for selected in chosen}) * 0.9
    left = list(lay_out(few, {chosen[0].workload.id}))
    assert chosen[0].workload.id not in {selected.workload.id for selected in left}
