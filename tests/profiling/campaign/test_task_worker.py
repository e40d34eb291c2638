"""One worker for many tasks."""

import sys
import time
from pathlib import Path

import pytest

from foretell.errors import MeasurementError
from foretell.profiling.campaign.schedule import Group
from foretell.profiling.campaign.task_worker import TaskWorker
from foretell.profiling.workload import Workload

WORKER = (sys.executable, str(Path(__file__).parents[2] / "fakes" / "quick_worker.py"))


@pytest.fixture
def task_worker(tmp_path):
    made = TaskWorker(tmp_path, {"device": "cpu"}, WORKER, timeout_s=3.0, number=7)
    yield made
    made.close()


def measure(task_worker, name, *, trace=False):
    workload = Workload(f"synthetic:{name}", 1, (4,), "fp32")
    group = Group("p", workload.spec, (workload,), 1)
    return task_worker.measure(group, energy=False, trace=trace, stop_at=time.monotonic() + 600)


def test_a_worker_outlives_its_tasks_and_its_death_ends_one(task_worker):
    assert measure(task_worker, "fine").status == "ok"
    traced = measure(task_worker, "fine", trace=True)
    assert (traced.status, traced.kernels["name"]) == ("ok", ["gemm"])
    crashed = measure(task_worker, "crash")
    assert (crashed.status, crashed.values["error"]) == ("crash", "exit code -6")
    assert measure(task_worker, "hang").status == "timeout"
    assert measure(task_worker, "fails", trace=True).to_json()["kernels"] is None
    fallback = measure(task_worker, "fallback")
    assert (fallback.status, fallback.values["latency_source"]) == ("ok", "fallback")
    assert fallback.values["error"] == "The step waits."


def test_a_worker_that_never_starts_is_an_error(tmp_path):
    task_worker = TaskWorker(tmp_path, {}, (sys.executable, "-c", "raise SystemExit(4)"), timeout_s=600)
    with pytest.raises(MeasurementError, match="code 4"):
        measure(task_worker, "fine")
    task_worker.close()
