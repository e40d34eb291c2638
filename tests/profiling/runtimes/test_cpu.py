import itertools

import pytest

torch = pytest.importorskip("torch")

from foretell.processes.device_lock import DeviceLock
from foretell.profiling.campaign.plan import Measuring
from foretell.profiling.runtimes import cpu as runtime_cpu
from foretell.profiling.runtimes.cpu import CpuRuntime
from foretell.profiling.steps import Step


class Clock:
    """Time that passes only while a step runs."""

    def __init__(self, durations_ms):
        self.now_s = 0.0
        self.durations_ms = itertools.cycle(durations_ms)
        self.runs = 0

    def perf_counter(self):
        return self.now_s

    def run(self):
        self.runs += 1
        self.now_s += next(self.durations_ms) / 1000


@pytest.fixture
def measure(tmp_path, monkeypatch):
    device_lock = DeviceLock(tmp_path, 0)
    device_lock.open()

    def run(durations_ms):
        clock = Clock(durations_ms)
        monkeypatch.setattr(runtime_cpu, "time", clock)
        runtime = CpuRuntime(device_lock, Measuring(replays=3, tries=3, max_cv=0.05))
        return runtime.measure(Step(clock.run, lambda: None), energy=False), clock

    return run


def test_a_steady_step_is_timed_once(measure):
    record, clock = measure([2.0])
    assert clock.runs == 3
    assert (record["tries"], record["repeats"], record["noisy"]) == (1, 3, False)
    assert record["latency_ms"] == record["host_latency_ms"] == pytest.approx(2.0)
    assert record["alone_s"] == pytest.approx(0.006)


def test_the_steadiest_of_noisy_tries_is_kept(measure):
    record, clock = measure([1.0, 5.0, 9.0, 4.0, 5.0, 6.0, 1.0, 7.0, 30.0])
    assert clock.runs == 9
    assert (record["tries"], record["noisy"]) == (3, True)
    assert record["latency_min_ms"] == pytest.approx(4.0)
    assert record["latency_cv"] == pytest.approx(0.2)


def test_warming_up_runs_as_often_as_asked_and_looks_at_the_output(tmp_path):
    device_lock = DeviceLock(tmp_path, 0)
    device_lock.open()
    layer, runs = torch.nn.Linear(4, 2), []

    def run():
        runs.append(1)
        return layer(torch.full((1, 4), float("inf")))

    record, cost = CpuRuntime(device_lock, Measuring()).warm_up(Step(run, lambda: None), 3)
    assert len(runs) == 3
    assert record["output_finite"] is False
    assert record["process_peak_mib"] > 10
    assert cost.macs == 8  # of one run, not of three
