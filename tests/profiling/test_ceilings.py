"""What a machine reaches: measured small on this processor, and by a device of which the times are known."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace

import pytest

from foretell.errors import MeasurementError
from foretell.profiling import ceilings as ceilings_measured
from foretell.profiling.ceilings import Bench, check_whole_device, largest_cache, measure_ceilings
from foretell.profiling.jit_kernels import Loop


def test_ceilings_of_this_processor_are_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("torch")
    monkeypatch.setattr(ceilings_measured, "largest_cache", lambda folder: 2**20)
    ceilings = measure_ceilings("cpu", budget_s=0.2, max_bytes=2**23)
    assert ceilings.dram_gb_per_s is not None
    assert ceilings.cache_gb_per_s is not None
    assert 0.1 < ceilings.dram_gb_per_s < 10_000
    assert ceilings.tflops["fp32"] > 0
    assert ceilings.product_sizes["fp32"] >= 512
    assert ceilings.dram_set_mib in (4, 8)
    assert ceilings.cache_set_mib in (0.125, 0.25, 0.5)
    assert "tf32" not in ceilings.tflops, "a processor has none"
    assert (ceilings.l1_gb_per_s, ceilings.plain_tflops) == (None, {})


def test_arrays_that_fit_into_the_cache_give_no_memory_bandwidth(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("torch")
    monkeypatch.setattr(ceilings_measured, "largest_cache", lambda folder: 2**23)
    monkeypatch.setattr(Bench, "best_product", lambda *options: None)
    ceilings = measure_ceilings("cpu", budget_s=0.05, max_bytes=2**23)
    assert ceilings.dram_gb_per_s is None
    assert ceilings.tflops == {}


def test_devices_that_are_not_there_are_refused() -> None:
    torch = pytest.importorskip("torch")
    with pytest.raises(MeasurementError, match="Choose from: cuda, cpu"):
        measure_ceilings("tpu")
    if not torch.cuda.is_available():
        with pytest.raises(MeasurementError, match="--device cpu"):
            measure_ceilings("cuda")


def test_a_slice_is_not_taken_for_the_full_device() -> None:
    with pytest.raises(MeasurementError, match="26 of the 132 SMs of h200"):
        check_whole_device("NVIDIA H200", 26)
    check_whole_device("NVIDIA H200", 132)
    check_whole_device("NVIDIA Unheard-of", 7)


def test_the_largest_cache_counts(tmp_path: Path) -> None:
    for row, text in enumerate(("32K", "1024K", "33M", "odd")):
        (tmp_path / f"index{row}").mkdir()
        (tmp_path / f"index{row}" / "size").write_text(text + "\n", encoding="utf-8")
    assert largest_cache(tmp_path) == 33 * 2**20
    assert largest_cache(tmp_path / "absent") == 2 * 2**20


class FakeCuda:
    """A clock that moves by known steps: 2 ms a launch of its own, 1 ms where a graph is replayed."""

    def __init__(self) -> None:
        self.now_ms = 0.0
        self.captured = 0
        self.capturing = False
        self.replays = 0

    def launch(self) -> None:
        if self.capturing:
            self.captured += 1
        else:
            self.now_ms += 0.002

    def Event(self, enable_timing: bool) -> SimpleNamespace:  # noqa: N802 as torch has it
        event = SimpleNamespace(at=0.0)
        event.record = lambda: setattr(event, "at", self.now_ms)
        event.synchronize = lambda: None
        event.elapsed_time = lambda other: other.at - event.at
        return event

    def CUDAGraph(self) -> SimpleNamespace:  # noqa: N802 as torch has it
        def replay() -> None:
            self.replays += 1
            self.now_ms += 0.001 * self.captured

        return SimpleNamespace(replay=replay)

    @contextmanager
    def graph(self, graph: object) -> Iterator[None]:
        self.capturing = True
        yield
        self.capturing = False

    def synchronize(self) -> None: ...


def fastest(cuda: FakeCuda, run: Callable[[], object]) -> float:
    return Bench(SimpleNamespace(cuda=cuda), "cuda").fastest(run, 0.0)


def test_short_runs_are_timed_as_a_graph_by_events() -> None:
    cuda = FakeCuda()
    assert fastest(cuda, cuda.launch) == pytest.approx(1e-6)
    assert cuda.captured > 100
    assert cuda.replays >= 4


def test_long_runs_are_timed_one_by_one() -> None:
    cuda = FakeCuda()

    def slow() -> None:
        cuda.now_ms += 50.0

    assert fastest(cuda, slow) == pytest.approx(0.05)
    assert cuda.captured == 0


class FakeLoops(Bench):
    """A device whose loops take a second of which the work is known."""

    def fastest(self, run: Callable[[], object], budget_s: float) -> float:
        run()
        return 1.0


def loops(monkeypatch: pytest.MonkeyPatch, make: Callable[..., object], cache_per_s: float) -> tuple[object, object]:
    properties = SimpleNamespace(multi_processor_count=2)
    torch = SimpleNamespace(cuda=SimpleNamespace(get_device_properties=lambda number: properties))
    monkeypatch.setattr(ceilings_measured, "load_loop", make)
    monkeypatch.setattr(ceilings_measured, "half_loop", make)
    return FakeLoops(torch, "cuda").loops(0.0, cache_per_s)


def test_l1_and_plain_fp16_are_the_work_of_loops_a_second(monkeypatch: pytest.MonkeyPatch) -> None:
    def make(torch: object, sms: int) -> Loop:
        return Loop(lambda: None, 100.0 * sms)

    assert loops(monkeypatch, make, 150.0) == (200.0, 200.0)
    assert loops(monkeypatch, make, 250.0) == (None, 200.0), "slower than the L2: these loads did not come from L1"


@pytest.mark.parametrize("error", [AttributeError("no jiterator"), RuntimeError("no such instruction")])
def test_loops_that_cannot_run_give_no_ceiling(monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
    def make(torch: object, sms: int) -> Loop:
        raise error

    assert loops(monkeypatch, make, 0.0) == (None, None)
