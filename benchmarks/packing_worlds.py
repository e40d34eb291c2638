"""The worlds of `benchmarks/packing.py`: kinds of jobs, their true slowdowns, and what a policy knows of them.

H200: 80 workloads of `data/h200` whose kernels were traced. True slowdowns are measured ones where a group was measured
under MPS. For other groups they are made: the prediction of trees, times the errors that the trees have on a measured
group of this size that they were not fitted to, drawn by chance. So the policy, which knows the trees alone, errs as
much as it does on measured groups.

V100: 26 training jobs that Gavel measured in all pairs. The policy knows, for each pair, what a job's sensitivity and
its partner's pressure say, fitted to the other pairs.
"""

import hashlib
import math
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations_with_replacement
from pathlib import Path

import numpy

from foretell.datasets.opening import open_store
from foretell.devices import find_device
from foretell.scheduling import Demand, PlaceKind, Profile, Slowdowns
from foretell.scheduling.inputs.measured_pairs import read_gavel

FOLDS = 10
# waves: how many times the blocks of a kernel fill the GPU; block_us: how long others wait for a place on an SM
WORKLOADS = """
WITH first AS (SELECT workload_id, min(campaign_id) AS campaign_id FROM kernels GROUP BY 1),
 sized AS (SELECT *, grid_x::DOUBLE * grid_y * grid_z AS blocks,
   greatest(1, block_x::INT * block_y * block_z) AS threads FROM kernels JOIN first USING (workload_id, campaign_id)),
 filled AS (SELECT *, blocks / 132 / greatest(1, least(32, 2048 // threads, 65536 // greatest(1, registers * threads),
   233472 // (shared_bytes + 1024))) AS waves FROM sized),
 timed AS (SELECT *, duration_us / greatest(1.0, ceil(waves)) AS block_us FROM filled)
SELECT c.workload_id, c.solo_ms, m.memory_mib, k.* EXCLUDE (workload_id) FROM
 (SELECT workload_id, median(solo_ms) AS solo_ms FROM colocation WHERE solo_ms > 0 GROUP BY 1) c
 JOIN (SELECT workload_id, max(device_memory_mib) AS memory_mib FROM measurements GROUP BY 1) m USING (workload_id)
 JOIN (SELECT workload_id, count(*) AS kernels, avg(duration_us) AS kernel_us, avg(block_us) AS short_block_us,
   sum(duration_us * occupancy_pct) / sum(duration_us) / 100 AS occupancy,
   sum(duration_us * least(1.0, blocks / 132)) / sum(duration_us) AS sm_share,
   sum(duration_us * least(1.0, waves)) / sum(duration_us) AS filled,
   sum(duration_us * block_us) / sum(duration_us) AS block_us,
   sum(duration_us * duration_us) / sum(duration_us) AS long_us FROM timed GROUP BY 1) k USING (workload_id)
ORDER BY 1
"""
MEASURED = """
SELECT group_id, workload_id, together_ms / solo_ms AS slowdown FROM colocation
WHERE method = 'mps' AND group_id NOT IN (SELECT group_id FROM colocation WHERE status <> 'ok') ORDER BY 1, member
"""
FEATURES = (
    "solo_ms", "kernels", "kernel_us", "occupancy", "sm_share", "filled", "block_us", "short_block_us", "long_us",
)  # fmt: skip
KERNEL, OCCUPANCY, FILLED, BLOCK, SHORT_BLOCK, LONG = 2, 3, 5, 6, 7, 8


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

    def with_limit(self, limit: float | None) -> "World":
        """The same jobs with another limit on their slowdown."""
        changed = [Profile(p.number, p.name, p.demands, limit) for p in self.profiles]
        return World(**{**vars(self), "profiles": changed})


def member_rows(own: numpy.ndarray) -> numpy.ndarray:
    """Rows of features for groups × members × features in logarithms: groups × members × columns."""
    rows = []
    for member in range(own.shape[1]):
        mine, others = own[:, member], numpy.delete(own, member, axis=1)
        total = numpy.log(numpy.exp(others).sum(1))
        waits = [
            total[:, BLOCK] - mine[:, KERNEL], total[:, KERNEL] - mine[:, KERNEL], total[:, LONG] - mine[:, LONG],
            total[:, BLOCK] - mine[:, SHORT_BLOCK],
        ]  # fmt: skip
        shares = list(numpy.exp(own[:, :, OCCUPANCY : FILLED + 1]).sum(1).T)
        members = numpy.full(len(own), own.shape[1])
        rows.append(numpy.column_stack([mine, total, others.max(1), others.min(1), *waits, *shares, members]))
    return numpy.stack(rows, axis=1)


class Trees:
    """Slowdowns by boosted trees; a group that was measured is told by trees that were not fitted to it."""

    def __init__(self, features: numpy.ndarray, groups: Mapping[tuple[int, ...], tuple[float, ...]]) -> None:
        import lightgbm

        order = random.Random(0).sample(sorted(groups), len(groups))
        fold_of = {group: number % FOLDS for number, group in enumerate(order)}
        table = {group: member_rows(features[[list(group)]])[0] for group in order}
        self._told: dict[tuple[int, ...], list[float]] = {}
        self.residuals: dict[int, list[list[float]]] = {}
        # few leaves and rows, because there are few groups
        options = {"objective": "l1", "learning_rate": 0.05, "num_leaves": 8, "min_data_in_leaf": 8, "seed": 0}
        options |= {"verbose": -1, "num_threads": 1, "deterministic": True}
        for fold in range(FOLDS + 1):  # the last one is fitted to all
            taught = [group for group in order if fold_of[group] != fold]
            rows = numpy.concatenate([table[group] for group in taught])
            target = numpy.log(numpy.concatenate([groups[group] for group in taught]))
            model = lightgbm.train(options, lightgbm.Dataset(rows, target), num_boost_round=300)
            for group in order:
                if fold_of[group] == fold:
                    logs = numpy.maximum(0.0, model.predict(table[group]))
                    self._told[group] = list(numpy.exp(logs))
                    self.residuals.setdefault(len(group), []).append(list(numpy.log(groups[group]) - logs))
        for size in self.residuals:
            every = list(combinations_with_replacement(range(len(features)), size))
            rows = member_rows(features[numpy.array(every)])
            values = numpy.exp(numpy.maximum(0.0, model.predict(rows.reshape(-1, rows.shape[-1])))).reshape(-1, size)
            for group, told in zip(every, values.tolist(), strict=True):
                self._told.setdefault(group, told)

    def __call__(self, group: tuple[int, ...]) -> list[float]:
        """The predicted slowdowns of a group of sorted numbers."""
        return self._told[group]

    @property
    def error(self) -> float:
        """The mean relative error on groups that were left out."""
        errors = [abs(math.exp(-r) - 1) for rows in self.residuals.values() for row in rows for r in row]
        return float(numpy.mean(errors))


def h200(store: Path) -> World:
    """The measured workloads of an H200."""
    database = open_store(store)
    workloads = database.query(WORKLOADS).to_pylist()
    number_of = {row["workload_id"]: number for number, row in enumerate(workloads)}
    members: dict[str, list[tuple[int, float]]] = {}
    for row in database.query(MEASURED).to_pylist():
        members.setdefault(row["group_id"], []).append((number_of.get(row["workload_id"], -1), row["slowdown"]))
    groups = {
        tuple(number for number, _ in sorted(group)): tuple(max(1.0, slowdown) for _, slowdown in sorted(group))
        for group in members.values()
        if all(number >= 0 for number, _ in group)
    }
    features = numpy.log(numpy.maximum([[row[name] for name in FEATURES] for row in workloads], 1e-6))
    trees = Trees(features, groups)
    kind = PlaceKind("h200, mps", find_device("h200"), None, "mps", 3, slots=2)
    profiles = [
        Profile(
            number, row["workload_id"],
            {kind.name: Demand(row["solo_ms"], row["memory_mib"], row["occupancy"], 1.0, row["sm_share"])},
        )
        for number, row in enumerate(workloads)
    ]  # fmt: skip

    def true(group: tuple[int, ...]) -> Sequence[float]:
        if group in groups:
            return groups[group]
        rng = random.Random(hashlib.sha256(str(group).encode()).hexdigest())
        errors = rng.sample(rng.choice(trees.residuals[len(group)]), len(group))
        return [max(1.0, told * math.exp(error)) for told, error in zip(trees(group), errors)]

    pairs = sum(len(group) == 2 for group in groups)
    facts = [
        f"{len(profiles)} workloads; {pairs} pairs and {len(groups) - pairs} trios of them measured under MPS",
        f"trees are {trees.error:.1%} off on groups that they were not fitted to",
    ]
    policies = ("exclusive", "slots", "utilisation", "occupancy", "slowdown", "oracle")
    return World("H200", kind, profiles, by_number(true), by_number(trees), frozenset(), policies, facts)


def by_number(ask: Callable[[tuple[int, ...]], Sequence[float]]) -> Slowdowns:
    """Ask for sorted numbers of profiles, and give the answers in the order of the members."""

    def slowdowns(_: PlaceKind, members: Sequence[Profile]) -> list[float]:
        if len(members) < 2:
            return [1.0] * len(members)
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
