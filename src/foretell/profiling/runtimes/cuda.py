"""Profiling: a step measured on an NVIDIA GPU.

The device latency is the time of a CUDA-graph replay. Memory is the peak of the allocator over uncaptured runs. Energy
is read while the graph is replayed back to back.
"""

import itertools
import statistics
import time
from typing import Any

import torch

from foretell.errors import MeasurementError
from foretell.processes.device_lock import DeviceLock
from foretell.profiling.campaign.plan import Measuring
from foretell.profiling.environment import CUDNN_BENCHMARK, CUDNN_TF32
from foretell.profiling.first_run import Cost, is_finite, run_first, spread
from foretell.profiling.steps import Step
from foretell.profiling.trackers.kernels import KernelTable, trace_kernels
from foretell.profiling.trackers.nvml import Nvml, measure_energy
from foretell.units import MIB, mib, ms, seconds_from_ms

Record = dict[str, object]

_EAGER_BUDGET_MS = 60.0
_REPLAY_BUDGET_MS = 40.0
_MAX_REPLAYS = 100
_CHUNK_MS = 25.0
_LEFT_OVER_BYTES = 64 * MIB


class CaptureError(MeasurementError):
    """A step that cannot be captured in a CUDA graph."""


class CudaRuntime:
    """One process on one GPU."""

    device = "cuda"
    name = "cuda-graph"

    def __init__(self, device_lock: DeviceLock, measuring: Measuring) -> None:
        self._device_lock = device_lock
        self._measuring = measuring
        self._nvml = Nvml()
        self._has_nvml = False
        self.context_mib: float | None = None  # of another process of this kind, where one has been opened

    def open(self, *, tracing: bool) -> None:
        """Create the context and, if needed, start the tracer; the first context is created alone to see its memory."""
        try:
            self._nvml.open()
            self._has_nvml = True
        except MeasurementError:
            self._has_nvml = False
        # the memory of a context is the difference of the whole device's memory, so nobody else may allocate meanwhile
        known = self.context_mib is not None
        with self._device_lock.shared() if known else self._device_lock.alone():
            before = self._nvml.used_mib() if self._has_nvml and not known else None
            torch.cuda.init()
            torch.backends.cudnn.benchmark, torch.backends.cudnn.allow_tf32 = CUDNN_BENCHMARK, CUDNN_TF32
            # everything runs on one side stream: unlike the default stream it can be captured, and memory has one pool
            torch.cuda.set_stream(torch.cuda.Stream())
            torch.zeros(1, device=self.device)
            torch.cuda.synchronize()
            if before is not None:
                self.context_mib = (self._nvml.used_mib() or 0.0) - before - mib(torch.cuda.memory_reserved())
        if tracing:
            self.start_tracer()

    def start_tracer(self) -> None:
        """Load the profiler, which takes a second the first time."""
        with (
            self._device_lock.shared(),
            torch.profiler.profile(activities=[*torch.profiler.supported_activities()]),
        ):
            torch.zeros(1, device=self.device).add_(1)
            torch.cuda.synchronize()

    def clear(self) -> None:
        """Empty the allocator and the workspaces of cuBLAS."""
        torch.cuda.synchronize()
        torch._C._cuda_clearCublasWorkspaces()
        torch.cuda.empty_cache()

    def parameters_mib(self) -> float:
        """The memory that is allocated now."""
        return mib(torch.cuda.memory_allocated())

    def reset_memory(self) -> None:
        """Reset the peaks of memory."""
        torch.cuda.reset_peak_memory_stats()

    def warm_up(self, step: Step, runs: int) -> tuple[Record, Cost]:
        """Run without a graph, so that kernels are loaded, chosen and memory is allocated; read the peak of memory."""

        def before_module() -> None:
            if self._device_lock.is_requested():
                # our own kernels must have finished, or they would run inside another worker's timing
                torch.cuda.synchronize()
                self._device_lock.step_aside()

        with self._device_lock.shared():
            baseline = torch.cuda.memory_allocated()
            output, cost = run_first(step.run, before_module)
            torch.cuda.synchronize()
        for _ in range(runs - 1):
            with self._device_lock.shared():
                # free the old output first, or two outputs would count in the peak of memory
                del output
                output = step.run()
                torch.cuda.synchronize()
        peak = torch.cuda.max_memory_allocated()
        cost.peak_bytes = float(peak - baseline)
        record: Record = {"memory_mib": mib(peak), "reserved_mib": mib(torch.cuda.max_memory_reserved())}
        record |= self._driver_memory()
        with self._device_lock.shared():
            finite = is_finite(output)  # this needs memory of its own: only now, when the peaks are read
        return record | {"output_finite": finite, "baseline_mib": mib(baseline)}, cost

    def _driver_memory(self) -> Record:
        if not self._has_nvml:
            return {}
        reserved, used, own = mib(torch.cuda.memory_reserved()), self._nvml.used_mib(), self._nvml.process_mib()
        record: Record = {"nvml_used_mib": used, "nvml_idle_mib": None if used is None else used - reserved}
        if own is not None:
            return record | {"device_memory_mib": own, "device_memory_source": "nvml-process"}
        if self.context_mib is not None:
            return record | {
                "device_memory_mib": reserved + self.context_mib,
                "device_memory_source": "reserved+context",
            }
        return record

    def measure(self, step: Step, *, energy: bool, eager: bool = True) -> Record:
        """Capture the step and time its replays alone; if requested, also time eager runs and read the energy."""
        with self._device_lock.shared():
            self._check_no_synchronisation(step)
            graph, output = self._capture(step)
        try:
            with self._device_lock.alone():
                started = time.perf_counter()
                record = (self._eager(step) if eager else {}) | self._replays(graph)
                if energy and self._has_nvml:
                    record |= self._energy(graph, float(str(record["latency_ms"])))
                record["alone_s"] = time.perf_counter() - started
        finally:
            del output
            graph.reset()
        return record

    def _check_no_synchronisation(self, step: Step) -> None:
        """Raise an error if the step waits for the device: it cannot be captured, and trying can break the process."""
        torch.cuda.synchronize()
        # in this mode torch raises an error where an operation would wait for the device
        torch.cuda.set_sync_debug_mode("error")
        try:
            step.run()
        except RuntimeError as error:
            if "synchronizing CUDA operation" not in str(error):
                raise
            raise CaptureError("The step waits for the device.") from error
        finally:
            torch.cuda.set_sync_debug_mode("default")

    def _capture(self, step: Step) -> tuple[Any, Any]:
        torch.cuda.synchronize()
        torch.cuda.empty_cache()
        graph = torch.cuda.CUDAGraph()
        graph.capture_begin()
        failure: Exception | None = None
        output = None
        try:
            output = step.run()
        except Exception as error:  # noqa: BLE001 whatever the error is, the capture must be ended first
            failure = error
        try:
            graph.capture_end()
        except RuntimeError as error:
            failure = failure or error
        if isinstance(failure, torch.cuda.OutOfMemoryError):
            raise failure
        if failure is not None:
            raise CaptureError(f"{type(failure).__name__}: {failure}") from failure
        # the first replay uploads the graph to the device, which must not be timed
        graph.replay()
        torch.cuda.synchronize()
        return graph, output

    def _eager(self, step: Step) -> Record:
        times: list[float] = []
        while len(times) < 3 or (len(times) < self._measuring.eager_runs and sum(times) < _EAGER_BUDGET_MS):
            started = time.perf_counter()
            step.run()
            torch.cuda.synchronize()
            times.append(ms(time.perf_counter() - started))
        return {"host_latency_ms": statistics.median(times), "host_runs": len(times)}

    def _replays(self, graph: Any) -> Record:
        # short steps get more replays; try again while the times vary too much, and keep the try that varies least
        best: Record = {}
        estimate = self._time(graph, 1, lead=1)
        count = max(self._measuring.replays, min(_MAX_REPLAYS, int(_REPLAY_BUDGET_MS / max(min(estimate), 1e-3))))
        for attempt in range(1, self._measuring.tries + 1):
            times = self._time(graph, count)
            mean, cv = spread(times)
            if not best or cv < float(str(best["latency_cv"])):
                best = {"latency_ms": statistics.median(times), "latency_mean_ms": mean, "latency_min_ms": min(times)}
                best |= {"latency_cv": cv, "repeats": count}
            best["tries"] = attempt
            if cv < self._measuring.max_cv:
                break
        clock = self._nvml.clock_mhz() if self._has_nvml else None
        noisy = float(str(best["latency_cv"])) >= self._measuring.max_cv
        return best | {"noisy": noisy, "latency_source": "cuda-graph", "clock_mhz": clock}

    def _time(self, graph: Any, count: int, lead: int = 3) -> list[float]:
        """Milliseconds of each of ``count`` replays, after ``lead`` replays that are not timed."""
        events = [torch.cuda.Event(enable_timing=True) for _ in range(count + 1)]
        for _ in range(lead):
            graph.replay()
        events[0].record()
        for event in events[1:]:
            graph.replay()
            event.record()
        torch.cuda.synchronize()
        return [before.elapsed_time(after) for before, after in itertools.pairwise(events)]

    def _energy(self, graph: Any, latency_ms: float) -> Record:
        chunk = max(1, int(_CHUNK_MS / latency_ms))

        def replay_for(seconds: float) -> tuple[int, float]:
            """Replay for about ``seconds``, with two chunks in flight: the device never waits, and the end is near."""
            started, runs = time.perf_counter(), 0
            waiting: list[Any] = []
            while time.perf_counter() - started < seconds:
                for _ in range(chunk):
                    graph.replay()
                runs += chunk
                event = torch.cuda.Event()
                event.record()
                waiting.append(event)
                if len(waiting) > 2:
                    waiting.pop(0).synchronize()
            torch.cuda.synchronize()
            return runs, time.perf_counter() - started

        try:
            energy = measure_energy(self._nvml, replay_for, self._measuring.energy_s)
        except MeasurementError as error:
            return {"energy_error": str(error)}
        return {
            "power_w": energy.power_w,
            "energy_j": energy.power_w * seconds_from_ms(energy.run_ms),
            "energy_window_s": energy.window_s,
            "energy_run_ms": energy.run_ms,
            "energy_runs": energy.runs,
        }

    def trace(self, step: Step, model: Any, runs: int) -> list[KernelTable]:
        """The kernels of ``runs`` uncaptured runs."""
        torch.cuda.synchronize()
        return trace_kernels(step.run, model, runs, cuda=True, alone=self._device_lock.alone)

    def measure_uncaptured(self, step: Step, model: Any) -> tuple[Record, KernelTable]:
        """Used when a step cannot be captured: the device latency is the sum of the kernels' durations."""
        with self._device_lock.alone():
            started = time.perf_counter()
            record = self._eager(step)
            record["alone_s"] = time.perf_counter() - started
        tables = self.trace(step, model, self._measuring.fallback_runs)
        totals = [table.total_ms() for table in tables if table.name]
        if not totals:
            raise MeasurementError("The trace has no kernels.")
        mean, cv = spread(totals)
        record |= {"latency_ms": statistics.median(totals), "latency_mean_ms": mean, "latency_min_ms": min(totals)}
        record |= {"latency_cv": cv, "repeats": len(totals), "tries": 1, "noisy": cv >= self._measuring.max_cv}
        return record | {"latency_source": "kernel-sum"}, tables[-1]

    def shared(self) -> Any:
        """Use the device beside others."""
        return self._device_lock.shared()

    def healthy(self) -> bool:
        """Whether this process can still compute, free memory and capture; after some CUDA errors it cannot."""
        try:
            self.clear()
            if torch.cuda.memory_reserved() > _LEFT_OVER_BYTES:
                return False
            step = Step(lambda: torch.ones(8, device=self.device) * 2, lambda: None)
            graph, output = self._capture(step)
            is_right = float(output.sum()) == 16.0
            graph.reset()
        except RuntimeError:
            return False
        return is_right
