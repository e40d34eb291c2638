"""Scheduling: the discrete-event simulation of a cluster whose jobs slow each other down.

Idea: a job has work, in seconds that it takes alone at its place, and does it at the rate ``1 / slowdown``. Rates at a
place change only when a job comes or goes there. At each such event the work done since the last one is subtracted,
the slowdowns are looked up anew, and the next end at this place is put on the heap; the entry of before is void, which
a version number tells. So every job causes a few events, whatever the number of GPUs, and arrivals are read one by one:
memory holds the places, the jobs that run or wait, and sums.

The loop is a heap and a while, written by hand: SimPy as the clock of the same simulation takes longer, keeps void
events until they are due, and would be a dependency (`benchmarks/packing.py` measures both). Tests compare the two.
"""

import heapq
import math
from collections.abc import Callable, Iterable, Iterator

from foretell.errors import InputError
from foretell.scheduling.cluster import Cluster
from foretell.scheduling.jobs import Job, Profile, Run
from foretell.scheduling.policies.policy import Policy
from foretell.scheduling.slowdowns import Slowdowns, remembered
from foretell.scheduling.state import Member, PlaceState
from foretell.scheduling.totals import Totals
from foretell.scheduling.waiting import Waiting

OVERTAKEN_PER_PLACE = 8
_TOLERANCE = 1e-9
_VOID_PER_PLACE = 4

OnDone = Callable[[Run], Iterable[Job]]
"""Called when a job has ended; returns the jobs that arrive because of it."""


def simulate(
    jobs: Iterable[Job], cluster: Cluster, policy: Policy, slowdowns: Slowdowns, on_done: OnDone | None = None
) -> Totals:
    """Run all jobs, in the order of their arrival, and return the sums.

    Args:
        jobs: Read one by one; their arrival times must not go back.
        cluster: Where they run.
        policy: Decides where and when a job starts, with the slowdowns that it knows.
        slowdowns: The true ones, with which time advances.
        on_done: Gets the run of every job.
    """
    return Simulation(cluster, policy, slowdowns, on_done).run(jobs)


class Simulation:
    """One run of a cluster."""

    def __init__(self, cluster: Cluster, policy: Policy, slowdowns: Slowdowns, on_done: OnDone | None = None) -> None:
        self.states = [PlaceState(place) for place in cluster.places]
        self.totals = Totals(cluster.gpus)
        self._kinds = {kind.name: kind for kind in cluster.kinds}
        self._policy = policy
        self._slowdowns = remembered(slowdowns)
        self._on_done = on_done
        self._waiting = Waiting(OVERTAKEN_PER_PLACE * len(cluster.places))
        self._ends: list[tuple[float, int, int]] = []
        self._now = 0.0
        self._checked: set[int] = set()

    def run(self, jobs: Iterable[Job]) -> Totals:
        """Run until the last job has ended."""
        self._policy.watch(self.states)
        arrivals = _in_order(jobs)
        upcoming = next(arrivals, None)
        while upcoming is not None or self._ends:
            if upcoming is not None and (not self._ends or upcoming.arrival_s <= self._ends[0][0]):
                self._now = upcoming.arrival_s
                self._arrive(upcoming)
                upcoming = next(arrivals, None)
                continue
            end_s, number, version = heapq.heappop(self._ends)
            state = self.states[number]
            if version == state.version:
                self._now = end_s
                self._end_at(state)
        if self._waiting.jobs:  # a policy that refuses an idle place to a job that fits
            raise RuntimeError(f"{self._waiting.jobs} jobs were never started")
        return self.totals

    def _arrive(self, job: Job) -> None:
        profile = job.profile
        if profile.number not in self._checked:
            check_fits(profile, self._kinds)
            self._checked.add(profile.number)
        # equal jobs that wait were refused by every place as it is now
        if profile not in self._waiting and self._waiting.is_patient:
            state = self._policy.find(profile)
            if state is not None:
                self._waiting.overtake()
                self._start(state, job)
                return
        self._waiting.add(job)

    def _start(self, state: PlaceState, job: Job) -> None:
        self._advance(state)
        state.add(Member(job, state.kind.name, self._now))
        self._policy.changed(state)
        self._plan(state)

    def _end_at(self, state: PlaceState) -> None:
        self._advance(state)
        # the one that ends next was put on the heap; rounding may leave it some work, and others may end with it
        first = min(state.members, key=_rest)
        limit_s = max(_rest(first), _TOLERANCE * first.demand.alone_ms)
        released: list[Job] = []
        for member in [member for member in state.members if _rest(member) <= limit_s]:
            state.remove(member)
            released += self._finish(state, member)
        self._policy.changed(state)
        while self._waiting.jobs and len(state.members) < state.kind.max_jobs:
            profile = self._policy.choose(state, self._waiting.heads())
            if profile is None:
                break
            state.add(Member(self._waiting.take(profile), state.kind.name, self._now))
            self._policy.changed(state)
        self._plan(state)
        for job in released:
            self._arrive(job)

    def _finish(self, state: PlaceState, member: Member) -> Iterable[Job]:
        job, demand = member.job, member.demand
        alone_s = job.alone_s(demand)
        slowdown = (self._now - member.start_s) / alone_s if alone_s else 1.0
        kept = slowdown <= job.profile.allowed_slowdown(demand) * (1 + _TOLERANCE) + _TOLERANCE
        run = Run(job, state.number, member.start_s, self._now, slowdown * demand.slice_slowdown, kept)
        self.totals.add(run)
        return self._on_done(run) if self._on_done is not None else ()

    def _advance(self, state: PlaceState) -> None:
        """Subtract the work that was done since the last change."""
        passed_s = self._now - state.updated_s
        state.updated_s = self._now
        if passed_s > 0 and state.members:
            for member in state.members:
                member.left_s -= passed_s * member.rate
            self.totals.active_s += passed_s * state.activity
            self.totals.busy_s += passed_s * state.busy
            self.totals.work_s += passed_s * state.work
            if len(state.members) > 1:
                self._policy.observed(state)

    def _plan(self, state: PlaceState) -> None:
        """Set the rates, and put the next end at this place on the heap."""
        state.version += 1
        if not state.members:
            return
        slowdowns = self._slowdowns(state.kind, state.profiles)
        state.set_rates(slowdowns)
        soonest_s = min(map(_rest, state.members))
        if not math.isfinite(soonest_s):
            names = ", ".join(member.job.name for member in state.members)
            raise InputError(f"The slowdowns of {names} at {state.kind.name} are not finite: they never end.")
        self._expect(state, self._now + max(soonest_s, 0.0))

    def _expect(self, state: PlaceState, end_s: float) -> None:
        heapq.heappush(self._ends, (end_s, state.number, state.version))
        if len(self._ends) > _VOID_PER_PLACE * len(self.states):
            self._ends = [entry for entry in self._ends if entry[2] == self.states[entry[1]].version]
            heapq.heapify(self._ends)


def check_fits(profile: Profile, kinds: Iterable[str]) -> None:
    """Refuse a job that no place can run, even alone."""
    if not any(name in profile.demands for name in kinds):
        raise InputError(f"Job {profile.name!r} fits no place of the cluster: it needs more memory than any has.")


def _rest(member: Member) -> float:
    return member.left_s / member.rate if member.rate else math.inf


def _in_order(jobs: Iterable[Job]) -> Iterator[Job]:
    last_s = 0.0
    for job in jobs:
        if not (job.arrival_s >= 0 and math.isfinite(job.arrival_s)):
            raise InputError(f"Job {job.name!r} arrives at {job.arrival_s} s; it must be a time of at least 0.")
        if job.arrival_s < last_s:
            raise InputError(f"Job {job.name!r} arrives at {job.arrival_s:g} s, before the one ahead of it: sort them.")
        if not (job.steps > 0 and math.isfinite(job.steps)):
            raise InputError(f"Job {job.name!r} has {job.steps} steps of work; it must be a number above 0.")
        last_s = job.arrival_s
        yield job
