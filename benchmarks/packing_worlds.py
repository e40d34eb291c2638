"""The worlds of `benchmarks/packing.py`: kinds of jobs, their true slowdowns, and what a policy knows of them.

H200: 28 workloads of `data/h200` whose kernels were traced, those that were measured together most often. The policy
knows what the product's model of sharing predicts, with times of units and launches by models that have not seen the
architecture, and leaves the margin that `foretell pack` leaves. True slowdowns are measured ones where a group was
measured under MPS, and the policy is told what a model says that was not fitted to one of the architectures. Other
groups are made: the prediction, times the errors that were made on a measured group of this size and of about this
slowdown, drawn by chance. So the policy errs as much as it does on measured groups.

V100: 26 training jobs that Gavel measured in all pairs. The policy knows, for each pair, what a job's sensitivity and
its partner's pressure say, fitted to the other pairs.
"""

import hashlib
import math
import random
import statistics
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations_with_replacement
from pathlib import Path

import numpy

from foretell.datasets.opening import open_store
from foretell.devices import find_device
from foretell.predictors.sharing.features import describe_groups
from foretell.predictors.sharing.fit import fit_correction
from foretell.predictors.sharing.jobs import Job
from foretell.predictors.sharing.model import SharingModel
from foretell.scheduling import Demand, PlaceKind, Profile, Slowdowns
from foretell.scheduling.inputs.measured_pairs import read_gavel
from foretell.scheduling.slowdowns import Margins
from foretell.training import sharing
from foretell.workflows.sharing.group_slowdowns import CAUTION

FOLDS = 10
KINDS = 28
NEAREST = 25  # groups of about the same slowdown, one of which lends its errors
WORKLOADS = """
WITH first AS (SELECT workload_id, min(campaign_id) AS campaign_id FROM kernels GROUP BY 1),
 sized AS (SELECT *, grid_x::DOUBLE * grid_y * grid_z AS blocks
   FROM kernels JOIN first USING (workload_id, campaign_id))
SELECT c.workload_id, c.solo_ms, m.memory_mib, k.* EXCLUDE (workload_id) FROM
 (SELECT workload_id, median(solo_ms) AS solo_ms FROM colocation
  WHERE solo_ms > 0 AND method = 'mps' AND coalesce(percentage, 100) >= 100 GROUP BY 1) c
 JOIN (SELECT workload_id, max(device_memory_mib) AS memory_mib FROM measurements GROUP BY 1) m USING (workload_id)
 JOIN (SELECT workload_id, sum(duration_us * occupancy_pct) / sum(duration_us) / 100 AS occupancy,
   sum(duration_us * least(1.0, blocks / 132)) / sum(duration_us) AS sm_share
   FROM sized GROUP BY 1) k USING (workload_id)
WHERE m.memory_mib IS NOT NULL AND k.occupancy IS NOT NULL ORDER BY 1
"""


@dataclass(frozen=True)
class World:
    """Kinds of jobs on GPUs of one kind, true and predicted slowdowns."""

    name: str
    kind: PlaceKind
    profiles: Sequence[Profile]
    true: Slowdowns
    predicted: Slowdowns
    apart: frozenset[tuple[int, int]]
    policies: Sequence[str]
    facts: Sequence[str]
    margins: Margins | float = 0.15

    def with_limit(self, limit: float | None) -> "World":
        """The same jobs with another limit on their slowdown."""
        changed = [Profile(p.number, p.name, p.demands, limit) for p in self.profiles]
        return World(**{**vars(self), "profiles": changed})


class Predicted:
    """What the product says of groups of kinds; a measured group is told by a model that has not seen all of it."""

    def __init__(
        self, model: SharingModel, jobs: Sequence[Job], measured: Mapping[tuple[int, ...], list[float]]
    ) -> None:
        self._known = {group: [max(0.0, log) for log in logs] for group, logs in measured.items()}
        self._model = model
        for size in (2, 3):
            every = [group for group in combinations_with_replacement(range(len(jobs)), size) if group not in measured]
            for start in range(0, len(every), 2000):
                part = every[start : start + 2000]
                logs = model.mps_logs([[jobs[one] for one in group] for group in part])
                self._known |= zip(part, logs)
                print(f"{size} at a time: {start + len(part)} of {len(every)} groups", flush=True)

    def logs(self, group: tuple[int, ...]) -> list[float]:
        """The log slowdowns of a group of sorted numbers."""
        return self._known[group]

    def __call__(self, group: tuple[int, ...]) -> list[float]:
        """The slowdowns."""
        return [math.exp(log) for log in self._known[group]]

    def margins(self, group: tuple[int, ...]) -> list[float]:
        """What `foretell pack` leaves for errors."""
        return [math.expm1(CAUTION * self._model.width(log)) for log in self._known[group]]


def h200(store: Path, cache: Path) -> World:
    """The workloads of an H200 that were measured together."""
    group_set = sharing.read_groups(store, "h200", cache, print)
    described = sharing.describe(group_set, print)
    judged = [one for one in sharing.judge(group_set, described, print) if one.row["method"] == "mps"]
    (rows, base), (more_rows, more_base) = map(describe_groups, (described.jobs, described.measured))
    correction = fit_correction(
        numpy.concatenate([rows, more_rows]), numpy.concatenate([base, more_base]), numpy.tile(described.logs, 2)
    )
    model = SharingModel("h200", group_set.fit_launches(), correction, sharing.widths_of(judged), ())
    facts_of = {row["workload_id"]: row for row in open_store(store).query(WORKLOADS).to_pylist()}
    free = [
        number
        for number, group in enumerate(described.groups)
        if all(member.share >= 1 and member.sample.workload_id in facts_of for member in group)
    ]
    used = Counter(member.sample.workload_id for number in free for member in described.groups[number])
    number_of = {name: number for number, (name, _) in enumerate(used.most_common(KINDS))}
    jobs: dict[int, Job] = {}
    groups: dict[tuple[int, ...], tuple[float, ...]] = {}
    told: dict[tuple[int, ...], list[float]] = {}
    held_out: dict[tuple[object, ...], list[float]] = {}
    for one in judged:
        held_out.setdefault((one.row["campaign_id"], one.row["group_id"], one.row["member"]), []).append(one.predicted)
    residuals: dict[int, list[tuple[float, list[float]]]] = {2: [], 3: []}
    for number in free:
        members = described.groups[number]
        said = [
            statistics.mean(held_out[one.row["campaign_id"], one.row["group_id"], one.row["member"]]) for one in members
        ]
        errors = [one.log_slowdown - log for one, log in zip(members, said)]
        residuals[len(members)].append((statistics.mean(said), errors))
        places = [number_of.get(one.sample.workload_id, -1) for one in members]
        if min(places) >= 0:
            jobs |= dict(zip(places, described.jobs[number]))
            order = sorted(range(len(places)), key=places.__getitem__)
            key = tuple(places[at] for at in order)
            groups[key] = tuple(max(1.0, math.exp(members[at].log_slowdown)) for at in order)
            told[key] = [said[at] for at in order]
    kept = sorted(jobs)  # a few were measured only beside others that are not among the kinds
    renumbered = {old: new for new, old in enumerate(kept)}
    names = {number: name for name, number in number_of.items()}
    groups = {tuple(renumbered[one] for one in group): slowdowns for group, slowdowns in groups.items()}
    predicted = Predicted(
        model, [jobs[old] for old in kept],
        {tuple(renumbered[one] for one in group): logs for group, logs in told.items()},
    )  # fmt: skip
    kind = PlaceKind("h200, mps", find_device("h200"), None, "mps", 3, slots=2)
    profiles = []
    for old in kept:
        row = facts_of[names[old]]
        demand = Demand(row["solo_ms"], row["memory_mib"], min(1.0, row["occupancy"]), 1.0, row["sm_share"])
        profiles.append(Profile(renumbered[old], names[old], {kind.name: demand}))

    def true(group: tuple[int, ...]) -> Sequence[float]:
        if group in groups:
            return groups[group]
        rng = random.Random(hashlib.sha256(str(group).encode()).hexdigest())
        logs = predicted.logs(group)
        near = sorted(residuals[len(group)], key=lambda pair: abs(pair[0] - statistics.mean(logs)))[:NEAREST]
        errors = rng.sample(rng.choice(near)[1], len(group))
        return [max(1.0, math.exp(log + error)) for log, error in zip(logs, errors)]

    pairs = sum(len(group) == 2 for group in groups)
    off = statistics.mean(one.error for one in judged)
    facts = [
        f"{len(profiles)} workloads; {pairs} pairs and {len(groups) - pairs} trios of them measured under MPS",
        f"the product is {off:.1%} off on groups with an architecture that it has not seen",
    ]
    policies = ("exclusive", "slots", "utilisation", "occupancy", "slowdown", "oracle")
    return World(
        "H200", kind, profiles, by_number(true), by_number(predicted), frozenset(), policies, facts,
        by_number(predicted.margins, alone=0.0),
    )  # fmt: skip


def by_number(ask: Callable[[tuple[int, ...]], Sequence[float]], alone: float = 1.0) -> Slowdowns:
    """Ask for sorted numbers of profiles, and give the answers in the order of the members."""

    def slowdowns(_: PlaceKind, members: Sequence[Profile]) -> list[float]:
        if len(members) < 2:
            return [alone] * len(members)
        order = sorted(range(len(members)), key=lambda index: members[index].number)
        values = [1.0] * len(members)
        for index, value in zip(order, ask(tuple(members[index].number for index in order))):
            values[index] = value
        return values

    return slowdowns


def gavel(path: Path) -> World:
    """The training jobs of Gavel on a V100, in pairs."""
    pairs = read_gavel(path)
    kind = PlaceKind("v100, mps", find_device("v100"), None, "mps", 2, slots=2)
    numbers = {name: number for number, name in enumerate(pairs.names)}
    profiles = [Profile(number, name, {kind.name: Demand(100.0)}) for name, number in numbers.items()]
    groups = {(numbers[one], numbers[other]): slowdowns for (_, (one, other)), slowdowns in pairs.groups.items()}
    told = additive(groups, len(numbers))
    error = numpy.mean([abs(said / true - 1) for pair in groups for said, true in zip(told[pair], groups[pair])])
    apart = frozenset((numbers[one], numbers[other]) for one, other in pairs.apart)
    facts = [
        f"{len(profiles)} training jobs; {len(groups)} of {len(numbers) * (len(numbers) + 1) // 2} pairs could share",
        f"sensitivity and pressure are {error:.1%} off on pairs that they were not fitted to",
    ]
    policies = ("exclusive", "slots", "slowdown", "oracle")
    true, predicted = by_number(groups.__getitem__), by_number(told.__getitem__)
    return World("V100", kind, profiles, true, predicted, apart, policies, facts)


def additive(groups: Mapping[tuple[int, ...], tuple[float, ...]], count: int) -> dict[tuple[int, ...], list[float]]:
    """log slowdown = mean + sensitivity of the job + pressure of its partner, fitted to the other nine folds."""
    order = random.Random(0).sample(sorted(groups), len(groups))
    told = {}
    for fold in range(FOLDS):
        rows, targets = [], []
        for number, pair in enumerate(order):
            if number % FOLDS != fold:
                for job, partner, slowdown in zip(pair, pair[::-1], groups[pair]):
                    row = numpy.zeros(2 * count + 1)
                    row[[job, count + partner, 2 * count]] = 1
                    rows.append(row)
                    targets.append(math.log(slowdown))
        table = numpy.array(rows)
        weights = numpy.linalg.solve(table.T @ table + 0.3 * numpy.eye(2 * count + 1), table.T @ numpy.array(targets))
        for pair in order[fold::FOLDS]:
            logs = [weights[job] + weights[count + partner] + weights[-1] for job, partner in zip(pair, pair[::-1])]
            told[pair] = [max(1.0, math.exp(value)) for value in logs]
    return told
