"""Scheduling: packing by predicted slowdowns and the jobs' limits: the policy of this project.

Idea: a job may join others where the predicted slowdown of every member keeps that member's limit, with a margin for
the error of the prediction, and where the place as a whole becomes faster by at least ``min_gain`` jobs alone. A job
that arrives takes an idle place of the fastest kind as long as there is any. Otherwise partners are chosen by what they
gain together beyond what the chosen one gains with others on average: a small job that goes with everybody is not
wasted on another small one. That is worth one point of makespan against choosing by the gain alone.

What is predicted once is observed later: when jobs have run together, their speeds are known, and the next decision
about equal jobs uses these, without a margin. A prediction is needed for what has never run together.

A limit holds in the mean over a job's run. So it is a budget: a job that ran faster than it had to may be slowed down
more later, as far as it still keeps its limit if nothing changes until its end.

Places with equal members are one group, and a decision is made once for a group and a profile, and remembered. So the
effort grows with the number of different groups, not with the number of GPUs. Groups of two and more members may be as
many as GPUs: of each size, the 64 that opened last are looked at.
"""

import math
from collections.abc import Iterator, Sequence
from itertools import islice
from operator import le

from foretell.scheduling.cluster import PlaceKind
from foretell.scheduling.jobs import Profile
from foretell.scheduling.policies.policy import Apart, has_room
from foretell.scheduling.slowdowns import Margins, Slowdowns
from foretell.scheduling.state import Member, PlaceState
from foretell.scheduling.waiting import Head

_MOST_GROUPS = 20_000
_MOST_LOOKED_AT = 64
_MOST_SEEN = 100_000
_FEWEST_PAIRS = 5
_TOLERANCE = 1e-9  # of a limit, as the simulation judges it
Key = tuple[str, tuple[int, ...]]
"""The kind of a place, and the sorted numbers of the profiles that run there."""


class Group:
    """Places of one kind with equal members, what a job of each profile would gain there, and how slow they would be.

    ``slowed`` has the slowdowns of the present members beside a job of a profile, with the margin.
    """

    __slots__ = ("gains", "kind", "numbers", "profiles", "slowed", "speed", "used_mib")

    def __init__(self, kind: PlaceKind, profiles: tuple[Profile, ...], speed: float) -> None:
        self.kind = kind
        self.profiles = profiles
        self.used_mib = sum(profile.demands[kind.name].memory_mib for profile in profiles)
        self.speed = speed
        self.numbers: dict[int, None] = {}  # a set that keeps its order
        self.gains: dict[int, float | None] = {}
        self.slowed: dict[int, list[float]] = {}


class SlowdownPacking:
    """Starts a job where it gains most, if all members keep their limits."""

    def __init__(
        self,
        predicted: Slowdowns,
        apart: Apart = (),
        *,
        margin: float | Margins = 0.15,
        min_gain: float = 0.05,
        learns: bool = True,
    ) -> None:
        self._predicted = predicted
        self._apart = apart
        self._margin = margin
        self._min_gain = min_gain
        self._learns = learns
        self._seen: dict[Key, dict[int, float]] = {}
        self._usual: dict[int, tuple[float, int]] = {}  # the sum of what a profile gains in pairs, and their number
        self._states: Sequence[PlaceState] = ()
        self._groups: dict[Key, Group] = {}
        self._open: list[dict[Key, Group]] = []  # by number of members
        self._group_of: list[Key] = []
        self._spare: list[list[float]] = []  # by place: how slow each member may be from now on

    def watch(self, states: Sequence[PlaceState]) -> None:
        """See `Policy`."""
        self._states = states
        self._groups, self._seen, self._usual = {}, {}, {}
        self._open = [{} for _ in range(max(state.kind.max_jobs for state in states))]
        self._group_of = [(state.kind.name, ()) for state in states]
        self._spare = [[] for _ in states]
        for state in states:
            self._put(state, self._group_of[state.number])

    def changed(self, state: PlaceState) -> None:
        """See `Policy`."""
        before = self._group_of[state.number]
        if len(before[1]) < state.kind.max_jobs:
            group = self._groups[before]
            del group.numbers[state.number]
            if not group.numbers:
                del self._open[len(before[1])][before]
        key = (state.kind.name, tuple(sorted([profile.number for profile in state.profiles])))
        self._group_of[state.number] = key
        # in the order of a group's profiles; members of one profile are slowed down equally
        members = sorted(state.members, key=_profile_number)
        self._spare[state.number] = [_spare_slowdown(member, state.updated_s) for member in members]
        self._put(state, key)

    def observed(self, state: PlaceState) -> None:
        """See `Policy`. What was decided with the prediction is forgotten."""
        key = self._group_of[state.number]
        if not self._learns or key in self._seen or len(self._seen) >= _MOST_SEEN:
            return
        numbers = [profile.number for profile in state.profiles]
        self._seen[key] = dict(zip(numbers, state.slowdowns, strict=True))
        group = self._groups.get(key)
        if group is not None:
            group.gains.clear()
            group.speed = self._speed(group.kind, group.profiles)
        for number in set(numbers):
            rest = list(key[1])
            rest.remove(number)
            smaller = self._groups.get((key[0], tuple(rest)))
            if smaller is not None:
                smaller.gains.pop(number, None)

    def _put(self, state: PlaceState, key: Key) -> None:
        group = self._group(state, key)
        if len(state.members) < state.kind.max_jobs:
            group.numbers[state.number] = None
            self._open[len(state.members)][key] = group

    def _group(self, state: PlaceState, key: Key) -> Group:
        group = self._groups.get(key)
        if group is None:
            if len(self._groups) > _MOST_GROUPS:
                self._groups = {key: group for groups in self._open for key, group in groups.items()}
            ordered = tuple(sorted(state.profiles, key=lambda profile: profile.number))
            group = self._groups[key] = Group(state.kind, ordered, self._speed(state.kind, ordered))
        return group

    def find(self, profile: Profile) -> PlaceState | None:
        """See `Policy`."""
        best: float = -math.inf
        chosen: int | None = None
        for group in self._candidates():
            gain = self._gain(group, profile)
            if gain == 1:  # an idle place of the fastest kind
                return self._states[next(iter(group.numbers))]
            if gain is None:
                continue
            beyond = gain - sum([self._usual_gain(member) for member in group.profiles])
            if beyond > best:
                number = self._place(group, profile)
                if number is not None:
                    best, chosen = beyond, number
        return None if chosen is None else self._states[chosen]

    def _place(self, group: Group, profile: Profile) -> int | None:
        """A place of the group all of whose members keep their limits beside a job; of many, some are looked at."""
        numbers = islice(group.numbers, _MOST_LOOKED_AT)
        return next((number for number in numbers if self._keeps(group, profile, number)), None)

    def _keeps(self, group: Group, profile: Profile, number: int) -> bool:
        return all(map(le, group.slowed.get(profile.number, ()), self._spare[number]))

    def _candidates(self) -> Iterator[Group]:
        for members, groups in enumerate(self._open):
            yield from groups.values() if members < 2 else islice(reversed(groups.values()), _MOST_LOOKED_AT)

    def choose(self, state: PlaceState, heads: Sequence[Head]) -> Profile | None:
        """See `Policy`."""
        group = self._group(state, self._group_of[state.number])
        best: tuple[float, float] | None = None
        chosen = None
        for number, profile in heads:
            gain = self._gain(group, profile)
            if gain is not None and self._keeps(group, profile, state.number):
                beyond = (gain - self._usual_gain(profile) if group.profiles else gain, -number)
                if best is None or beyond > best:
                    best, chosen = beyond, profile
        return chosen

    def _gain(self, group: Group, profile: Profile) -> float | None:
        try:
            return group.gains[profile.number]
        except KeyError:
            gain = group.gains[profile.number] = self._judge(group, profile)
            if len(group.profiles) == 1 and group.profiles[0].gpus == 1:
                for one in (profile, group.profiles[0]):
                    total, count = self._usual.get(one.number, (0.0, 0))
                    self._usual[one.number] = (total + (gain or 0.0), count + 1)
            return gain

    def _usual_gain(self, profile: Profile) -> float:
        """What a job of this profile gains in a pair, mean over the profiles that it was judged with."""
        total, count = self._usual.get(profile.number, (0.0, 0))
        return total / count if count >= _FEWEST_PAIRS else 0.0

    def _judge(self, group: Group, profile: Profile) -> float | None:
        """What a place gains by a job, in jobs that run alone at their fastest; None if it must not join.

        Whether the members that are there keep their limits differs from place to place: see `_keeps`.
        """
        kind = group.kind
        if not has_room(kind, group.profiles, group.used_mib, profile, self._apart):
            return None
        if not group.profiles:
            return self._alone(kind, profile)
        together = (*group.profiles, profile)
        slowdowns, is_known = self._expected(kind, together)
        margins = [0.0] * len(together) if is_known else self._margins(kind, together)
        *present, own = [slowdown * (1 + margin) for slowdown, margin in zip(slowdowns, margins, strict=True)]
        if own > profile.allowed_slowdown(profile.demands[kind.name]):
            return None
        group.slowed[profile.number] = present
        gain = _total_speed(kind, together, slowdowns) - group.speed
        return gain if gain >= self._min_gain else None

    def _margins(self, kind: PlaceKind, profiles: Sequence[Profile]) -> Sequence[float]:
        return self._margin(kind, profiles) if callable(self._margin) else [self._margin] * len(profiles)

    def _alone(self, kind: PlaceKind, profile: Profile) -> float | None:
        """An idle place is refused only where the limit would break and another kind of place would keep it."""
        keeps = {name for name, demand in profile.demands.items() if profile.allowed_slowdown(demand) >= 1}
        return profile.best_ms / profile.demands[kind.name].alone_ms if not keeps or kind.name in keeps else None

    def _speed(self, kind: PlaceKind, profiles: tuple[Profile, ...]) -> float:
        return _total_speed(kind, profiles, self._expected(kind, profiles)[0]) if profiles else 0.0

    def _expected(self, kind: PlaceKind, profiles: tuple[Profile, ...]) -> tuple[Sequence[float], bool]:
        """The slowdowns of a group, and whether they were observed."""
        seen = self._seen.get((kind.name, tuple(sorted([profile.number for profile in profiles]))))
        if seen is None:
            return self._predicted(kind, profiles), False
        return [seen[profile.number] for profile in profiles], True


class OraclePacking(SlowdownPacking):
    """The same with true slowdowns and without a margin."""

    def __init__(self, true: Slowdowns, apart: Apart = ()) -> None:
        super().__init__(true, apart, margin=0.0, learns=False)


def _profile_number(member: Member) -> int:
    return member.job.profile.number


def _spare_slowdown(member: Member, now_s: float) -> float:
    """How slow a job may be from now to its end, so that it keeps its limit in the mean.

    While nothing changes at its place, a job that keeps its limit may be slowed down more from minute to minute: what
    was said at the last change is careful.
    """
    allowed = member.job.profile.allowed_slowdown(member.demand)
    if math.isinf(allowed) or member.left_s <= 0:
        return math.inf
    left_s = allowed * member.job.alone_s(member.demand) - (now_s - member.start_s)
    return (1 + _TOLERANCE) * left_s / member.left_s


def _total_speed(kind: PlaceKind, profiles: Sequence[Profile], slowdowns: Sequence[float]) -> float:
    return sum(
        profile.best_ms / (profile.demands[kind.name].alone_ms * slowdown)
        for profile, slowdown in zip(profiles, slowdowns, strict=True)
    )
