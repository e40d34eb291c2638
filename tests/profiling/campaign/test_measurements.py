import random
import signal
import subprocess
import sys
import time
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest

from foretell.errors import MeasurementError
from foretell.profiling.campaign import schedule
from foretell.profiling.campaign.journal import read_records, read_traces
from foretell.profiling.campaign.measurements import choose_again
from foretell.profiling.campaign.schedule import load_zoo

pytest.importorskip("pyarrow")
from fakes import fake_campaign


@pytest.fixture(autouse=True)
def _real_zoos_afterwards(monkeypatch):
    monkeypatch.setattr(schedule, "load_zoo", load_zoo)


def _measured(folder) -> Counter[str]:
    return Counter(str(line["workload_id"]) for line in read_records(folder) if line["kind"] == "measurement")


def _statuses(folder) -> Counter[str]:
    lines = [line for line in read_records(folder) if line["kind"] == "measurement"]
    return Counter(f"{str(line['spec']).partition(':')[2].rstrip('0123456789')} {line['status']}" for line in lines)


def _expected(names=fake_campaign.FakeZoo.names) -> int:
    """How many workloads the plan has: of few batch sizes, some are drawn twice."""
    groups = schedule.make_schedule(fake_campaign.PLAN).groups["fake"]
    assert len(groups) == len(names)
    return sum(group.target_count for group in groups)


def test_a_plan_is_measured_once_and_traced_in_part(tmp_path):
    campaign, rows = fake_campaign.run(tmp_path)
    assert rows["measurements"] == _expected() > 100
    assert set(_measured(tmp_path).values()) == {1}
    traced = {trace["workload_id"] for trace in read_traces(tmp_path)}
    assert 30 < len(traced) < 90
    energies = [line for line in read_records(tmp_path) if line.get("energy_j")]
    assert 30 < len(energies) < 90
    files = list(tmp_path.iterdir())
    assert len(files) <= 9
    assert {path.name for path in files} >= {"measurements.parquet", "kernels.parquet", "kernel_names.parquet"}
    assert campaign.counts["ok"] == _expected()


def test_deaths_hangs_and_broken_contexts_are_recorded_and_the_rest_goes_on(tmp_path):
    names = ["fine1", "crash1", "hang1", "poison1", "fallback1", "fine2"]
    _, rows = fake_campaign.run(tmp_path, names, plan=fake_campaign.IMPATIENT)
    counted = _statuses(tmp_path)
    assert counted["fine ok"] == 6
    assert counted["crash crash"] == 1
    assert counted["hang timeout"] == 1
    assert counted["poison cuda_error"] == 1
    assert counted["crash ok"] == counted["hang ok"] == counted["poison ok"] == 2
    assert counted["fallback ok"] == 3
    assert rows["measurements"] == _expected(names) == 18
    fallbacks = [line for line in read_records(tmp_path) if "fallback" in str(line.get("spec"))]
    assert {line["latency_source"] for line in fallbacks} == {"fallback"}
    assert {line["error"] for line in fallbacks} == {"The step waits."}


def test_skipping_continues_a_plan(tmp_path):
    first, second = tmp_path / "first", tmp_path / "second"
    fake_campaign.run(first, limit=20)
    done = set(_measured(first))
    assert 20 <= len(done) < 100
    tables = [first / "measurements.parquet", first / "kernels.parquet"]
    fake_campaign.run(second, skip=[table for table in tables if table.exists()])  # so soon, nothing may be traced yet
    assert not done & set(_measured(second))
    assert len(done | set(_measured(second))) == _expected()
    traced = [trace["workload_id"] for folder in (first, second) for trace in read_traces(folder)]
    assert len(traced) == len(set(traced))


def test_workloads_that_crashed_or_hung_are_retried_once(tmp_path):
    names = ["fine1", "crash1", "hang1"]
    first, second = tmp_path / "first", tmp_path / "second"
    fake_campaign.run(first, names, plan=fake_campaign.IMPATIENT)
    failed = [line for line in read_records(first) if line.get("status") in ("crash", "timeout")]
    assert len(failed) == 2
    assert fake_campaign.run(first, names)[0].counts == {}  # in its own journal it stays done
    fake_campaign.run(second, names, skip=[first], plan=fake_campaign.IMPATIENT)
    assert set(_measured(second)) == {line["workload_id"] for line in failed}
    assert fake_campaign.run(second, names, skip=[first])[0].counts == {}


def test_killed_at_random_moments_nothing_is_lost_or_doubled(tmp_path):
    script = str(Path(fake_campaign.__file__))
    draw, seen = random.Random(5), set()
    for _ in range(6):
        process = subprocess.Popen([sys.executable, script, str(tmp_path)], stderr=subprocess.DEVNULL)
        time.sleep(draw.uniform(0.25, 0.7))
        process.send_signal(signal.SIGKILL)
        process.wait()
        ids = set(_measured(tmp_path))
        assert seen <= ids
        seen = ids
    _, rows = fake_campaign.run(tmp_path)
    assert set(_measured(tmp_path).values()) == {1}
    assert rows["measurements"] == _expected()


def test_it_ends_in_time(tmp_path):
    names = [f"model{number}" for number in range(2_000)]
    began = time.monotonic() - 92.0
    _, rows = fake_campaign.run(tmp_path, names, seconds=112.0, began=began)  # four seconds are left to measure
    assert time.monotonic() - began < 112.0
    assert 0 < rows["measurements"] < 6_000


def test_workers_that_never_start_are_an_error(tmp_path, monkeypatch):
    monkeypatch.setattr(fake_campaign, "WORKER", (sys.executable, "-c", "raise SystemExit('no driver')"))
    with pytest.raises(MeasurementError, match=r"workers\.log"):
        fake_campaign.run(tmp_path)
    assert "no driver" in (tmp_path / "workers.log").read_text()


def _measured_rows() -> list[dict[str, object]]:
    return [
        {"workload_id": f"w{number}", "spec": f"timm:m{number // 2}", "batch_size": 1, "input_shape": "3x8x8"}
        | {"dtype": "fp32", "mode": "inference", "optimizer": "", "family": "m", "status": "ok" if number else "oom"}
        | {"energy_j": 1.0 if number % 4 == 1 else None}
        for number in range(40)
    ]


def test_workloads_are_chosen_again_with_energy_first_and_not_twice():
    rows = _measured_rows()
    groups = choose_again(rows, 12, set())
    again = [workload for group in groups for workload in group.workloads]
    assert len(again) == 12
    assert all(group.target_count == len(group.workloads) and group.part == "again" for group in groups)
    # ten have energy, all odd; the failed one is never chosen
    with_energy = {row["spec"] for row in rows if row["energy_j"]}
    assert sum(workload.spec in with_energy for workload in again) >= 10
    assert choose_again(rows, 12, {row["workload_id"] for row in rows}) == []


def test_workloads_that_were_repeated_are_chosen_last():
    rows = _measured_rows()
    groups = choose_again([*rows, *rows[:38]], 2, set())
    assert {group.spec for group in groups} == {rows[38]["spec"]}


def test_a_campaign_measures_again_what_an_earlier_one_has(tmp_path):
    _, first = fake_campaign.run(tmp_path / "first", ["fine1", "fine2", "fine3"])
    _, second = fake_campaign.run(tmp_path / "second", ["fine1", "fine2", "fine3"], skip=[tmp_path / "first"], again=4)
    assert second["measurements"] == 4 < first["measurements"]
    assert set(_measured(tmp_path / "second")) <= set(_measured(tmp_path / "first"))


def test_progress_is_reported_until_the_end(tmp_path):
    progress = []
    fake_campaign.run(tmp_path, on_progress=progress.append)
    assert progress[-1].finished == progress[-1].total == _expected()
    assert (progress[-1].left, progress[-1].failed, progress[-1].known) == (0, 0, 0)
    fake_campaign.run(tmp_path, on_progress=progress.append)
    assert (progress[-1].finished, progress[-1].known) == (0, _expected())


def test_parts_that_are_not_captured_are_traced_only(tmp_path):
    part = replace(fake_campaign.PLAN.parts[0], captured=False)
    plan = replace(fake_campaign.PLAN, parts=(part,))
    campaign, _ = fake_campaign.run(tmp_path, ["fine1", "fine2"], plan=plan)
    lines = [line for line in read_records(tmp_path) if line["kind"] == "measurement"]
    assert lines
    assert {line["latency_source"] for line in lines} == {"fallback"}
    assert campaign.counts["ok"] == len(lines)


def test_what_other_plans_measured_is_not_traced(tmp_path):
    names, untraced = ["fine1", "fine2", "fine3"], replace(fake_campaign.PLAN.measuring, trace_share=0.0)
    fake_campaign.run(tmp_path / "first", names, plan=replace(fake_campaign.PLAN, measuring=untraced))
    all_traced = replace(fake_campaign.PLAN, measuring=replace(untraced, trace_share=1.0))
    foreign = replace(all_traced, parts=(replace(fake_campaign.PLAN.parts[0], name="another"),))
    for plan, count in ((all_traced, len(_measured(tmp_path / "first"))), (foreign, 0)):
        out = tmp_path / plan.parts[0].name
        fake_campaign.run(out, names, skip=[tmp_path / "first"], plan=plan)
        assert len({trace["workload_id"] for trace in read_traces(out)}) == count
