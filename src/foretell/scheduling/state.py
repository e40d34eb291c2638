"""Scheduling: what runs at a place at one moment of a simulation."""

import math
from collections.abc import Sequence

from foretell.scheduling.cluster import Place, PlaceKind
from foretell.scheduling.jobs import Job, Profile


class Member:
    """A job that runs, and the work that it has left, in seconds alone at its place."""

    __slots__ = ("demand", "job", "left_s", "rate", "start_s")

    def __init__(self, job: Job, kind: str, start_s: float) -> None:
        self.job = job
        self.demand = job.profile.demands[kind]
        self.left_s = job.alone_s(self.demand)
        self.start_s = start_s
        self.rate = 1.0


class PlaceState:
    """The members of one place. Policies read it; only the simulation changes it."""

    __slots__ = (
        "activity", "busy", "kind", "members", "memory_mib", "number", "profiles", "slowdowns", "updated_s", "used_mib",
        "version", "weight", "work",
    )  # fmt: skip

    def __init__(self, place: Place) -> None:
        self.number = place.number
        self.kind: PlaceKind = place.kind
        self.weight = place.kind.sm_fraction  # of a GPU
        self.memory_mib = place.kind.memory_mib
        self.members: list[Member] = []
        self.profiles: tuple[Profile, ...] = ()
        self.slowdowns: Sequence[float] = ()
        self.used_mib = 0.0
        self.updated_s = 0.0
        self.version = 0
        self.activity = self.busy = self.work = 0.0

    def add(self, member: Member) -> None:
        """A job starts here."""
        self.members.append(member)
        self._changed()

    def remove(self, member: Member) -> None:
        """A job has ended."""
        self.members.remove(member)
        self._changed()

    def _changed(self) -> None:
        self.profiles = tuple([member.job.profile for member in self.members])
        self.used_mib = sum([member.demand.memory_mib for member in self.members])

    def set_rates(self, slowdowns: Sequence[float]) -> None:
        """Give every member its rate; ``activity``, ``busy`` and ``work`` are what this place does in a second."""
        self.slowdowns = slowdowns
        activity, idle, work = 0.0, 1.0, 0.0
        for member, slowdown in zip(self.members, slowdowns, strict=True):
            member.rate = 1.0 / slowdown if slowdown > 0 and not math.isinf(slowdown) else 0.0
            activity += member.demand.sm_share * member.rate
            work += member.rate
            idle *= 1.0 - member.demand.utilisation
        self.activity = min(1.0, activity) * self.weight
        self.work = work * self.weight
        self.busy = (1.0 - idle) * self.weight
