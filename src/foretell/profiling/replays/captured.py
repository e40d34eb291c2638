"""Profiling: captured steps that stay on the device, to be timed or replayed beside those of other processes.

A CUDA graph refers to the memory that it was captured with. So while any graph exists, nothing here frees the
workspaces of cuBLAS, which all graphs of a process share.
"""

import itertools
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from foretell.processes.device_lock import DeviceLock
from foretell.profiling.campaign.plan import Measuring
from foretell.profiling.first_run import spread
from foretell.profiling.runtimes.cpu import CpuRuntime, Reference, time_ms
from foretell.profiling.runtimes.cuda import CudaRuntime
from foretell.profiling.steps import Step
from foretell.units import ms, seconds_from_ms

Record = dict[str, object]

_LONG_MS = 20.0
_LONG_BUDGET_MS = 400.0
_SHORT_BUDGET_MS = 40.0
_MIN_REPLAYS, _MAX_REPLAYS = 5, 100
_CHUNK_MS = 4.0
_IN_FLIGHT = 2
_SPIN_S = 0.002
_REFERENCE_RUNS = 5


class NoDeviceLock(DeviceLock):
    """A device lock that locks nothing, for processes that time only on command."""

    def __init__(self) -> None:
        super().__init__(Path(), 0)

    @contextmanager
    def shared(self) -> Iterator[None]:
        """Use the device without excluding others."""
        yield

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Use the device; the sender of the command makes sure that no other process does."""
        yield

    def is_requested(self) -> bool:
        """Nobody waits for this lock."""
        return False


@dataclass
class Captured:
    """One step that can be replayed; ``output`` keeps the memory it writes to."""

    replay: Callable[[], object]
    output: Any
    close: Callable[[], None]


def replays_for(estimate_ms: float, measuring: Measuring) -> int:
    """The number of replays of one timing: at least twenty, but fewer for long replays.

    >>> [replays_for(estimate_ms, Measuring()) for estimate_ms in (0.1, 10.0, 25.0, 200.0)]
    [100, 20, 16, 5]
    """
    if estimate_ms > _LONG_MS:
        return max(_MIN_REPLAYS, min(measuring.replays, int(_LONG_BUDGET_MS / estimate_ms)))
    return max(measuring.replays, min(_MAX_REPLAYS, int(_SHORT_BUDGET_MS / max(estimate_ms, 1e-3))))


def time_replays(times_ms: Callable[[int, int], list[float]], measuring: Measuring) -> Record:
    """Time replays; try again while they vary too much, and keep the try that varies least.

    ``times_ms(count, lead)`` times ``count`` replays after ``lead`` others that are not timed.
    """
    # one untimed and one timed replay give an estimate, from which the number of replays follows
    estimate_ms = min(times_ms(1, 1))
    count, lead = replays_for(estimate_ms, measuring), 1 if estimate_ms > _LONG_MS else 3
    best: Record = {}
    best_cv = 0.0
    for attempt in range(1, measuring.tries + 1):
        times = times_ms(count, lead)
        mean, cv = spread(times)
        if not best or cv < best_cv:
            best_cv = cv
            best = {"latency_ms": statistics.median(times), "latency_mean_ms": mean, "latency_min_ms": min(times)}
            best |= {"latency_cv": cv, "repeats": count}
        best["tries"] = attempt
        if cv < measuring.max_cv:
            break
    return best | {"noisy": best_cv >= measuring.max_cv}


def chunk_of(replay_ms: float) -> int:
    """The number of replays between two checks of the clock."""
    return max(1, int(_CHUNK_MS / max(replay_ms, 1e-3)))


def wait_until(moment: float) -> None:
    """Sleep, then spin for the last part (sleep alone is too imprecise), until the monotonic clock shows ``moment``."""
    while (left := moment - time.monotonic()) > 0:
        if left > _SPIN_S:
            time.sleep(left - _SPIN_S)


class CudaReplays(CudaRuntime):
    """One process on one GPU, or on a share of it."""

    def __init__(self, measuring: Measuring) -> None:
        super().__init__(NoDeviceLock(), measuring)
        self._main: Any = None

    def open(self, *, tracing: bool = False) -> None:  # noqa: ARG002 nothing is traced here
        """Create the context; other processes may do the same at the same time."""
        try:
            self._nvml.open()
            self._has_nvml = True
        except RuntimeError:
            self._has_nvml = False
        torch.cuda.init()
        self._main = torch.cuda.Stream()
        torch.cuda.set_stream(self._main)
        torch.zeros(1, device=self.device)
        torch.cuda.synchronize()

    def sm_count(self) -> int:
        """The multiprocessors that this process sees."""
        return int(torch.cuda.get_device_properties(0).multi_processor_count)

    def capture(self, step: Step) -> Captured:
        """Capture a step that has been warmed up, on the current stream."""
        self._check_no_synchronisation(step)
        graph, output = self._capture(step)
        return Captured(graph.replay, output, graph.reset)

    def time(self, captured: Captured, *, energy: bool = False) -> Record:
        """Time replays and, if requested, read their power; nothing else may use the device."""
        started = time.perf_counter()
        record = time_replays(lambda count, lead: self._events_ms(captured, count, lead), self._measuring)
        if energy and self._has_nvml:
            record |= self._energy(captured, float(str(record["latency_ms"])))
        clock = self._nvml.clock_mhz() if self._has_nvml else None
        return record | {"clock_mhz": clock, "alone_s": time.perf_counter() - started}

    def _events_ms(self, captured: Captured, count: int, lead: int) -> list[float]:
        events = [torch.cuda.Event(enable_timing=True) for _ in range(count + 1)]
        for _ in range(lead):
            captured.replay()
        events[0].record()
        for event in events[1:]:
            captured.replay()
            event.record()
        torch.cuda.synchronize()
        return [before.elapsed_time(after) for before, after in itertools.pairwise(events)]

    def replay_from(
        self, captured: Captured, start: float, seconds: float, replay_ms: float, repeats: int | None = None
    ) -> list[float]:
        """Replay back to back; return the moments of the monotonic clock between replays, from events of the device.

        It ends after some ``seconds``, or earlier after so many ``repeats``.
        """
        torch.cuda.synchronize()
        base = torch.cuda.Event(enable_timing=True)
        base.record()
        base.synchronize()
        origin = time.monotonic()
        chunk, waiting, events = chunk_of(replay_ms), list[Any](), list[Any]()

        def mark() -> None:
            event = torch.cuda.Event(enable_timing=True)
            event.record()
            events.append(event)

        wait_until(start)
        mark()
        left = repeats if repeats is not None else sys.maxsize
        while left > 0 and time.monotonic() < start + seconds:
            count = min(chunk, left)
            left -= count
            for _ in range(count):
                captured.replay()
                mark()
            waiting.append(events[-1])
            # a bounded queue: the device never waits for the host, and replays end soon after the time is over
            if len(waiting) > _IN_FLIGHT:
                waiting.pop(0).synchronize()
        torch.cuda.synchronize()
        return [origin + seconds_from_ms(base.elapsed_time(event)) for event in events]

    def reserved_bytes(self) -> int:
        """The memory of the device that this process has reserved, without its context."""
        return int(torch.cuda.memory_reserved())

    def clock_mhz(self) -> int | None:
        """The current clock of the multiprocessors."""
        return self._nvml.clock_mhz() if self._has_nvml else None

    def reference_ms(self) -> float | None:
        """Nothing: the clock tells how fast a GPU is."""
        return None

    def works(self) -> bool:
        """Whether the device context still works."""
        try:
            right = float(torch.ones(8, device=self.device).sum()) == 8.0
            torch.cuda.synchronize()
        except RuntimeError:
            return False
        return right

    def release_cache(self) -> None:
        """Release unused memory."""
        torch.cuda.synchronize()
        torch.cuda.empty_cache()


class CpuReplays(CpuRuntime):
    """The same interface on the host's processor, where a replay is a run."""

    def __init__(self, measuring: Measuring) -> None:
        super().__init__(NoDeviceLock(), measuring)
        self._product: Reference | None = None

    def open(self, *, tracing: bool = False) -> None:
        """Nothing has to be created."""

    def sm_count(self) -> int:
        """A host has none."""
        return 0

    def capture(self, step: Step) -> Captured:
        """A replay is a run."""
        return Captured(step.run, None, lambda: None)

    def time(self, captured: Captured, *, energy: bool = False) -> Record:  # noqa: ARG002 a host's power is not read
        """Time runs."""
        started = time.perf_counter()

        def times_ms(count: int, lead: int) -> list[float]:
            moments = []
            for _ in range(lead):
                captured.replay()
            for _ in range(count):
                moments.append(time.perf_counter())
                captured.replay()
            return [ms(b - a) for a, b in itertools.pairwise([*moments, time.perf_counter()])]

        record = time_replays(times_ms, self._measuring)
        return record | {"clock_mhz": None, "alone_s": time.perf_counter() - started}

    def replay_from(
        self,
        captured: Captured,
        start: float,
        seconds: float,
        replay_ms: float,  # noqa: ARG002 every run is timed
        repeats: int | None = None,
    ) -> list[float]:
        """Run back to back; return the times between runs."""
        wait_until(start)
        moments = [time.monotonic()]
        while len(moments) <= (repeats or sys.maxsize) and moments[-1] < start + seconds:
            captured.replay()
            moments.append(time.monotonic())
        return moments

    def reserved_bytes(self) -> int:
        """Unknown: it cannot be separated from the rest of the process."""
        return 0

    def clock_mhz(self) -> int | None:
        """Not read."""
        return None

    def reference_ms(self) -> float | None:
        """How long the reference product takes now, when caches have it: what other minutes are compared with."""
        product = self._product = self._product or Reference()
        product.run()
        return statistics.median(time_ms(product.run) for _ in range(_REFERENCE_RUNS))

    def works(self) -> bool:
        """A processor always works."""
        return True

    def release_cache(self) -> None:
        """There is no allocator to empty."""
