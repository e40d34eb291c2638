"""Scheduling: what a simulation adds up. It takes the same memory for ten jobs and for a million."""

import math
from collections import Counter
from dataclasses import dataclass, field

from foretell.scheduling.jobs import Run

_STEP = 1.005  # bins of waiting times: the 95th percentile is right to half a percent
_SHORTEST_S = 1e-6


@dataclass(slots=True)
class Totals:
    """Sums over all jobs that ended and over the time of all GPUs."""

    gpus: float
    jobs: int = 0
    first_s: float = math.inf
    last_s: float = 0.0
    waiting_s: float = 0.0
    turnaround_s: float = 0.0
    slowdown: float = 0.0
    limited: int = 0
    broken: int = 0
    active_s: float = 0.0
    busy_s: float = 0.0
    work_s: float = 0.0
    waits: Counter[int] = field(default_factory=Counter, repr=False)

    def add(self, run: Run) -> None:
        """Count a job that has ended."""
        waiting_s = run.waiting_s
        self.jobs += 1
        self.first_s = min(self.first_s, run.job.arrival_s)
        self.last_s = max(self.last_s, run.end_s)
        self.waiting_s += waiting_s
        self.turnaround_s += run.end_s - run.job.arrival_s
        self.slowdown += run.slowdown
        profile = run.job.profile
        self.limited += profile.max_slowdown is not None or profile.limit_ms is not None
        self.broken += not run.kept
        self.waits[-1 if waiting_s <= _SHORTEST_S else int(math.log(waiting_s / _SHORTEST_S, _STEP))] += 1

    @property
    def makespan_s(self) -> float:
        """From the first arrival to the last end."""
        return self.last_s - self.first_s if self.jobs else 0.0

    @property
    def mean_waiting_s(self) -> float:
        """From arrival to start, mean over jobs."""
        return self.waiting_s / self.jobs if self.jobs else 0.0

    @property
    def mean_turnaround_s(self) -> float:
        """From arrival to end, mean over jobs."""
        return self.turnaround_s / self.jobs if self.jobs else 0.0

    @property
    def mean_slowdown(self) -> float:
        """Time of a run over time alone on the whole device, mean over jobs."""
        return self.slowdown / self.jobs if self.jobs else 1.0

    @property
    def p95_waiting_s(self) -> float:
        """The waiting time that 95 % of the jobs do not exceed, to half a percent."""
        left = 0.95 * self.jobs
        for number in sorted(self.waits):
            left -= self.waits[number]
            if left <= 0:
                return 0.0 if number < 0 else _SHORTEST_S * _STEP ** (number + 0.5)
        return 0.0

    @property
    def broken_share(self) -> float:
        """Jobs that broke their limit, of those that have one."""
        return self.broken / self.limited if self.limited else 0.0

    @property
    def utilisation(self) -> float:
        """The share of the GPUs' time in which a kernel runs, as NVML shows it."""
        return self._over_time(self.busy_s)

    @property
    def sm_activity(self) -> float:
        """The share of the SMs that work, over GPUs and time: what the jobs keep busy alone, over their slowdowns."""
        return self._over_time(self.active_s)

    @property
    def work_rate(self) -> float:
        """Seconds of work (as it takes alone) that a GPU does in a second: above 1 only by sharing."""
        return self._over_time(self.work_s)

    def _over_time(self, seconds: float) -> float:
        span_s = self.makespan_s * self.gpus
        return seconds / span_s if span_s else 0.0
