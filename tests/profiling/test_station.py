"""One worker for many tasks."""

import sys
import time
from pathlib import Path

import pytest

from foretell.errors import MeasurementError
from foretell.profiling.schedule import Group
from foretell.profiling.station import Station
from foretell.profiling.workload import Workload

WORKER = (sys.executable, str(Path(__file__).parents[1] / "workflows" / "quick_worker.py"))


@pytest.fixture
def station(tmp_path):
    made = Station(tmp_path, {"device": "cpu"}, WORKER, timeout_s=3.0, number=7)
    yield made
    made.close()


def measure(station, name, *, trace=False):
    workload = Workload(f"synthetic:{name}", 1, (4,), "fp32")
    group = Group("p", workload.spec, (workload,), 1)
    return station.measure(group, energy=False, trace=trace, stop_at=time.time() + 600)


def test_a_worker_outlives_its_tasks_and_its_death_ends_one(station):
    assert measure(station, "fine").status == "ok"
    traced = measure(station, "fine", trace=True)
    assert (traced.status, traced.kernels["name"]) == ("ok", ["gemm"])
    crashed = measure(station, "crash")
    assert (crashed.status, crashed.values["error"]) == ("crash", "exit code -6")
    assert measure(station, "hang").status == "timeout"
    assert measure(station, "fails", trace=True).to_json()["kernels"] is None
    fallback = measure(station, "fallback")
    assert (fallback.status, fallback.values["latency_source"]) == ("ok", "fallback")
    assert fallback.values["error"] == "The step waits."


def test_a_worker_that_never_starts_is_an_error(tmp_path):
    station = Station(tmp_path, {}, (sys.executable, "-c", "raise SystemExit(4)"), timeout_s=600)
    with pytest.raises(MeasurementError, match="code 4"):
        measure(station, "fine")
    station.close()
