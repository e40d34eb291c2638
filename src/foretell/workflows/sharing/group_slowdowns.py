"""Workflows: slowdowns for the simulation of a cluster, from the model of sharing where launches are known.

A cluster asks about the same few kinds of jobs over and over, so every group of equal jobs is predicted once, and those
that a policy will ask about next are predicted with it: a hundred pairs take four times as long as one. Pairs come from
the model. So do trios, until 128 of them are known; further trios and larger groups add up what their pairs say,
``1 + sum of (slowdown in a pair - 1)``: 5 % off what the model says of trios, and 4 % too low.

Groups with a job whose launches nobody knows, on slices, and on GPUs whose sharing nobody measured, are left to a rule.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations_with_replacement, islice
from typing import TYPE_CHECKING

from foretell.scheduling.cluster import EXCLUSIVE, MPS, TIME_SLICING, PlaceKind
from foretell.scheduling.jobs import Profile
from foretell.scheduling.slowdowns import Slowdowns

if TYPE_CHECKING:
    from foretell.predictors.sharing.jobs import Job
    from foretell.predictors.sharing.model import SharingModel

_MOST = {2: 2_000, 3: 128}  # groups of so many jobs that the model is asked about: half a minute in all
_AT_A_TIME = {2: 256, 3: 32}
# of the width of a 90 % interval: a plan that nobody corrects then breaks 1 % of the limits; with 0.4 it would be 4 %
CAUTION = 0.6
_MARGIN_OF_RULE = 0.15


@dataclass(frozen=True, slots=True)
class MeasuredDevice:
    """A device whose sharing was measured, and the launches of those profiles that have a model.

    The key of ``launches`` is the name of a kind of place and the number of a profile.
    """

    model: "SharingModel"
    launches: "dict[tuple[str, int], Job]"


class GroupSlowdowns:
    """The slowdowns of groups (see `Slowdowns`), and the margin that a policy should leave for their error.

    ``devices`` is by the name of a device in the catalogue.
    """

    def __init__(self, devices: Mapping[str, MeasuredDevice], otherwise: Slowdowns) -> None:
        self._devices = devices
        self._otherwise = otherwise
        self._groups = {name: _DeviceGroups(device) for name, device in devices.items()}
        self.by_rule: dict[str, None] = {}
        """The names of profiles because of which slowdowns under MPS came from the rule, in the order of asking."""

    @property
    def asked(self) -> int:
        """How many groups the models of sharing have predicted."""
        return sum(groups.predicted for groups in self._groups.values())

    @property
    def summed(self) -> bool:
        """Whether a group was put together from its pairs."""
        return any(groups.summed for groups in self._groups.values())

    def __call__(self, kind: PlaceKind, profiles: Sequence[Profile]) -> Sequence[float]:
        """See `Slowdowns`."""
        known = self._logs(kind, profiles)
        return self._ruled(kind, profiles) if known is None else [math.exp(log) for log, _ in known]

    def margins(self, kind: PlaceKind, profiles: Sequence[Profile]) -> Sequence[float]:
        """How much larger than predicted each slowdown may well be: 0.15 is 15 %. See `Margins`."""
        known = self._logs(kind, profiles)
        if known is None:
            return [_MARGIN_OF_RULE] * len(profiles)
        return [math.expm1(CAUTION * width) for _, width in known]

    def _logs(self, kind: PlaceKind, profiles: Sequence[Profile]) -> list[tuple[float, float]] | None:
        """The log slowdown of each member and the width of its interval; None where the models do not know."""
        if len(profiles) < 2 or kind.method == EXCLUSIVE:
            return [(0.0, 0.0)] * len(profiles)
        device = self._devices.get(kind.device.id)
        if device is None or kind.slice is not None:
            return None
        model = device.model
        if kind.method == TIME_SLICING:
            # each process has its turn, whatever it computes, as long as it always has work
            turns = {one.members: (math.log(one.slowdown), one.width) for one in model.time_slices}
            always = all(profile.demands[kind.name].utilisation >= 1 for profile in profiles)
            return [turns[len(profiles)]] * len(profiles) if always and len(profiles) in turns else None
        groups = self._groups[kind.device.id]
        members = [groups.members.get((kind.name, profile.number)) for profile in profiles]
        known = [member for member in members if member is not None]
        logs = groups.logs(known) if len(known) == len(members) else None
        return None if logs is None else [(log, model.width(log)) for log in logs]

    def _ruled(self, kind: PlaceKind, profiles: Sequence[Profile]) -> Sequence[float]:
        if kind.method == MPS:
            groups = self._groups.get(kind.device.id)
            members = groups.members if groups is not None else {}
            unknown = [profile.name for profile in profiles if (kind.name, profile.number) not in members]
            self.by_rule |= dict.fromkeys(unknown or (profile.name for profile in profiles))
        return self._otherwise(kind, profiles)


class _DeviceGroups:
    """Groups under MPS on one kind of device, each predicted once. Members are numbers; equal jobs have one."""

    def __init__(self, device: MeasuredDevice) -> None:
        self._model = device.model
        self._jobs = list({job.digest: job for job in device.launches.values()}.values())
        numbers = {job.digest: number for number, job in enumerate(self._jobs)}
        self.members = {key: numbers[job.digest] for key, job in device.launches.items()}
        self._known: dict[tuple[int, ...], list[float]] = {}
        self._counts = {2: 0, 3: 0}
        self.summed = False

    @property
    def predicted(self) -> int:
        """How many groups the model has predicted."""
        return sum(self._counts.values())

    def logs(self, members: Sequence[int]) -> list[float] | None:
        """The log slowdown of each member; None where too many pairs were asked for."""
        key = tuple(sorted(members))
        if key not in self._known and not self._predict(key):
            return None
        found = dict(zip(key, self._known[key], strict=True))  # equal members have equal slowdowns
        return [found[member] for member in members]

    def _predict(self, key: tuple[int, ...]) -> bool:
        """Make a group known; False if that would take too long."""
        size = len(key)
        left = _MOST.get(size, 0) - self._counts.get(size, 0)
        if left > 0:
            unknown = (group for group in self._likely(key) if group not in self._known)
            self._ask(list(dict.fromkeys(islice(unknown, min(left, _AT_A_TIME[size])))))
            return True
        return size > 2 and self._add_up(key)

    def _likely(self, key: tuple[int, ...]) -> Iterator[tuple[int, ...]]:
        """A group, and those that a policy will ask about soon: others that join the same ones, then any pair."""
        yield key
        for other in range(len(self._jobs)):
            yield tuple(sorted((*key[:-1], other)))
        if len(key) == 2:
            yield from combinations_with_replacement(range(len(self._jobs)), 2)

    def _ask(self, groups: Sequence[tuple[int, ...]]) -> None:
        self._known |= zip(groups, batch_logs(self._model, [[self._jobs[m] for m in g] for g in groups]), strict=True)
        self._counts[len(groups[0])] += len(groups)

    def _add_up(self, key: tuple[int, ...]) -> bool:
        """A group from its pairs: what each of the others adds to a job's time alone."""
        slowdowns = []
        for place, one in enumerate(key):
            others = [other for number, other in enumerate(key) if number != place]
            pairs = [self.logs((one, other)) for other in others]
            if None in pairs:
                return False
            slowdowns.append(1 + sum(math.expm1(pair[0]) for pair in pairs if pair is not None))
        self._known[key] = [math.log(slowdown) for slowdown in slowdowns]
        self.summed = True
        return True


def batch_logs(model: "SharingModel", groups: "Sequence[Sequence[Job]]") -> list[list[float]]:
    """What `SharingModel.slowdowns` says of many groups at once, as logarithms."""
    asked = [list(group) for group in groups]
    free = {(number, one): _free_beside(group, one) for number, group in enumerate(asked) for one in _limited(group)}
    logs = model.mps_logs([*asked, *free.values()])
    for (number, one), without_limits in zip(free, logs[len(asked) :], strict=True):
        # less room for the others never slows a job down
        logs[number][one] = min(logs[number][one], without_limits[one])
    return logs[: len(asked)]


def _limited(group: "Sequence[Job]") -> list[int]:
    """The members beside whom others have a limit of the SMs."""
    return [one for one in range(len(group)) if any(job.share < 1 for place, job in enumerate(group) if place != one)]


def _free_beside(group: "Sequence[Job]", one: int) -> "list[Job]":
    return [job if place == one else replace(job, share=1.0) for place, job in enumerate(group)]
