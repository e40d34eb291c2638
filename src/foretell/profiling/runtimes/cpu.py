"""Profiling: a step measured on the host's processor, with the same interface as on a GPU.

There is no graph to replay and no energy counter. The latency is the wall-clock time of uncaptured runs.

Processors differ, and the same one is faster or slower from minute to minute. So a fixed product of matrices is timed
between the runs, in turn with them: the ratio to it is what another processor, or another day, has in common.
"""

import resource
import statistics
import time
from collections.abc import Callable
from typing import Any

from foretell.processes.device_lock import DeviceLock
from foretell.profiling.campaign.plan import Measuring
from foretell.profiling.first_run import Cost, is_finite, run_first, spread
from foretell.profiling.steps import Step
from foretell.profiling.trackers.kernels import KernelTable, trace_kernels
from foretell.units import KIB, mib, ms

Record = dict[str, object]
_LEAST_ROUNDS = 3
_ROUND_MS = 5.0
_MOST_RUNS = 100
_LEAST_MS = 1e-3
_REFERENCE_SIZE = 192  # the operands are smaller than the L2 cache of every server's core


class Reference:
    """The reference: a product of two square matrices in fp32, with PyTorch's threads of the process.

    Beside ONNX Runtime that is one thread, however many its session has.
    """

    def __init__(self) -> None:
        import torch

        draw = torch.Generator().manual_seed(0)
        self._left, self._right = (torch.rand(_REFERENCE_SIZE, _REFERENCE_SIZE, generator=draw) for _ in range(2))
        self._out = torch.empty(_REFERENCE_SIZE, _REFERENCE_SIZE)
        self._product = torch.mm
        self.run()

    def run(self) -> None:
        """Multiply once."""
        self._product(self._left, self._right, out=self._out)


def time_ms(run: Callable[[], object]) -> float:
    """How long one run takes."""
    begin = time.perf_counter()
    run()
    return ms(time.perf_counter() - begin)


class CpuRuntime:
    """One process on the host."""

    device = "cpu"
    name = "cpu"

    def __init__(self, device_lock: DeviceLock, measuring: Measuring, *, reference: bool = True) -> None:
        self._device_lock = device_lock
        self._measuring = measuring
        self._reference = reference
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
        """Time uncaptured runs, alone, in rounds; between the rounds, the reference product."""
        best: Record = {}
        reference = Reference() if self._reference else None
        with self._device_lock.alone():
            started = time.perf_counter()
            for attempt in range(1, self._measuring.tries + 1):
                tried = self._try(step, reference)
                if not best or float(str(tried["latency_cv"])) < float(str(best["latency_cv"])):
                    best = tried
                best["tries"] = attempt
                if float(str(best["latency_cv"])) < self._measuring.max_cv:
                    break
            alone_s = time.perf_counter() - started
        noisy = float(str(best["latency_cv"])) >= self._measuring.max_cv
        host = {"host_latency_ms": best["latency_ms"], "host_runs": best["repeats"]}
        return best | host | {"noisy": noisy, "latency_source": "cpu-timer", "alone_s": alone_s}

    def _try(self, step: Step, reference: "Reference | None") -> Record:
        rounds: list[float] = []
        beside: list[float] = []
        repeats, least = 0, float("inf")
        until = time.perf_counter() + (self._measuring.longest_s or float("inf"))
        while len(rounds) < self._measuring.replays:
            if len(rounds) >= _LEAST_ROUNDS and time.perf_counter() > until:
                break
            if reference is not None:
                reference.run()  # the step has taken its place in the caches
                beside.append(time_ms(reference.run))
            # a round of a fast step has many runs: the reference has taken its place in the caches
            runs = 1 if not rounds else min(_MOST_RUNS, max(1, int(_ROUND_MS / max(rounds[-1], _LEAST_MS))))
            times = [time_ms(step.run) for _ in range(runs)]
            rounds.append(statistics.median(times))
            repeats, least = repeats + runs, min(least, *times)
        mean, cv = spread(rounds)
        record: Record = {"latency_ms": statistics.median(rounds), "latency_mean_ms": mean, "latency_cv": cv}
        record |= {"latency_min_ms": least, "repeats": repeats}
        return record | ({"reference_ms": statistics.median(beside)} if beside else {})

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
