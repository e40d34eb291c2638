import os
import sys
import time
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest

from foretell.errors import MeasurementError
from foretell.profiling.campaign.job import Job
from foretell.profiling.campaign.journal import read_records, read_traces
from foretell.profiling.campaign.plan import Limits, Occupancy, Part, Plan, Selection, read_plan
from foretell.profiling.campaign.schedule import make_schedule
from lab.campaigns import occupancy
from small.measured import row, write

pytest.importorskip("torch")

PART = Part(
    "tiny", 1.0, ("synthetic",), dtypes=("fp32",), batch_sizes=(1, 2), first_batch_sizes=(1,), per_model=1, models=6,
    families=("synthetic-lenet",),
)  # fmt: skip
PLAN = Plan(
    seed=3,
    parts=(PART,),
    kind="occupancy",
    limits=Limits(timeout_s=600.0),
    occupancy=Occupancy(kernels_max=900, processes=2, per_process=3),
)
ALL = len(make_schedule(PLAN))

# A worker that behaves as its workloads' number says, without torch: the choreography alone.
FAKE_WORKER = """
import json, os, sys, time
settings = json.load(open(sys.argv[1]))
out = open(settings["events"], "a")
def say(**event):
    out.write(json.dumps(event | {"at": time.monotonic()}) + "\\n")
    out.flush()
say(event="pid", pid=os.getpid())
mode = os.environ.get("FAKE_WORKER", "")
from foretell.profiling.workload import workload_from_json
for group in settings["groups"]:
    workload = workload_from_json(group["workloads"][0])
    say(event="begin", id=workload.id)
    odd = int(workload.id, 16) % 3 == 0
    if mode == "crash" and odd:
        os._exit(139)
    if mode == "hang" and odd:
        time.sleep(600)
    if mode == "oom" and odd:
        say(event="record", id=workload.id, status="oom", error="OutOfMemoryError")
        continue
    say(event="open", id=workload.id)
    say(event="close", id=workload.id, profile_s=0.25, calls=[0, 1, 0])
say(event="done")
"""


@pytest.fixture
def fakes(monkeypatch, tmp_path):
    tools = tmp_path / "tools"
    tools.mkdir()
    ncu = tools / "ncu"
    fake = Path(__file__).parents[3] / "tests" / "fakes" / "fake_ncu.py"
    ncu.write_text(f'#!/bin/sh\nexec {sys.executable} {fake} "$@"\n', encoding="utf-8")
    ncu.chmod(0o755)
    (tools / "fake_worker.py").write_text(FAKE_WORKER, encoding="utf-8")
    monkeypatch.setenv("PATH", str(tools), prepend=os.pathsep)
    monkeypatch.setattr(occupancy, "WORKER", (str(tools / "fake_worker.py"),))
    return monkeypatch


def _run(out, *, plan=PLAN, seconds=600.0, began=None, skip=(), limit=0):
    return occupancy.run(Job(plan, out, "cpu", seconds, began or time.monotonic(), tuple(skip), "", limit))


def _records(out):
    return [line for line in read_records(out) if line["kind"] == "occupancy"]


def test_every_workload_is_counted_once_and_means_are_right(fakes, tmp_path):
    counts = _run(tmp_path / "out")
    records = _records(tmp_path / "out")
    assert counts["ok"] == len(records) == ALL
    assert set(Counter(line["workload_id"] for line in records).values()) == {1}
    record = records[0]
    assert (record["kernels"], record["kernel_ms"], record["profile_s"]) == (3, 0.007, 0.25)
    assert record["occupancy_mean"] == pytest.approx(110 / 3)
    assert record["occupancy_weighted"] == pytest.approx(230 / 7)
    traces = list(read_traces(tmp_path / "out"))
    assert {trace["workload_id"] for trace in traces} == {line["workload_id"] for line in records}
    assert traces[0]["kind"] == "occupancy_kernels"
    assert traces[0]["kernels"]["name"] == ["a", "b", "a"]  # the third call repeats the first


def test_a_finished_folder_is_not_counted_again(fakes, tmp_path):
    assert _run(tmp_path / "one", limit=2)["ok"] >= 2
    first = {line["workload_id"] for line in _records(tmp_path / "one")}
    counts = _run(tmp_path / "two", skip=[tmp_path / "one"])
    assert counts["ok"] == ALL - len(first)
    assert not first & {line["workload_id"] for line in _records(tmp_path / "two")}
    assert "ok" not in _run(tmp_path / "two", skip=[tmp_path / "one"])


@pytest.mark.parametrize(("mode", "status"), [("crash", "crash"), ("hang", "timeout"), ("oom", "oom")])
def test_what_goes_wrong_is_recorded_and_the_rest_is_counted(fakes, tmp_path, mode, status):
    fakes.setenv("FAKE_WORKER", mode)
    four = replace(PLAN.occupancy, processes=4)
    counts = _run(tmp_path / "out", plan=replace(PLAN, limits=Limits(timeout_s=3.0), occupancy=four))
    odd = {line["workload_id"] for line in _records(tmp_path / "out") if int(str(line["workload_id"]), 16) % 3 == 0}
    assert odd
    assert {line["workload_id"] for line in _records(tmp_path / "out") if line["status"] == status} == odd
    assert counts["ok"] == ALL - len(odd)


def test_a_profiler_that_may_not_count_ends_the_campaign_with_its_reason(fakes, tmp_path):
    fakes.setenv("FAKE_NCU", "refuse")
    with pytest.raises(MeasurementError, match="ERR_NVGPUCTRPERM"):
        _run(tmp_path / "out")


def test_a_torn_table_loses_only_its_last_range_which_is_counted_again(fakes, tmp_path):
    fakes.setenv("FAKE_NCU", "torn")
    counts = _run(tmp_path / "out")
    assert counts["ok"] >= ALL // 2
    assert counts["ok"] + counts.get("crash", 0) == ALL


def test_everything_has_ended_by_the_deadline(fakes, tmp_path):
    fakes.setenv("FAKE_WORKER", "hang")
    began = time.monotonic() - 51.0  # a long campaign near its end has more seconds in reserve than a short one
    _run(tmp_path / "out", seconds=60.0, began=began)
    assert time.monotonic() < began + 60.0
    assert next(read_records(tmp_path / "out"))["kind"] == "campaign"


def test_the_real_worker_uses_the_same_protocol(fakes, tmp_path):
    fakes.setattr(occupancy, "WORKER", ("-m", "foretell.profiling.runtimes.counted_worker"))
    plan = replace(PLAN, parts=(replace(PART, models=2),), occupancy=replace(PLAN.occupancy, processes=1))
    assert _run(tmp_path / "out", plan=plan)["ok"] == len(make_schedule(plan)) > 1


def test_training_steps_are_counted_without_repeated_calls(fakes, tmp_path):
    fakes.setattr(occupancy, "WORKER", ("-m", "foretell.profiling.runtimes.counted_worker"))
    part = replace(PART, models=1, modes=("training",), optimizers=("sgd",))
    plan = replace(PLAN, parts=(part,), occupancy=replace(PLAN.occupancy, processes=1))
    assert _run(tmp_path / "out", plan=plan)["ok"] == len(make_schedule(plan))


def test_named_models_are_counted_beside_measured_ones(tmp_path):
    specs = [group.spec for group in make_schedule(PLAN).groups["tiny"]]
    write(tmp_path / "measured", [row(specs[0], part="tiny"), row(specs[1], part="tiny")])
    named = replace(PART, name="named", specs=(specs[2],))
    plan = replace(PLAN, parts=(PART, named), selection=Selection((str(tmp_path / "measured"),)))
    campaign = occupancy.OccupancyCampaign(Job(plan, tmp_path / "out", "cpu", 60.0, time.monotonic()))
    groups = campaign._lay_out().groups
    assert {group.spec for group in groups["tiny"]} == set(specs[:2])
    assert [(group.spec, group.target_count) for group in groups["named"]] == [(specs[2], 2)]


@pytest.mark.parametrize("name", ["h200-occupancy", "h200-occupancy-2"])
def test_the_plans_of_the_repository_can_be_read(name):
    plan = read_plan(Path(__file__).parents[3] / "plans" / f"{name}.toml")
    assert plan.kind == "occupancy"
    assert plan.occupancy.processes > 1


def test_what_the_second_plan_names_is_measured_and_traced_by_its_companion():
    plans = [read_plan(Path(__file__).parents[3] / "plans" / f"h200-occupancy-2{end}.toml") for end in ("", "-traces")]
    counted, traced = (tuple(part for part in plan.parts if part.specs) for plan in plans)
    assert [replace(part, share=1.0) for part in counted] == [replace(part, share=1.0) for part in traced]
    assert plans[1].measuring.trace_share == 1.0
