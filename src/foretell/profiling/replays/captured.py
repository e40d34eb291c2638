"""Profiling: captured steps that stay on the device, to be timed or replayed beside those of other processes.

A CUDA graph refers to the memory it was captured with. While any is alive, nothing here empties the workspaces of
cuBLAS, which all graphs of a process share.
"""

import itertools
import statistics
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
from foretell.profiling.runtimes.cpu import CpuRuntime
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


class NoDeviceLock(DeviceLock):
    """For processes that are told when to time: nothing is locked."""

    def __init__(self) -> None:
        super().__init__(Path(), 0)

    @contextmanager
    def shared(self) -> Iterator[None]:
        """Nobody is kept out."""
        yield

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Whoever sent the command has seen to it."""
        yield

    def wanted(self) -> bool:
        """Nobody waits here."""
        return False


@dataclass
class Captured:
    """One step that can be replayed; ``output`` keeps the memory it writes to."""

    replay: Callable[[], object]
    output: Any
    close: Callable[[], None]


def replays_for(guess_ms: float, measuring: Measuring) -> int:
    """How many replays one timing has: the protocol's twenty at least, fewer where one takes long.

    >>> [replays_for(guess_ms, Measuring()) for guess_ms in (0.1, 10.0, 25.0, 200.0)]
    [100, 20, 16, 5]
    """
    if guess_ms > _LONG_MS:
        return max(_MIN_REPLAYS, min(measuring.replays, int(_LONG_BUDGET_MS / guess_ms)))
    return max(measuring.replays, min(_MAX_REPLAYS, int(_SHORT_BUDGET_MS / max(guess_ms, 1e-3))))


def time_replays(times_ms: Callable[[int, int], list[float]], measuring: Measuring) -> Record:
    """Time as the protocol says; ``times_ms(count, lead)`` times ``count`` replays after ``lead`` others."""
    guess_ms = min(times_ms(1, 1))
    count, lead = replays_for(guess_ms, measuring), 1 if guess_ms > _LONG_MS else 3
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
    """Replays between two looks at the clock."""
    return max(1, int(_CHUNK_MS / max(replay_ms, 1e-3)))


def wait_until(moment: float) -> None:
    """Sleep, then spin, until the wall clock shows ``moment``."""
    while (left := moment - time.time()) > 0:
        if left > _SPIN_S:
            time.sleep(left - _SPIN_S)


class CudaReplays(CudaRuntime):
    """One process on one GPU, or on a share of it."""

    def __init__(self, measuring: Measuring) -> None:
        super().__init__(NoDeviceLock(), measuring)
        self._main: Any = None

    def open(self, *, tracing: bool = False) -> None:  # noqa: ARG002 nothing is traced here
        """Create the context, beside others that do the same."""
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
        self._refuse_synchronising(step)
        graph, output = self._capture(step)
        return Captured(graph.replay, output, graph.reset)

    def time(self, captured: Captured) -> Record:
        """Time replays; nothing else may use the device."""
        started = time.perf_counter()
        record = time_replays(lambda count, lead: self._events_ms(captured, count, lead), self._measuring)
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

    def replay_from(self, captured: Captured, start: float, seconds: float, replay_ms: float) -> list[float]:
        """Replay back to back; the wall-clock moments between replays, as the device saw them."""
        torch.cuda.synchronize()
        base = torch.cuda.Event(enable_timing=True)
        base.record()
        base.synchronize()
        origin = time.time()
        chunk, waiting, events = chunk_of(replay_ms), list[Any](), list[Any]()

        def mark() -> None:
            event = torch.cuda.Event(enable_timing=True)
            event.record()
            events.append(event)

        wait_until(start)
        mark()
        while time.time() < start + seconds:
            for _ in range(chunk):
                captured.replay()
                mark()
            waiting.append(events[-1])
            if len(waiting) > _IN_FLIGHT:  # the device never waits for the host, and the end is near the time asked for
                waiting.pop(0).synchronize()
        torch.cuda.synchronize()
        return [origin + seconds_from_ms(base.elapsed_time(event)) for event in events]

    def reserved_bytes(self) -> int:
        """What this process holds of the device's memory, its context not counted."""
        return int(torch.cuda.memory_reserved())

    def clock_mhz(self) -> int | None:
        """The current clock of the multiprocessors."""
        return self._nvml.clock_mhz() if self._has_nvml else None

    def works(self) -> bool:
        """Whether the context still computes."""
        try:
            right = float(torch.ones(8, device=self.device).sum()) == 8.0
            torch.cuda.synchronize()
        except RuntimeError:
            return False
        return right

    def tidy(self) -> None:
        """Give unused memory back."""
        torch.cuda.synchronize()
        torch.cuda.empty_cache()


class CpuReplays(CpuRuntime):
    """The same on the host's processor, where a replay is a run: for tests of the choreography, not for results."""

    def __init__(self, measuring: Measuring) -> None:
        super().__init__(NoDeviceLock(), measuring)

    def open(self, *, tracing: bool = False) -> None:
        """Nothing has to be created."""

    def sm_count(self) -> int:
        """A host has none."""
        return 0

    def capture(self, step: Step) -> Captured:
        """A replay is a run."""
        return Captured(step.run, None, lambda: None)

    def time(self, captured: Captured) -> Record:
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

    def replay_from(self, captured: Captured, start: float, seconds: float, replay_ms: float) -> list[float]:  # noqa: ARG002
        """Run back to back; the moments between runs."""
        wait_until(start)
        moments = [time.time()]
        while time.time() < start + seconds:
            captured.replay()
            moments.append(time.time())
        return moments

    def reserved_bytes(self) -> int:
        """Not told apart from the rest of the process."""
        return 0

    def clock_mhz(self) -> int | None:
        """Not read."""
        return None

    def works(self) -> bool:
        """A processor that answers works."""
        return True

    def tidy(self) -> None:
        """There is no allocator to empty."""
