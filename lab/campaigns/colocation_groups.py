"""Profiling: who is replayed beside whom, and what counts of their replays.

Groups are drawn over classes of cost and of arithmetic intensity, so that small steps meet large ones and steps that
wait for memory meet those that compute. Only replays that lie wholly inside the time in which every member was
replaying count.
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
_SETTLE_S = 0.01
_MAX_DRAWS = 60
_MIN_REPLAYS, _GOOD_REPLAYS = 10, 20
_SHORTEST_S, _LONGEST_S = 0.15, 1.5


@dataclass(frozen=True)
class Candidate:
    """A workload that some process has ready, and its replay time alone."""

    workload_id: str
    process: int
    solo_ms: float
    intensity: float


def group_id(method: str, workload_ids: Iterable[str]) -> str:
    """The identity of a group: its method and its members in any order."""
    return hashlib.sha256("|".join((method, *sorted(workload_ids))).encode()).hexdigest()[:16]


def strata(candidates: Sequence[Candidate]) -> dict[tuple[int, bool], list[Candidate]]:
    """Candidates by class of cost and by whether their intensity is above the median."""
    middle = statistics.median(each.intensity for each in candidates) if candidates else 0.0
    found: dict[tuple[int, bool], list[Candidate]] = {}
    for each in candidates:
        cost = sum(each.solo_ms >= edge for edge in _COST_EDGES_MS)
        found.setdefault((cost, each.intensity > middle), []).append(each)
    return found


def draw_groups(
    candidates: Sequence[Candidate], sizes: Sequence[int], count: int, seed: object
) -> list[tuple[Candidate, ...]]:
    """Up to ``count`` different groups; members of one group are in different processes.

    All combinations of classes take turns, and a workload that was drawn often waits for the others.
    """
    draw = random.Random(f"{seed}/colocation")
    classes = strata(candidates)
    turns = {size: _shuffled(itertools.combinations_with_replacement(sorted(classes), size), draw) for size in sizes}
    used: Counter[str] = Counter()
    groups: dict[frozenset[str], tuple[Candidate, ...]] = {}
    weights = [1.0 / size for size in sizes]
    for number in range(count * _MAX_DRAWS):
        if len(groups) == count or not candidates:
            break
        size = draw.choices(list(sizes), weights)[0]
        turn = turns[size]
        members: list[Candidate] = []
        for stratum in turn[number % len(turn)]:
            free = [each for each in classes[stratum] if all(each.process != other.process for other in members)]
            if free:
                members.append(min(free, key=lambda each: used[each.workload_id] + 2 * draw.random()))
        key = frozenset(each.workload_id for each in members)
        if len(members) == size and key not in groups:
            groups[key] = tuple(members)
            used.update(key)
    return list(groups.values())


def _shuffled(
    combinations: Iterable[tuple[tuple[int, bool], ...]], draw: random.Random
) -> list[tuple[tuple[int, bool], ...]]:
    found = list(combinations)
    draw.shuffle(found)
    return found


def window_s(solo_ms: Sequence[float], usual_s: float) -> float:
    """How long a group is replayed: some twenty replays of its slowest member, ten where they take long.

    >>> window_s([0.5, 0.5], 0.3), window_s([2.0, 1.0], 0.3), window_s([30.0, 5.0, 1.0], 0.3)
    (0.15, 0.15, 1.2)
    """
    slowest_s = seconds_from_ms(max(solo_ms)) * (len(solo_ms) + 1)
    good = min(usual_s, max(_SHORTEST_S, _GOOD_REPLAYS * slowest_s))
    return min(_LONGEST_S, max(good, _MIN_REPLAYS * slowest_s))


@dataclass(frozen=True)
class Together:
    """The replays of one member that count."""

    mean_ms: float
    median_ms: float
    cv: float
    repeats: int
    overlap_s: float


def overlap(moments: Mapping[int, Sequence[float]]) -> dict[int, Together | None]:
    """What each member's replays took while all were replaying; ``None`` where none lies inside that time.

    ``moments`` has for every member the times between its replays, on one clock.
    """
    begin = max((each[0] for each in moments.values() if each), default=0.0) + _SETTLE_S
    end = min((each[-1] for each in moments.values() if each), default=0.0)
    found: dict[int, Together | None] = {}
    for member, each in moments.items():
        times = [ms(after - before) for before, after in itertools.pairwise(each) if before >= begin and after <= end]
        found[member] = _together(times, end - begin) if times else None
    return found


def _together(times: Sequence[float], overlap_s: float) -> Together:
    mean, cv = spread(list(times))
    return Together(mean, statistics.median(times), cv, len(times), overlap_s)


def intensity(values: Mapping[str, float], dtype: str) -> float:
    """A rough number of operations for each byte that a step moves."""
    width = 4 if dtype == "fp32" else 2
    moved = width * (values["parameters"] + 3.0 * values["outputs"])
    return 2.0 * values["macs"] / moved if moved else 0.0


def share_out(count: int, processes: int, seed: object) -> list[list[int]]:
    """Positions of ``count`` workloads for each of ``processes``: all get as many, neighbours go to different ones."""
    shares: list[list[int]] = [[] for _ in range(processes)]
    for block in range(math.ceil(count / processes)):
        order = sorted(range(processes), key=lambda index: fraction("share", seed, block, index))
        for place, position in enumerate(range(block * processes, min(count, (block + 1) * processes))):
            shares[order[place]].append(position)
    return shares
