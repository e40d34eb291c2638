"""Scheduling: how much jobs slow each other down. This is all that the simulation knows about sharing a GPU.

`Slowdowns` is the interface: whoever predicts or has measured slowdowns implements it. A policy decides with one such
object, and the simulation advances with another: what was predicted, and what is true.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from foretell.scheduling.cluster import EXCLUSIVE, TIME_SLICING, PlaceKind
from foretell.scheduling.jobs import Profile

# 131 pairs and 79 trios of replayed steps on an H200: each takes 1.105 times as long as its turns add up to
_SWITCHING = 0.105
_MOST_REMEMBERED = 200_000


class Slowdowns(Protocol):
    """The slowdown of each job when jobs of these profiles run together at one place."""

    def __call__(self, kind: PlaceKind, profiles: Sequence[Profile]) -> Sequence[float]:
        """One number for each profile, in their order: time together over time alone at this place, at least 1."""


Margins = Callable[[PlaceKind, Sequence[Profile]], Sequence[float]]
"""How much larger than predicted each slowdown may well be, as a share of it: what a policy leaves for errors."""


@dataclass(frozen=True, slots=True)
class Contention:
    """Slowdowns by what the jobs demand: a rule of thumb where nothing was measured or fitted.

    Idea: under MPS, kernels of different jobs run side by side while SMs and bandwidth last. Where the demands for a
    resource add up to more than it has, a job waits in proportion to what it needs of it:
    ``1 + max over resources of share of the job * (total - 1) / share of the most demanding job``. Under time-slicing
    one job runs at a time: a job waits for the turns of the others, as long as these have kernels to run, and for the
    switching, which takes a tenth (measured on an H200).

    Limits: caches, block scheduling and phases are not in it. On 46 pairs measured under MPS on an H200 it is 33 % off,
    on 22 trios 57 %, and mostly too low. It is a default until something better is given.
    """

    def __call__(self, kind: PlaceKind, profiles: Sequence[Profile]) -> Sequence[float]:
        """See `Slowdowns`."""
        if len(profiles) < 2:
            return [1.0] * len(profiles)
        demands = [profile.demands[kind.name] for profile in profiles]
        if kind.method == TIME_SLICING:
            total = sum(demand.utilisation for demand in demands)
            others = (total - demand.utilisation for demand in demands)
            return [(1 + other) * (1 + _SWITCHING * min(1.0, other)) for other in others]
        slowdowns = [1.0] * len(demands)
        for shares in ([d.sm_share for d in demands], [d.bandwidth_share for d in demands]):
            over, most = sum(shares) - 1, max(shares)
            if over > 0:
                slowdowns = [max(s, 1 + over * share / most) for s, share in zip(slowdowns, shares)]
        return slowdowns


@dataclass(frozen=True, slots=True)
class MeasuredSlowdowns:
    """Slowdowns from a table of measured groups, by the names of the profiles; others are asked for the rest.

    ``groups`` maps a method and sorted names to the slowdowns in that order. A pair that could not run together has
    infinite slowdowns.
    """

    groups: Mapping[tuple[str, tuple[str, ...]], tuple[float, ...]] = field(repr=False)
    otherwise: Slowdowns

    def __call__(self, kind: PlaceKind, profiles: Sequence[Profile]) -> Sequence[float]:
        """See `Slowdowns`."""
        if len(profiles) < 2:
            return [1.0] * len(profiles)
        order = sorted(range(len(profiles)), key=lambda index: profiles[index].name)
        known = self.groups.get((kind.method, tuple(profiles[index].name for index in order)))
        if known is None:
            return self.otherwise(kind, profiles)
        slowdowns = [1.0] * len(profiles)
        for index, slowdown in zip(order, known, strict=True):
            slowdowns[index] = slowdown
        return slowdowns


def remembered(slowdowns: Slowdowns) -> Callable[[PlaceKind, tuple[Profile, ...]], Sequence[float]]:
    """The same slowdowns, each group computed once while there is room; the order of the profiles counts."""
    memory: dict[tuple[str, tuple[int, ...]], Sequence[float]] = {}

    def ask(kind: PlaceKind, profiles: tuple[Profile, ...]) -> Sequence[float]:
        key = (kind.name, tuple([profile.number for profile in profiles]))
        found = memory.get(key)
        if found is None:
            if len(memory) >= _MOST_REMEMBERED:
                memory.clear()
            found = memory[key] = slowdowns(kind, profiles) if kind.method != EXCLUSIVE else [1.0] * len(profiles)
        return found

    return ask
