"""Lab: co-location groups: which workloads are replayed together, and which of their replays count.

Groups are drawn over classes of cost and of arithmetic intensity, so that short steps meet long ones, and memory-bound
steps meet compute-bound ones. A replay counts only if it lies completely within the time in which every member was
replaying.
"""

import hashlib
import itertools
import math
import random
import statistics
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from foretell.profiling.first_run import spread
from foretell.profiling.workload import fraction
from foretell.units import ms, seconds_from_ms

_COST_EDGES_MS = (1.0, 4.0)
_WARM_UP_S = 0.01
_MAX_DRAWS = 60
_MIN_REPLAYS, _GOOD_REPLAYS = 10, 20
_SHORTEST_S, _LONGEST_S = 0.15, 1.5
WHOLE = 100.0  # the percentage of a process without a limit
COPIES = 3  # processes that prepare a workload that also meets itself


@dataclass(frozen=True)
class Candidate:
    """A workload that a process has ready, and its replay time alone; ``percentage`` limits the process under MPS."""

    workload_id: str
    process: int
    solo_ms: float
    intensity: float
    percentage: float = WHOLE

    @property
    def place(self) -> tuple[str, int]:
        """The workload and its process."""
        return self.workload_id, self.process

    @property
    def name(self) -> str:
        """The workload, with its limit where it has one."""
        return self.workload_id if self.percentage >= WHOLE else f"{self.workload_id}@{self.percentage:g}"


def group_id(method: str, names: Iterable[str]) -> str:
    """The identity of a group: its method and the names of its members, in any order."""
    return hashlib.sha256("|".join((method, *sorted(names))).encode()).hexdigest()[:16]


def equal_groups(candidates: Sequence[Candidate], sizes: Sequence[int]) -> list[tuple[Candidate, ...]]:
    """Groups of one workload with itself, where several processes have it ready."""
    places: dict[str, list[Candidate]] = {}
    for candidate in candidates:
        places.setdefault(candidate.workload_id, []).append(candidate)
    return [tuple(same[:size]) for same in places.values() for size in sizes if len(same) >= size]


def strata(candidates: Sequence[Candidate]) -> dict[tuple[int, bool], list[Candidate]]:
    """Candidates by class of cost and by whether their intensity is above the median."""
    middle = statistics.median(candidate.intensity for candidate in candidates) if candidates else 0.0
    classes: dict[tuple[int, bool], list[Candidate]] = {}
    for candidate in candidates:
        cost = sum(candidate.solo_ms >= edge for edge in _COST_EDGES_MS)
        classes.setdefault((cost, candidate.intensity > middle), []).append(candidate)
    return classes


def draw_groups(
    candidates: Sequence[Candidate], sizes: Sequence[int], count: int, seed: object
) -> list[tuple[Candidate, ...]]:
    """Up to ``count`` different groups; the members of a group are in different processes.

    All combinations of classes take turns, and workloads that were drawn often have a smaller chance.
    """
    rng = random.Random(f"{seed}/colocation")
    classes = strata(candidates)
    turns = {size: _shuffled(itertools.combinations_with_replacement(sorted(classes), size), rng) for size in sizes}
    used: Counter[str] = Counter()
    groups: dict[tuple[str, ...], tuple[Candidate, ...]] = {}
    # larger groups take more processes: draw them less often
    weights = [1.0 / size for size in sizes]
    for number in range(count * _MAX_DRAWS):
        if len(groups) == count or not candidates:
            break
        size = rng.choices(list(sizes), weights)[0]
        turn = turns[size]
        members: list[Candidate] = []
        for stratum in turn[number % len(turn)]:
            free = [
                candidate
                for candidate in classes[stratum]
                if all(candidate.process != other.process for other in members)
            ]
            if free:
                # prefer workloads that were used less, with some chance
                members.append(min(free, key=lambda candidate: used[candidate.workload_id] + 2 * rng.random()))
        key = tuple(sorted(candidate.name for candidate in members))
        if len(members) == size and key not in groups:
            groups[key] = tuple(members)
            used.update(candidate.workload_id for candidate in members)
    return list(groups.values())


def _shuffled(
    combinations: Iterable[tuple[tuple[int, bool], ...]], rng: random.Random
) -> list[tuple[tuple[int, bool], ...]]:
    shuffled = list(combinations)
    rng.shuffle(shuffled)
    return shuffled


def window_s(solo_ms: Sequence[float], usual_s: float) -> float:
    """How long a group is replayed: about twenty replays of its slowest member, ten where they take long.

    >>> window_s([0.5, 0.5], 0.3), window_s([2.0, 1.0], 0.3), window_s([30.0, 5.0, 1.0], 0.3)
    (0.15, 0.15, 1.2)
    """
    slowest_s = seconds_from_ms(max(solo_ms)) * (len(solo_ms) + 1)
    good = min(usual_s, max(_SHORTEST_S, _GOOD_REPLAYS * slowest_s))
    return min(_LONGEST_S, max(good, _MIN_REPLAYS * slowest_s))


@dataclass(frozen=True)
class Together:
    """Statistics of the replays of one member that count."""

    mean_ms: float
    median_ms: float
    cv: float
    repeats: int
    overlap_s: float


def overlap(moments: Mapping[int, Sequence[float]]) -> dict[int, Together | None]:
    """The replays of each member while all were replaying; ``None`` where a member has none.

    ``moments`` has for every member the times between its replays, on one clock.
    """
    # the overlap begins when the last member has begun, and a moment later, when caches have settled
    begin = max((times_s[0] for times_s in moments.values() if times_s), default=0.0) + _WARM_UP_S
    end = min((times_s[-1] for times_s in moments.values() if times_s), default=0.0)
    replays: dict[int, Together | None] = {}
    for member, times_s in moments.items():
        times = [
            ms(after - before) for before, after in itertools.pairwise(times_s) if before >= begin and after <= end
        ]
        replays[member] = _together(times, end - begin) if times else None
    return replays


def _together(times: Sequence[float], overlap_s: float) -> Together:
    mean, cv = spread(list(times))
    return Together(mean, statistics.median(times), cv, len(times), overlap_s)


def intensity(values: Mapping[str, float], dtype: str) -> float:
    """A rough number of operations for each byte that a step moves."""
    width = 4 if dtype == "fp32" else 2
    moved = width * (values["parameters"] + 3.0 * values["outputs"])
    return 2.0 * values["macs"] / moved if moved else 0.0


def share_out(count: int, processes: int, seed: object) -> list[list[int]]:
    """For each process the positions of its workloads: equally many, with neighbours in different processes."""
    shares: list[list[int]] = [[] for _ in range(processes)]
    for block in range(math.ceil(count / processes)):
        order = sorted(range(processes), key=lambda index: fraction("share", seed, block, index))
        for place, position in enumerate(range(block * processes, min(count, (block + 1) * processes))):
            shares[order[place]].append(position)
    return shares
