"""Scheduling: packing by load: every job has a load, and the loads of a place add up to at most 1.

The four policies of seed papers are of this kind (DNN-occu, Mei et al., "GPU Occupancy Prediction of Deep Learning
Models Using Graph Neural Network", section VI-B): one job a GPU, slots, NVML utilisation, occupancy. A job goes to the
least loaded place of the fastest kind that has room; of those that wait, the oldest that fits starts.
"""

from abc import ABC, abstractmethod
from bisect import bisect_left, insort
from collections.abc import Sequence

from foretell.scheduling.cluster import PlaceKind
from foretell.scheduling.jobs import Demand, Profile
from foretell.scheduling.policies.policy import Apart, has_room
from foretell.scheduling.slowdowns import Slowdowns
from foretell.scheduling.state import PlaceState
from foretell.scheduling.waiting import Head

_FULL = 1 + 1e-9


class LoadPacking(ABC):
    """Keeps the places of every kind sorted by load, so that the least loaded one is found at once."""

    def __init__(self, predicted: Slowdowns, apart: Apart = ()) -> None:  # noqa: ARG002 - loads know no slowdowns
        self._apart = apart
        self._states: Sequence[PlaceState] = ()
        self._sorted: dict[str, list[tuple[float, int]]] = {}
        self._loads: list[float] = []

    @abstractmethod
    def load(self, kind: PlaceKind, demand: Demand) -> float:
        """What a job adds to the load of a place, between 0 and 1."""

    def watch(self, states: Sequence[PlaceState]) -> None:
        """See `Policy`."""
        self._states = states
        self._loads = [0.0] * len(states)
        self._sorted = {}
        for state in states:
            self._sorted.setdefault(state.kind.name, []).append((0.0, state.number))

    def changed(self, state: PlaceState) -> None:
        """See `Policy`."""
        places, before = self._sorted[state.kind.name], self._loads[state.number]
        del places[bisect_left(places, (before, state.number))]
        after = sum([self.load(state.kind, member.demand) for member in state.members])
        self._loads[state.number] = after
        insort(places, (after, state.number))

    def observed(self, state: PlaceState) -> None:  # noqa: B027
        """See `Policy`. Loads do not depend on what is observed."""

    def find(self, profile: Profile) -> PlaceState | None:
        """See `Policy`."""
        for kind in sorted(profile.demands, key=lambda name: profile.demands[name].alone_ms):
            for load, number in self._sorted.get(kind, ()):
                state = self._states[number]
                if load + self.load(state.kind, profile.demands[kind]) > _FULL:
                    break
                if has_room(state.kind, state.profiles, state.used_mib, profile, self._apart):
                    return state
        return None

    def choose(self, state: PlaceState, heads: Sequence[Head]) -> Profile | None:
        """See `Policy`."""
        left = _FULL - self._loads[state.number]
        fitting = [
            head
            for head in heads
            if (demand := head[1].demands.get(state.kind.name)) is not None
            and self.load(state.kind, demand) <= left
            and has_room(state.kind, state.profiles, state.used_mib, head[1], self._apart)
        ]
        return min(fitting, key=_rank)[1] if fitting else None


class ExclusivePacking(LoadPacking):
    """One job a place, whatever it needs."""

    def load(self, kind: PlaceKind, demand: Demand) -> float:  # noqa: ARG002
        """See `LoadPacking`."""
        return 1.0


class SlotPacking(LoadPacking):
    """As many jobs as a place has slots. With one slot, as in the paper, co-location is disabled."""

    def load(self, kind: PlaceKind, demand: Demand) -> float:  # noqa: ARG002
        """See `LoadPacking`."""
        return 1.0 / kind.slots


class UtilisationPacking(LoadPacking):
    """NVML utilisation adds up to at most 100 %."""

    def load(self, kind: PlaceKind, demand: Demand) -> float:  # noqa: ARG002
        """See `LoadPacking`."""
        return min(1.0, demand.utilisation)


class OccupancyPacking(LoadPacking):
    """Achieved occupancy adds up to at most 100 %: occu-packing of the paper."""

    def load(self, kind: PlaceKind, demand: Demand) -> float:  # noqa: ARG002
        """See `LoadPacking`."""
        return min(1.0, demand.occupancy)


def _rank(head: Head) -> float:
    return head[0]
