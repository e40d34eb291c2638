"""Scheduling: the discrete-event simulation of a cluster whose jobs slow each other down.

Idea: a job has work, in seconds that it takes alone at its place, and does it at the rate ``1 / slowdown``. Rates at a
place change only when a job comes or goes there. At each such event the work done since the last one is subtracted,
the slowdowns are looked up anew, and the next end at this place is put on the heap; the entry of before is void, which
a version number tells. So every job causes a few events, whatever the number of GPUs, and arrivals are read one by one:
memory holds the places, the jobs that run or wait, and sums.

A job of several GPUs (a gang) starts when that many whole GPUs of one kind are idle. Jobs of one GPU overtake it while
they may, as they overtake any job that waits; then places are left empty until it can start.

The loop is a heap and a while, written by hand: SimPy as the clock of the same simulation takes longer, keeps void
events until they are due, and would be a dependency (`benchmarks/packing.py` measures both). Tests compare the two.
"""

import heapq
import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from foretell.errors import InputError
from foretell.scheduling.cluster import Cluster
from foretell.scheduling.jobs import Job, Profile, Run
from foretell.scheduling.policies.policy import Policy
from foretell.scheduling.slowdowns import Slowdowns, remembered
from foretell.scheduling.state import Member, PlaceState
from foretell.scheduling.totals import Totals
from foretell.scheduling.waiting import Head, Waiting

OVERTAKEN_PER_PLACE = 8
_TOLERANCE = 1e-9
_VOID_PER_PLACE = 4

OnDone = Callable[[Run], Iterable[Job]]
"""Called when a job has ended; returns the jobs that arrive because of it."""


def simulate(
    jobs: Iterable[Job],
    cluster: Cluster,
    policy: Policy,
    slowdowns: Slowdowns,
    on_done: OnDone | None = None,
    *,
    longest_first: bool = False,
) -> Totals:
    """Run all jobs, in the order of their arrival, and return the sums.

    Args:
        jobs: Read one by one; their arrival times must not go back.
        cluster: Where they run.
        policy: Decides where and when a job starts, with the slowdowns that it knows.
        slowdowns: The true ones, with which time advances.
        on_done: Gets the run of every job.
        longest_first: Of equal jobs that wait, the one with most work starts first, not the oldest.
    """
    return Simulation(cluster, policy, slowdowns, on_done, longest_first=longest_first).run(jobs)


class Simulation:
    """One run of a cluster."""

    def __init__(
        self,
        cluster: Cluster,
        policy: Policy,
        slowdowns: Slowdowns,
        on_done: OnDone | None = None,
        *,
        longest_first: bool = False,
    ) -> None:
        self.states = [PlaceState(place) for place in cluster.places]
        self.totals = Totals(cluster.gpus)
        self._wholes = Counter(place.kind.name for place in cluster.places if place.kind.slice is None)
        self._kinds = {kind.name: kind for kind in cluster.kinds}
        self._policy = policy
        self._slowdowns = remembered(slowdowns)
        self._on_done = on_done
        self._waiting = Waiting(OVERTAKEN_PER_PLACE * len(cluster.places), longest_first=longest_first)
        self._idle: dict[str, dict[int, None]] = {name: {} for name in self._kinds}  # sets that keep their order
        for state in self.states:
            self._idle[state.kind.name][state.number] = None
        self._followers: dict[int, list[PlaceState]] = {}  # of the first place of a gang, the others
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
            check_gpus(profile, self._wholes)
            self._checked.add(profile.number)
        # equal jobs that wait were refused by every place as it is now
        if profile not in self._waiting and self._waiting.is_patient:
            if profile.gpus > 1:
                states = self._idle_gpus(profile)
            else:
                found = self._policy.find(profile)
                states = [] if found is None else [found]
            if states:
                self._waiting.overtake()
                self._start(states, job)
                return
        self._waiting.add(job)

    def _idle_gpus(self, profile: Profile) -> list[PlaceState]:
        """As many idle GPUs as a gang needs, of the fastest kind that keeps its limit; none if there are too few."""
        keeps = {name for name, demand in profile.demands.items() if profile.allowed_slowdown(demand) >= 1}
        for name in sorted(profile.demands, key=lambda name: profile.demands[name].alone_ms):
            idle = self._idle.get(name, {})
            if len(idle) >= profile.gpus <= self._wholes[name] and (not keeps or name in keeps):
                return [self.states[number] for number in heapq.nsmallest(profile.gpus, idle)]
        return []

    def _start(self, states: Sequence[PlaceState], job: Job) -> None:
        for state in states:
            self._advance(state)
            self._add(state, job)
        self._lead(states)
        for state in states:
            self._plan(state)

    def _lead(self, states: Sequence[PlaceState]) -> None:
        """The first place of a gang does the work for all: the others only wait for it."""
        if len(states) > 1:
            self._followers[states[0].number] = list(states[1:])

    def _add(self, state: PlaceState, job: Job) -> None:
        self._idle[state.kind.name].pop(state.number, None)
        state.add(Member(job, state.kind.name, self._now))
        self._policy.changed(state)

    def _end_at(self, state: PlaceState) -> None:
        self._advance(state)
        # the one that ends next was put on the heap; rounding may leave it some work, and others may end with it
        first = min(state.members, key=_rest)
        limit_s = max(_rest(first), _TOLERANCE * first.demand.alone_ms)
        released: list[Job] = []
        followers = self._followers.pop(state.number, [])
        for member in [member for member in state.members if _rest(member) <= limit_s]:
            state.remove(member)
            released += self._finish(state, member, followers)
        for other in followers:
            self._advance(other)
            other.remove(other.members[0])
        for one in (state, *followers):
            if not one.members:
                self._idle[one.kind.name][one.number] = None
            self._policy.changed(one)
        was_patient = self._waiting.is_patient
        for one in (state, *followers):
            self._fill(one)
            self._plan(one)
        if not was_patient and self._waiting.is_patient:
            # while the oldest job could not be overtaken, other places were left empty
            for one in self.states:
                if self._waiting.jobs and len(one.members) < one.kind.max_jobs:
                    self._advance(one)
                    self._fill(one)
                    self._plan(one)
        for job in released:
            self._arrive(job)

    def _fill(self, state: PlaceState) -> None:
        """Start jobs that wait at a place where there is room."""
        if self._waiting.gangs and not state.members:
            self._start_gangs()
        while self._waiting.jobs and len(state.members) < state.kind.max_jobs:
            heads = self._waiting.heads()
            if self._waiting.gangs:
                heads = [head for head in heads if head[1].gpus == 1]
            profile = self._policy.choose(state, heads) if heads else None
            if profile is None:
                break
            self._add(state, self._waiting.take(profile))

    def _start_gangs(self) -> None:
        """Start the gangs that wait and have enough idle GPUs, the oldest first."""
        for _, profile in sorted((head for head in self._waiting.heads() if head[1].gpus > 1), key=_rank):
            while profile in self._waiting and (states := self._idle_gpus(profile)):
                self._start(states, self._waiting.take(profile))

    def _finish(self, state: PlaceState, member: Member, followers: Sequence[PlaceState]) -> Iterable[Job]:
        job, demand = member.job, member.demand
        alone_s = job.alone_s(demand)
        slowdown = (self._now - member.start_s) / alone_s if alone_s else 1.0
        kept = slowdown <= job.profile.allowed_slowdown(demand) * (1 + _TOLERANCE) + _TOLERANCE
        others = tuple(other.number for other in followers)
        run = Run(job, state.number, member.start_s, self._now, slowdown * demand.slice_slowdown, kept, others)
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
        if not self._follows(state):
            self._expect(state, self._now + max(soonest_s, 0.0))

    def _follows(self, state: PlaceState) -> bool:
        """Whether the job here ends with that at another place."""
        return state.profiles[0].gpus > 1 and state.number not in self._followers

    def _expect(self, state: PlaceState, end_s: float) -> None:
        heapq.heappush(self._ends, (end_s, state.number, state.version))
        if len(self._ends) > _VOID_PER_PLACE * len(self.states):
            self._ends = [entry for entry in self._ends if entry[2] == self.states[entry[1]].version]
            heapq.heapify(self._ends)


def check_fits(profile: Profile, kinds: Iterable[str]) -> None:
    """Refuse a job that no place can run, even alone."""
    if not any(name in profile.demands for name in kinds):
        raise InputError(f"Job {profile.name!r} fits no place of the cluster: it needs more memory than any has.")


def check_gpus(profile: Profile, wholes: Mapping[str, int]) -> None:
    """Refuse a job of more GPUs than the cluster has of any kind that can run it."""
    most = max((wholes.get(name, 0) for name in profile.demands), default=0)
    if profile.gpus > 1 and profile.gpus > most:
        raise InputError(
            f"Job {profile.name!r} needs {profile.gpus:,} whole GPUs of one kind, and the cluster has {most:,} for it."
        )


def _rank(head: Head) -> float:
    return head[0]


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
