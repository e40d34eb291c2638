"""Profiling: a step measured on the host's processor, with the same interface as on a GPU.

There is no graph to replay and no energy counter. The latency is the wall-clock time of uncaptured runs.
"""

import resource
import statistics
import time
from typing import Any

from foretell.processes.device_lock import DeviceLock
from foretell.profiling.campaign.plan import Measuring
from foretell.profiling.first_run import Cost, is_finite, run_first, spread
from foretell.profiling.steps import Step
from foretell.profiling.trackers.kernels import KernelTable, trace_kernels
from foretell.units import KIB, mib, ms

Record = dict[str, object]


class CpuRuntime:
    """One process on the host."""

    device = "cpu"
    name = "cpu"

    def __init__(self, device_lock: DeviceLock, measuring: Measuring) -> None:
        self._device_lock = device_lock
        self._measuring = measuring
        self.context_mib: float | None = None

    def open(self, *, tracing: bool) -> None:
        """Nothing has to be created."""

    def start_tracer(self) -> None:
        """Nothing has to be loaded to trace operators."""

    def clear(self) -> None:
        """There is no allocator to empty."""

    def parameters_mib(self) -> float:
        """Unknown: it cannot be separated from the rest of the process."""
        return 0.0

    def reset_memory(self) -> None:
        """Nothing to reset: the operating system has one peak for the whole process."""

    def warm_up(self, step: Step, runs: int) -> tuple[Record, Cost]:
        """Run until caches are filled."""
        with self._device_lock.shared():
            output, cost = run_first(step.run, lambda: None)
            for _ in range(runs - 1):
                step.run()
        peak = mib(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * KIB)
        return {"process_peak_mib": peak, "output_finite": is_finite(output)}, cost

    def measure(self, step: Step, *, energy: bool, eager: bool = True) -> Record:  # noqa: ARG002 no counter, no graph
        """Time uncaptured runs, alone."""
        best: Record = {}
        with self._device_lock.alone():
            started = time.perf_counter()
            for attempt in range(1, self._measuring.tries + 1):
                times = []
                for _ in range(self._measuring.replays):
                    begin = time.perf_counter()
                    step.run()
                    times.append(ms(time.perf_counter() - begin))
                mean, cv = spread(times)
                if not best or cv < float(str(best["latency_cv"])):
                    best = {"latency_ms": statistics.median(times), "latency_mean_ms": mean, "latency_cv": cv}
                    best |= {"latency_min_ms": min(times), "repeats": len(times)}
                best["tries"] = attempt
                if cv < self._measuring.max_cv:
                    break
            alone_s = time.perf_counter() - started
        noisy = float(str(best["latency_cv"])) >= self._measuring.max_cv
        host = {"host_latency_ms": best["latency_ms"], "host_runs": best["repeats"]}
        return best | host | {"noisy": noisy, "latency_source": "cpu-timer", "alone_s": alone_s}

    def measure_uncaptured(self, step: Step, model: Any) -> tuple[Record, KernelTable]:
        """The same as :meth:`measure`: nothing is ever captured here."""
        return self.measure(step, energy=False), self.trace(step, model, 1)[0]

    def trace(self, step: Step, model: Any, runs: int) -> list[KernelTable]:
        """The outermost operators of each run, in place of kernels."""
        return trace_kernels(step.run, model, runs, cuda=False, alone=self._device_lock.alone)

    def shared(self) -> Any:
        """Use the processor beside others."""
        return self._device_lock.shared()

    def healthy(self) -> bool:
        """A processor is always healthy."""
        return True
