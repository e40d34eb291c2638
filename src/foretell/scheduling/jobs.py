"""Scheduling: what is scheduled: jobs, the profile that equal jobs share, and what a profile demands of a place."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from foretell.units import seconds_from_ms


@dataclass(frozen=True, slots=True)
class Demand:
    """What one step of a job needs at one kind of place when it runs there alone. Shares are between 0 and 1.

    Attributes:
        alone_ms: The time of one step.
        memory_mib: What the job keeps of the device's memory, all the time.
        occupancy: Achieved occupancy: active warps over the maximum, as hardware counters show it.
        utilisation: The share of the time in which a kernel runs, as NVML shows it.
        sm_share: The share of the SMs that its kernels keep busy, over time.
        bandwidth_share: The share of the memory bandwidth that it draws, over time.
        slice_slowdown: ``alone_ms`` over that of the whole device; 1 unless the place is a MIG slice, or the job has a
            limit of the SMs.
    """

    alone_ms: float
    memory_mib: float = 0.0
    occupancy: float = 1.0
    utilisation: float = 1.0
    sm_share: float = 1.0
    bandwidth_share: float = 0.0
    slice_slowdown: float = 1.0


@dataclass(frozen=True, slots=True, eq=False)
class Profile:
    """What equal jobs have in common. ``number`` identifies it: policies and caches work with numbers.

    ``demands`` is by the name of a kind of place; a kind that is absent cannot run the job. ``percentage`` is the
    limit of the SMs under MPS. A job of several ``gpus`` runs on that many whole ones of one kind, all at once, and
    shares none of them; its demand is that on each of them.
    """

    number: int
    name: str
    demands: Mapping[str, Demand]
    max_slowdown: float | None = None
    limit_ms: float | None = None
    percentage: float | None = None
    gpus: int = 1
    best_ms: float = field(init=False)

    def __post_init__(self) -> None:
        """Keep the shortest time alone: policies ask for it with every decision."""
        object.__setattr__(self, "best_ms", min((d.alone_ms for d in self.demands.values()), default=0.0))

    def allowed_slowdown(self, demand: Demand) -> float:
        """The largest slowdown by other jobs that keeps the limits at a place; infinite without a limit."""
        allowed = float("inf")
        if self.max_slowdown is not None:
            allowed = self.max_slowdown / demand.slice_slowdown
        if self.limit_ms is not None:
            allowed = min(allowed, self.limit_ms / demand.alone_ms)
        return allowed


@dataclass(frozen=True, slots=True)
class Job:
    """Something that arrives and has work to do: a number of steps, whole or not.

    ``after`` names jobs that must end first.
    """

    name: str
    profile: Profile
    arrival_s: float
    steps: float
    after: tuple[str, ...] = ()

    def alone_s(self, demand: Demand) -> float:
        """How long the job runs alone at a place."""
        return seconds_from_ms(self.steps * demand.alone_ms)


@dataclass(frozen=True, slots=True)
class Run:
    """What became of a job: where and when it ran.

    ``slowdown`` is the mean over its run, against running alone on the whole device; ``kept`` says whether the limits
    of its profile held in the mean. A job without limits always keeps them.
    """

    job: Job
    place: int
    start_s: float
    end_s: float
    slowdown: float
    kept: bool
    others: tuple[int, ...] = ()

    @property
    def places(self) -> tuple[int, ...]:
        """All places of the job; those beyond ``place`` are ``others``."""
        return (self.place, *self.others)

    @property
    def waiting_s(self) -> float:
        """From arrival to start."""
        return self.start_s - self.job.arrival_s
