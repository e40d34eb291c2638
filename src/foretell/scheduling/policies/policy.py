"""Scheduling: what a policy is: it decides who starts where, and when.

All of them see the same: a job that arrives gets a place, or waits; when a job ends, its place may take those waiting.
They differ in what they count. None may start a job that lacks memory, or more jobs than the place allows. Jobs of
several GPUs are not their business: the simulation starts these on idle GPUs, and policies leave such GPUs alone.
"""

from collections.abc import Collection, Sequence
from typing import Protocol

from foretell.scheduling.cluster import PlaceKind
from foretell.scheduling.jobs import Profile
from foretell.scheduling.state import PlaceState
from foretell.scheduling.waiting import Head

Apart = Collection[tuple[int, int]]
"""Pairs of numbers of profiles whose jobs cannot run together for reasons beyond memory, both ways round."""


class Policy(Protocol):
    """Decides which job starts where."""

    def watch(self, states: Sequence[PlaceState]) -> None:
        """All places, before the first job arrives."""

    def changed(self, state: PlaceState) -> None:
        """A job has started or ended at this place."""

    def observed(self, state: PlaceState) -> None:
        """The members of this place ran together for a while; their true slowdowns are seen."""

    def find(self, profile: Profile) -> PlaceState | None:
        """The place where a job that arrives starts at once; None if it has to wait."""

    def choose(self, state: PlaceState, heads: Sequence[Head]) -> Profile | None:
        """Which of the jobs that wait starts at this place, where one has ended; None if none should."""


def has_room(kind: PlaceKind, present: Sequence[Profile], used_mib: float, profile: Profile, apart: Apart) -> bool:
    """Whether a job may join others at a place: their number, the memory, and pairs that cannot run together."""
    demand = profile.demands.get(kind.name)
    if demand is None or len(present) >= kind.max_jobs or used_mib + demand.memory_mib > kind.memory_mib:
        return False
    if present and present[0].gpus > 1:
        return False
    return not apart or all((other.number, profile.number) not in apart for other in present)
