"""The GPU's runtime against a device that is not there: the order of calls and the arithmetic, not the hardware."""

import pytest

torch = pytest.importorskip("torch")

from foretell.errors import MeasurementError
from foretell.processes.device_lock import DeviceLock
from foretell.profiling.campaign.plan import Measuring
from foretell.profiling.runtimes.cuda import CaptureError, CudaRuntime
from foretell.profiling.steps import Step
from foretell.profiling.trackers.kernels import KernelTable


class FakeDevice:
    """A clock that every run and every replay moves on."""

    def __init__(self):
        self.now_ms = 0.0
        self.replay_ms = [2.0]
        self.replays = 0
        self.capturing = False
        self.sync_mode = "default"
        self.log: list[str] = []

    def replay(self):
        self.now_ms += self.replay_ms[self.replays % len(self.replay_ms)]
        self.replays += 1


@pytest.fixture
def device(monkeypatch):
    fake = FakeDevice()

    class Graph:
        def capture_begin(self):
            fake.capturing = True

        def capture_end(self):
            fake.capturing = False

        def replay(self):
            fake.replay()

        def reset(self):
            fake.log.append("reset")

    class Event:
        def __init__(self, **_kwargs):
            self.at = 0.0

        def record(self):
            self.at = fake.now_ms

        def synchronize(self):
            pass

        def elapsed_time(self, other):
            return other.at - self.at

    replacements = {
        "init": lambda: None, "set_stream": lambda _: None, "Stream": object, "synchronize": lambda: None,
        "empty_cache": lambda: fake.log.append("empty"), "CUDAGraph": Graph, "Event": Event,
        "memory_allocated": lambda: 10 * 2**20, "memory_reserved": lambda: 20 * 2**20,
        "max_memory_allocated": lambda: 30 * 2**20, "max_memory_reserved": lambda: 40 * 2**20,
        "reset_peak_memory_stats": lambda: fake.log.append("reset peaks"),
        "set_sync_debug_mode": lambda mode: setattr(fake, "sync_mode", mode),
    }  # fmt: skip
    for name, replacement in replacements.items():
        monkeypatch.setattr(torch.cuda, name, replacement)
    monkeypatch.setattr(torch._C, "_cuda_clearCublasWorkspaces", lambda: fake.log.append("workspaces"), raising=False)
    monkeypatch.setattr(CudaRuntime, "device", "cpu")
    return fake


@pytest.fixture
def runtime(device, tmp_path):
    device_lock = DeviceLock(tmp_path, 0)
    device_lock.open()
    opened = CudaRuntime(device_lock, Measuring())
    opened.open(tracing=False)
    return opened


def _step(run=lambda: torch.ones(2)):
    return Step(run, lambda: None)


def test_memory_is_the_peak_over_the_warm_ups(runtime, device):
    runs = []
    runtime.clear()
    record, cost = runtime.warm_up(_step(lambda: runs.append(1) or torch.ones(2)), 5)
    assert len(runs) == 5
    assert (record["memory_mib"], record["reserved_mib"], record["baseline_mib"]) == (30.0, 40.0, 10.0)
    assert record["output_finite"] is True
    assert cost.peak_bytes == 20 * 2**20
    assert device.log[:2] == ["workspaces", "empty"]


def test_latency_is_the_median_replay(runtime, device):
    record = runtime.measure(_step(), energy=True)
    assert record["latency_ms"] == 2.0
    assert (record["latency_source"], record["repeats"], record["tries"], record["noisy"]) == (
        "cuda-graph",
        20,
        1,
        False,
    )
    assert record["host_runs"] >= 3
    assert "power_w" not in record  # without a driver there is no energy, and that is no failure
    assert device.log[-1] == "reset"
    assert device.sync_mode == "default"


def test_short_replays_are_repeated_more_often(runtime, device):
    device.replay_ms = [0.5]
    assert runtime.measure(_step(), energy=False)["repeats"] == 80


def test_noisy_timings_are_repeated_and_then_reported(runtime, device):
    device.replay_ms = [2.0, 3.0]
    record = runtime.measure(_step(), energy=False)
    assert (record["tries"], record["noisy"]) == (3, True)
    assert record["latency_cv"] > 0.05


def test_a_step_that_waits_for_the_device_is_not_captured(runtime, device):
    def run():
        if device.sync_mode == "error":
            raise RuntimeError("called a synchronizing CUDA operation")

    with pytest.raises(CaptureError, match="waits"):
        runtime.measure(_step(run), energy=False)
    assert device.sync_mode == "default"
    assert device.replays == 0


def test_a_failed_capture_is_ended_and_named(runtime, device):
    def run():
        if device.capturing:
            raise RuntimeError("operation not permitted when stream is capturing")

    with pytest.raises(CaptureError, match="not permitted"):
        runtime.measure(_step(run), energy=False)
    assert not device.capturing


def test_out_of_memory_while_capturing_stays_out_of_memory(runtime, device):
    def run():
        if device.capturing:
            raise torch.cuda.OutOfMemoryError("CUDA out of memory")

    with pytest.raises(torch.cuda.OutOfMemoryError):
        runtime.measure(_step(run), energy=False)


def test_other_errors_are_not_mistaken_for_waiting(runtime):
    def run():
        raise RuntimeError("CUDA error: an illegal memory access was encountered")

    with pytest.raises(RuntimeError, match="illegal"):
        runtime.measure(_step(run), energy=False)


def test_without_capture_latency_is_the_sum_of_kernels(runtime, monkeypatch):
    tables = [KernelTable(name=["a", "b"], duration_us=[1000.0, 500.0]) for _ in range(5)]
    monkeypatch.setattr(runtime, "trace", lambda *_: tables)
    record, table = runtime.measure_uncaptured(_step(), torch.nn.Identity())
    assert (record["latency_ms"], record["latency_source"], record["noisy"]) == (1.5, "kernel-sum", False)
    assert table is tables[-1]
    monkeypatch.setattr(runtime, "trace", lambda *_: [KernelTable()])
    with pytest.raises(MeasurementError, match="no kernels"):
        runtime.measure_uncaptured(_step(), torch.nn.Identity())


def test_energy_is_power_times_the_time_of_a_replay(runtime, monkeypatch):
    from foretell.profiling.runtimes import cuda as runtime_cuda
    from foretell.profiling.trackers.nvml import Energy

    def measure(_nvml, replay_for, seconds):
        assert replay_for(0.01)[0] > 0
        return Energy(power_w=500.0, window_s=seconds, run_ms=2.0, runs=500)

    monkeypatch.setattr(runtime_cuda, "measure_energy", measure)
    monkeypatch.setattr(runtime, "_has_nvml", True)
    monkeypatch.setattr(runtime._nvml, "clock_mhz", lambda: 1980)
    record = runtime.measure(_step(), energy=True)
    assert record["energy_j"] == pytest.approx(1.0)
    assert (record["power_w"], record["clock_mhz"]) == (500.0, 1980)


def test_health(runtime, device, monkeypatch):
    assert runtime.healthy()
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda: 2**30)
    assert not runtime.healthy()
