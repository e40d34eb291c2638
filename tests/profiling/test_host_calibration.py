"""Measuring a host: the same steps as on the reference host, medians, bounded, and nothing claimed without CUDA."""

import itertools

import pytest

torch = pytest.importorskip("torch")

from foretell.errors import MeasurementError
from foretell.profiling import host_calibration
from foretell.profiling.host_calibration import PROBES, Probe, measure_host, time_runs
from foretell.profiling.workload import Workload

LENET = "synthetic:lenet?act=relu&scale=1"


class Clock:
    """Time that passes only while a step runs or is waited for."""

    def __init__(self, launching_ms, waiting_ms):
        self.now_s = 0.0
        self.launching_ms, self.waiting_ms = itertools.cycle(launching_ms), waiting_ms
        self.runs = 0

    def perf_counter(self):
        return self.now_s

    def run(self):
        self.runs += 1
        self.now_s += next(self.launching_ms) / 1000

    def synchronise(self):
        self.now_s += self.waiting_ms / 1000


@pytest.fixture
def timed(monkeypatch):
    def measure(launching_ms, waiting_ms=0.0):
        clock = Clock(launching_ms, waiting_ms)
        monkeypatch.setattr(host_calibration, "time", clock)
        return time_runs(clock.run, clock.synchronise), clock.runs

    return measure


def test_one_slow_run_does_not_count(timed):
    (total_ms, waited_ms), runs = timed([2.0, 2.0, 2.0, 90.0, 2.0, 2.0], 0.5)
    assert total_ms == pytest.approx(2.5)
    assert waited_ms == pytest.approx(0.5)
    assert runs <= 5 + 21


def test_slow_steps_are_run_three_times_and_no_more(timed):
    _, runs = timed([500.0])
    assert runs == 5 + 3


@pytest.fixture
def with_cuda(monkeypatch):
    """Probes run on the CPU as if it were a device that finishes when the launch returns."""
    real = host_calibration._time_probe
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(host_calibration, "measure_dispatch_us", lambda _: 1.5)
    monkeypatch.setattr(host_calibration, "_time_probe", lambda torch, _, workload: real(torch, "cpu", workload))


def probe(batch, dtype="fp32", optimizer=""):
    return Probe(Workload(LENET, batch, (1, 28, 28), dtype, "training" if optimizer else "inference", optimizer), 1.0)


def test_ratios_come_by_mode(with_cuda):
    speed = measure_host("cuda", [probe(1), probe(2), probe(3), probe(1, optimizer="sgd")])
    assert (len(speed.inference), len(speed.training)) == (3, 1)
    assert all(ratio > 0 for ratio in (*speed.inference, *speed.training))
    assert speed.dispatch_us == 1.5
    assert speed.host
    assert speed.torch == torch.__version__


def test_probes_that_fail_or_wait_for_the_device_do_not_count(monkeypatch, with_cuda):
    def time_probe(_torch, _device, workload):
        if workload.dtype == "bf16":
            raise RuntimeError("no kernel for bf16")
        return (4.0, 3.0) if workload.batch_size == 9 else (4.0, 0.1)

    monkeypatch.setattr(host_calibration, "_time_probe", time_probe)
    usual = [probe(1), probe(2), probe(3)]
    assert measure_host("cuda", [*usual, probe(4, "bf16"), probe(9)]).inference == (4.0, 4.0, 4.0)
    with pytest.raises(MeasurementError, match="Only 2 of the probes"):
        measure_host("cuda", [*usual[:2], probe(4, "bf16"), probe(9)])


def test_measuring_ends_when_its_time_is_up(monkeypatch, with_cuda):
    monkeypatch.setattr(host_calibration, "_TOTAL_BUDGET_S", -1.0)
    with pytest.raises(MeasurementError, match="Only 0"):
        measure_host("cuda", [probe(1)] * 5)


def test_without_cuda_only_the_dispatch_is_measured(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(host_calibration, "_DISPATCHES", 20)
    speed = measure_host()
    assert speed.device == "cpu"
    assert speed.dispatch_us > 0
    assert speed.inference == speed.training == ()


@pytest.mark.parametrize(("device", "message"), [("cuda", "--device cpu"), ("tpu", "Choose from: cuda, cpu")])
def test_a_device_that_is_not_there_is_refused(monkeypatch, device, message):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(MeasurementError, match=message):
        measure_host(device)


def test_every_probe_can_be_built_and_both_modes_have_enough():
    from foretell.profiling.zoos.registry import build

    modes = [entry.workload.mode for entry in PROBES]
    assert min(modes.count("inference"), modes.count("training")) > host_calibration.MIN_PROBES
    assert len({entry.workload.id for entry in PROBES}) == len(PROBES)
    for tried_probe in PROBES:
        assert build(tried_probe.workload.spec).model is not None


@pytest.mark.gpu
def test_a_real_device_is_measured():
    speed = measure_host("cuda")
    assert len(speed.inference) >= host_calibration.MIN_PROBES
    assert all(0.05 < ratio < 20 for ratio in speed.inference)
