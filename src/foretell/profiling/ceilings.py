"""Profiling: the empirical roofline: the rates that memory, last-level cache and arithmetic of this machine reach.

After C. Yang et al., Hierarchical roofline performance analysis for deep learning applications, 2021: streaming copies
and triads over buffers much larger than the last-level cache for the memory, over buffers that fit into it for the
cache, and large square matrix products by number format. Bytes are counted as STREAM counts them: each operand once.
The time of an empty launch is subtracted, because reading a cache takes a few microseconds. The best repeat counts.
On NVIDIA GPUs two loops add what no operator of PyTorch reaches alone: fp16 without tensor cores, and loads from L1.
"""

import os
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from foretell.devices import find_device
from foretell.errors import DeviceError, MeasurementError
from foretell.optional import require
from foretell.profiling.environment import describe
from foretell.profiling.jit_kernels import Loop, half_loop, load_loop
from foretell.profiling.runtimes.cpu import Reference
from foretell.units import GIGA, KIB, MIB, TERA, bytes_from_mib, mib, ms, seconds_from_ms

DEVICES = ("cuda", "cpu")
BUDGET_S = 20.0
# working sets, as shares of the last-level cache: well inside it, and far beyond it
CACHE_SHARES = (1 / 8, 1 / 4, 1 / 2)
DRAM_TIMES = (4, 16, 64)
_MAX_BYTES = {"cuda": bytes_from_mib(8192), "cpu": bytes_from_mib(1536)}
_MAX_SHARE_OF_MEMORY = 0.25
_DEFAULT_CACHE = bytes_from_mib(2)  # used where the machine does not report its own size
_DEFAULT_MEMORY = bytes_from_mib(4096)
_SMALLEST_PRODUCT, _LARGEST_PRODUCT = 512, 16384
_LONGEST_RUN_S = 0.3  # a product that takes longer is large enough
_MIN_REPEATS, _MAX_REPEATS = 3, 200
_REFERENCE_S = 0.2
_BATCH_S = 0.002  # short runs are timed several at once


@dataclass(frozen=True)
class MeasuredCeilings:
    """The rates that were reached; ``*_mib`` is the working set of the best rate. None or absent: not measured."""

    kind: str
    device_name: str
    host: str
    torch: str
    driver: str
    measured_at: str
    threads: int
    cache_mib: float
    dram_gb_per_s: float | None
    dram_set_mib: float | None
    cache_gb_per_s: float | None
    cache_set_mib: float | None
    tflops: Mapping[str, float]
    product_sizes: Mapping[str, int]
    took_s: float
    reference_ms: float | None = None  # of a CPU: the product that campaigns time beside every workload, on one core
    l1_gb_per_s: float | None = None
    plain_tflops: Mapping[str, float] = field(default_factory=dict)  # of a GPU: fp16 without tensor cores


def measure_ceilings(
    device: str | None = None, budget_s: float = BUDGET_S, max_bytes: int | None = None
) -> MeasuredCeilings:
    """Measure this machine in about ``budget_s``: the ``device``, or by default the GPU if there is one.

    Working sets are at most a quarter of the free memory, or ``max_bytes``.
    """
    torch = require("torch", extra="profile", purpose="Characterising a machine")
    has_cuda = torch.cuda.is_available()
    kind = device or ("cuda" if has_cuda else "cpu")
    if kind not in DEVICES:
        raise MeasurementError(f"Cannot characterise {kind!r}. Choose from: {', '.join(DEVICES)}.")
    if kind == "cuda" and not has_cuda:
        raise MeasurementError("There is no CUDA device here. Use --device cpu to characterise the processor.")
    started = time.perf_counter()
    bench = Bench(torch, kind)
    facts = describe(kind)
    name = str(torch.cuda.get_device_name()) if kind == "cuda" else str(facts["host_cpu"])
    cache, memory = _sizes(torch, kind)
    if kind == "cuda":
        check_whole_device(name, torch.cuda.get_device_properties(0).multi_processor_count)
    formats = ("fp32", "tf32", "fp16", "bf16") if kind == "cuda" else ("fp32", "fp16", "bf16")
    limit = min(max_bytes or _MAX_BYTES[kind], round(memory * _MAX_SHARE_OF_MEMORY))
    # a fifth of the time each for the cache and the DRAM, the rest for matrix products
    with torch.inference_mode():
        inside = {min(round(cache * share), limit) for share in CACHE_SHARES}
        outside = {size for size in (min(cache * times, limit) for times in DRAM_TIMES) if size >= 2 * cache}
        cache_rate = bench.best_stream(inside, budget_s / 5)
        dram_rate = bench.best_stream(outside, budget_s / 5)
        products = {
            number_format: bench.best_product(number_format, limit, budget_s * 3 / 5 / len(formats))
            for number_format in formats
        }
        l1, half = bench.loops(budget_s / 20, cache_rate[0] if cache_rate else 0.0) if kind == "cuda" else (None, None)
    reached = {number_format: result for number_format, result in products.items() if result is not None}
    return MeasuredCeilings(
        kind=kind,
        device_name=name,
        host=str(facts["host"]),
        torch=str(torch.__version__),
        driver=str(facts["driver"]),
        measured_at=str(facts["date"]),
        threads=int(torch.get_num_threads()),
        cache_mib=mib(cache),
        dram_gb_per_s=dram_rate[0] / GIGA if dram_rate else None,
        dram_set_mib=mib(dram_rate[1]) if dram_rate else None,
        cache_gb_per_s=cache_rate[0] / GIGA if cache_rate else None,
        cache_set_mib=mib(cache_rate[1]) if cache_rate else None,
        tflops={number_format: result[0] / TERA for number_format, result in reached.items()},
        product_sizes={number_format: result[1] for number_format, result in reached.items()},
        took_s=time.perf_counter() - started,
        reference_ms=ms(bench.reference_s()) if kind == "cpu" else None,
        l1_gb_per_s=l1 / GIGA if l1 else None,
        plain_tflops={"fp16": half / TERA} if half else {},
    )


def check_whole_device(name: str, sms: int) -> None:
    """Raise an error on a MIG instance or an MPS share: its rates are only a part of its device's rates."""
    with suppress(DeviceError):  # a GPU that is not in the catalogue cannot be checked
        device = find_device(name)
        if sms != device.sms:
            raise MeasurementError(
                f"This process sees {sms} of the {device.sms} SMs of {device.id}: characterise the whole device, "
                "without MIG and MPS."
            )


def _sizes(torch: Any, kind: str) -> tuple[int, int]:
    """Bytes of the last-level cache, and of the memory that is free."""
    if kind == "cuda":
        free, _ = torch.cuda.mem_get_info()
        return int(torch.cuda.get_device_properties(0).L2_cache_size) or _DEFAULT_CACHE, int(free)
    try:
        free = os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, ValueError):  # not Linux
        free = _DEFAULT_MEMORY
    return largest_cache(Path("/sys/devices/system/cpu/cpu0/cache")), free


def largest_cache(folder: Path) -> int:
    """Bytes of the largest cache that Linux reports for a core."""
    sizes = [_DEFAULT_CACHE]
    for file in folder.glob("index*/size"):
        with suppress(OSError, ValueError):
            text = file.read_text(encoding="utf-8").strip()
            factor = {"K": KIB, "M": MIB}.get(text[-1:], 1)
            sizes.append(int(text.rstrip("KM")) * factor)
    return max(sizes)


class Bench:
    """Times operations of one device."""

    def __init__(self, torch: Any, kind: str) -> None:
        self._torch = torch
        self._kind = kind

    def best_stream(self, working_sets: set[int], budget_s: float) -> tuple[float, int] | None:
        """The highest bytes/s of copies and triads, and its working set; None if no working set fits into memory."""
        torch = self._torch
        a, b = (torch.zeros(1, device=self._kind) for _ in range(2))
        launch_s = self.fastest(lambda: torch.add(a, a, alpha=3.0, out=b), budget_s / 10)
        results = []
        for size in sorted(working_sets):
            with suppress(RuntimeError):  # out of memory
                results.append((self._stream(size, launch_s, budget_s * 0.45 / len(working_sets)), size))
        return max(results, default=None)

    def _stream(self, working_set: int, launch_s: float, budget_s: float) -> float:
        """Bytes/s of a triad over three buffers or of a copy between two of them, whichever is higher."""
        torch = self._torch
        # three buffers of 4-byte numbers make up the working set
        a, b, c = (torch.full((working_set // 12,), 1.5, dtype=torch.float32, device=self._kind) for _ in range(3))
        buffer = a.numel() * a.element_size()
        triad_s = self.fastest(lambda: torch.add(a, b, alpha=3.0, out=c), budget_s)
        copy_s = self.fastest(lambda: c.copy_(a), budget_s)
        return float(max(3 * buffer / _without(triad_s, launch_s), 2 * buffer / _without(copy_s, launch_s)))

    def best_product(self, number: str, max_bytes: int, budget_s: float) -> tuple[float, int] | None:
        """The highest FLOP/s of square matrix products in a number format, and their size; None if unsupported."""
        results = []
        deadline = time.perf_counter() + budget_s
        size, took_s = _SMALLEST_PRODUCT, 0.0
        while size <= _LARGEST_PRODUCT and 3 * size * size * 4 <= max_bytes and took_s < _LONGEST_RUN_S:
            try:
                took_s = self._product(size, number, budget_s / 5)
            except RuntimeError:  # out of memory, or a format without a kernel
                break
            results.append((2 * size**3 / took_s, size))
            size *= 2
            # the next product has eight times the work and runs several times: stop if it would exceed the budget
            if time.perf_counter() + 8 * took_s * (_MIN_REPEATS + 2) > deadline:
                break
        return max(results, default=None)

    def _product(self, size: int, number: str, budget_s: float) -> float:
        """Seconds of one square matrix product."""
        torch = self._torch
        dtype = {"fp16": torch.float16, "bf16": torch.bfloat16}.get(number, torch.float32)
        a, b, c = (torch.randn((size, size), device=self._kind).to(dtype) for _ in range(3))
        with _tf32(torch, number == "tf32"):
            return self.fastest(lambda: torch.mm(a, b, out=c), budget_s)

    def loops(self, budget_s: float, cache_per_s: float) -> tuple[float | None, float | None]:
        """Bytes/s of loads from L1 and FLOP/s of fp16 without tensor cores; None for what cannot run here.

        A rate that is not above that of the last-level cache ``cache_per_s`` did not come from L1.
        """
        loads = self._loop(load_loop, budget_s)
        return (loads if loads and loads > cache_per_s else None), self._loop(half_loop, budget_s)

    def _loop(self, make: Callable[[Any, int], Loop], budget_s: float) -> float | None:
        """The rate of a loop; None where there is no jiterator, or no such instruction."""
        try:
            loop = make(self._torch, self._torch.cuda.get_device_properties(0).multi_processor_count)
            return loop.work / self.fastest(loop.run, budget_s)
        except (AttributeError, RuntimeError):
            return None

    def reference_s(self) -> float:
        """Seconds of the reference product of campaigns, on one thread."""
        threads = self._torch.get_num_threads()
        self._torch.set_num_threads(1)
        try:
            return self.fastest(Reference().run, _REFERENCE_S)
        finally:
            self._torch.set_num_threads(threads)

    def fastest(self, run: Callable[[], object], budget_s: float) -> float:
        """Seconds of one run: the best of at least ``_MIN_REPEATS`` after a warm-up, of more if the budget allows."""
        run()
        once_s = max(self._time(run), 1e-7)
        batch = max(1, min(500, round(_BATCH_S / once_s)))
        best_s, deadline, repeats = once_s, time.perf_counter() + budget_s, 0
        with self._replayed(run, batch) as burst:
            while repeats < _MIN_REPEATS or (repeats < _MAX_REPEATS and time.perf_counter() < deadline):
                best_s = min(best_s, self._time(burst) / batch)
                repeats += 1
        return best_s

    @contextmanager
    def _replayed(self, run: Callable[[], object], batch: int) -> Iterator[Callable[[], object]]:
        """Several runs as one call; on CUDA one graph, so that the launches of the host are not timed."""
        if self._kind != "cuda" or batch == 1:
            yield lambda: [run() for _ in range(batch)]
            return
        torch = self._torch
        graph = torch.cuda.CUDAGraph()
        torch.cuda.synchronize()
        with torch.cuda.graph(graph):
            for _ in range(batch):
                run()
        graph.replay()
        yield graph.replay
        torch.cuda.synchronize()

    def _time(self, run: Callable[[], object]) -> float:
        if self._kind != "cuda":
            started = time.perf_counter()
            run()
            return time.perf_counter() - started
        torch = self._torch
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        begin.record()
        run()
        end.record()
        end.synchronize()
        return float(seconds_from_ms(begin.elapsed_time(end)))


@contextmanager
def _tf32(torch: Any, allowed: bool) -> Iterator[None]:
    """Within this context, fp32 products use TF32 or plain fp32; the old setting is restored."""
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high" if allowed else "highest")
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)


def _without(took_s: float, launch_s: float) -> float:
    """A time without its launch, but at least half of the time: a smaller rest would be mostly noise."""
    return max(took_s - launch_s, took_s / 2)
