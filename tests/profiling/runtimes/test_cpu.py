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

    def run(durations_ms, reference_ms=None, **measuring):
        clock = Clock(durations_ms)
        monkeypatch.setattr(runtime_cpu, "time", clock)
        if reference_ms is not None:
            beside = itertools.cycle(reference_ms)

            def take_reference(_):
                clock.now_s += next(beside) / 1000

            monkeypatch.setattr(runtime_cpu.Reference, "__init__", lambda _: None)
            monkeypatch.setattr(runtime_cpu.Reference, "run", take_reference)
        settings = Measuring(**({"replays": 3, "tries": 3, "max_cv": 0.05} | measuring))
        runtime = CpuRuntime(device_lock, settings, reference=reference_ms is not None)
        return runtime.measure(Step(clock.run, lambda: None), energy=False), clock

    return run


def test_a_steady_step_is_timed_in_one_try(measure):
    record, clock = measure([20.0])
    assert clock.runs == 3
    assert (record["tries"], record["repeats"], record["noisy"]) == (1, 3, False)
    assert record["latency_ms"] == record["host_latency_ms"] == pytest.approx(20.0)
    assert record["alone_s"] == pytest.approx(0.06)
    assert "reference_ms" not in record


def test_the_steadiest_of_noisy_tries_is_kept(measure):
    record, clock = measure([10.0, 50.0, 90.0, 40.0, 50.0, 60.0, 10.0, 70.0, 300.0])
    assert clock.runs == 9
    assert (record["tries"], record["noisy"]) == (3, True)
    assert record["latency_min_ms"] == pytest.approx(40.0)
    assert record["latency_cv"] == pytest.approx(0.2)


def test_a_fast_step_runs_often_in_a_round_and_its_median_counts(measure):
    # the first run of a round is slow: the reference has taken its place in the caches
    record, clock = measure([0.9, 9.0, 0.9, 0.9, 0.9, 0.9, 9.0, 0.9, 0.9, 0.9, 0.9])
    assert clock.runs == 1 + 5 + 5
    assert record["latency_ms"] == pytest.approx(0.9)
    assert record["repeats"] == 11
    assert record["latency_cv"] == pytest.approx(0.0)


def test_the_reference_is_timed_between_the_rounds(measure):
    # the first of two only warms the caches
    record, _ = measure([20.0], reference_ms=[9.0, 0.2, 9.0, 0.5, 9.0, 0.3])
    assert record["reference_ms"] == pytest.approx(0.3)
    assert record["latency_ms"] == pytest.approx(20.0)


def test_no_round_begins_after_the_longest_time_but_three_are_taken(measure):
    assert measure([20.0], longest_s=0.1, replays=50)[1].runs == 6
    assert measure([20.0], longest_s=0.001, replays=50)[1].runs == 3


def test_the_reference_is_a_product_of_matrices():
    reference = runtime_cpu.Reference()
    assert torch.allclose(reference._out, reference._left @ reference._right, rtol=1e-4)


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
