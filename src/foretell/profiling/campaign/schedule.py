"""Profiling: the order in which a plan is measured, so that a campaign that ends early still covers all families.

Models are taken round-robin from their families, workloads of one model share one build, and the parts of a plan take
turns so that each gets its share of the time. The order depends only on the plan and its seed.
"""

import itertools
import math
import random
import statistics
from collections import defaultdict, deque
from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType

from foretell.errors import InputError
from foretell.processes.child import Message
from foretell.profiling.campaign.plan import Limits, Measuring, Part, Plan
from foretell.profiling.workload import TF32, Workload, fraction, workload_from_json
from foretell.profiling.zoos.registry import load_zoo
from foretell.profiling.zoos.zoo import Entry
from foretell.registry import did_you_mean
from foretell.units import GIB, ms

# An assumed matrix rate of language models; used only to skip workloads that would take too long.
_GUESSED_FLOPS_PER_S = 4e14
_MAX_CACHE_BYTES = 6 * GIB
_MAX_TOKENS = 65536
# A group is charged this time when it is handed out; otherwise all workers would start with the same part.
_EXPECTED_S = 2.0
_MAX_TURNS = 4.0


@dataclass(frozen=True)
class Group:
    """Workloads of one model, measured on one build until ``target_count`` of them have succeeded.

    There are more workloads than that: the spare ones replace workloads that are too slow or too large.
    """

    part: str
    spec: str
    workloads: tuple[Workload, ...]
    target_count: int
    role: str = "measure"

    def without(self, done: Iterable[str]) -> "Group":
        """The group without workloads that are done."""
        known = set(done)
        left = tuple(workload for workload in self.workloads if workload.id not in known)
        return replace(self, workloads=left, target_count=self.target_count - (len(self.workloads) - len(left)))


@dataclass
class Schedule:
    """Hands out groups; parts take turns by the time they have used."""

    groups: dict[str, deque[Group]]
    shares: dict[str, float]
    used_s: dict[str, float] = field(default_factory=lambda: defaultdict(float))

    def next(self) -> Group | None:
        """The next group of the part that is furthest behind its share."""
        waiting = [name for name, queue in self.groups.items() if queue]
        if not waiting:
            return None
        # fair sharing: the part with the least time used for its share is next; ties go to the largest share
        part = min(waiting, key=lambda name: (self.used_s[name] / self.shares[name], -self.shares[name], name))
        self.used_s[part] += _EXPECTED_S
        return self.groups[part].popleft()

    def charge(self, part: str, seconds: float) -> None:
        """Charge the time that a group of ``part`` has really used, in place of the expected time."""
        self.used_s[part] += seconds - _EXPECTED_S

    def put_back(self, group: Group) -> None:
        """Return what is left of a group after its worker died."""
        if group.workloads and group.target_count > 0:
            self.groups[group.part].appendleft(group)

    def __len__(self) -> int:
        return sum(map(len, self.groups.values()))


def make_schedule(
    plan: Plan,
    done: Iterable[str] = (),
    seen: Container[tuple[str, str]] = (),
    errors: Mapping[str, float] = MappingProxyType({}),
) -> Schedule:
    """All groups of a plan in order, without the workloads that are ``done``.

    ``seen`` has the pairs (part, spec) of models with any measurement; all other models come first. ``errors`` are the
    errors of a predictor by family: families with large errors come more often.
    """
    known = set(done)
    groups: dict[str, deque[Group]] = {}
    for part in plan.parts:
        entries = [entry for zoo in part.zoos for entry in load_zoo(zoo).entries(part, plan.seed)]
        _check_families(part, plan, {entry.family for entry in entries})
        entries = [entry for entry in entries if not any(word in entry.spec for word in part.exclude)]
        if part.specs:
            every = [every_workload(entry, part) for entry in _named(entries, part)]
        else:
            every = [group_of(entry, part, plan) for entry in interleave(entries, f"{plan.seed}/{part.name}", errors)]
        queue: deque[Group] = deque()
        for group in every:
            left = group.without(known)
            if left.workloads and left.target_count > 0:
                queue.append(left)
        groups[part.name] = deque(sorted(queue, key=lambda group: (group.part, group.spec) in seen))
    return Schedule(groups, {part.name: part.share for part in plan.parts})


def _check_families(part: Part, plan: Plan, present: Container[str]) -> None:
    """Raise an error for a family that no zoo of the part has: most likely its name is misspelt."""
    for family in part.families:
        if family not in present:
            every = replace(part, families=())
            known = {entry.family for zoo in part.zoos for entry in load_zoo(zoo).entries(every, plan.seed)}
            raise InputError(
                f"Part {part.name!r} finds no model of the family {family!r} in {', '.join(part.zoos)}."
                f"{did_you_mean(family, known)}"
            )


def _named(entries: Iterable[Entry], part: Part) -> list[Entry]:
    """The models that a part names."""
    by_spec = {entry.spec: entry for entry in entries}
    for spec in part.specs:
        if spec not in by_spec:
            raise InputError(f"Part {part.name!r} names {spec!r}, which its zoos lack.{did_you_mean(spec, by_spec)}")
    return [by_spec[spec] for spec in part.specs]


def every_workload(entry: Entry, part: Part) -> Group:
    """All workloads of one model that a part allows, by precision and then by size."""
    shapes = [entry.input_shape] if entry.input_shape else [(length,) for length in part.sequences or (128,)]
    settings = itertools.product(part.dtypes, part.modes, part.optimizers, shapes, part.batch_sizes)
    workloads = [
        Workload(entry.spec, batch, shape, dtype, mode, optimizer, entry.family)
        for dtype, mode, optimizer, shape, batch in settings
    ]
    return Group(part.name, entry.spec, tuple(workloads), len(workloads))


def interleave(entries: Sequence[Entry], seed: str, errors: Mapping[str, float] = MappingProxyType({})) -> list[Entry]:
    """Take one model of each family, then another of each; families and models are in a random but fixed order.

    With ``errors``, a family gets several models a round: its error divided by the median error, rounded and limited. A
    family without an error gets the maximum.
    """
    families: dict[str, list[Entry]] = defaultdict(list)
    for entry in entries:
        families[entry.family].append(entry)
    draw = random.Random(seed)
    for family in sorted(families):
        families[family].sort(key=lambda entry: entry.spec)
        draw.shuffle(families[family])
    order = sorted(families)
    draw.shuffle(order)
    usual = statistics.median(errors.values()) if errors else 1.0
    turns = {name: _turns(errors.get(name, math.inf if errors else usual) / usual) for name in order}
    rounds = [
        (turn // turns[name], place, turn) for place, name in enumerate(order) for turn in range(len(families[name]))
    ]
    return [families[order[place]][turn] for _, place, turn in sorted(rounds)]


def _turns(error: float) -> int:
    """How many models of a family come up in one round, by its error as a multiple of the median."""
    return max(1, round(min(error, _MAX_TURNS)))


def group_of(entry: Entry, part: Part, plan: Plan) -> Group:
    """The workloads to measure of one model; a small one comes first, because it predicts the cost of the others."""
    draw = random.Random(f"{plan.seed}/{part.name}/{entry.spec}")
    dtypes = list(part.dtypes)
    draw.shuffle(dtypes)
    chosen: dict[str, Workload] = {}
    # draws may repeat a workload, so draw more often than needed, but not for ever: some parts have few combinations
    for number in range(part.per_model * 4):
        if len(chosen) == part.per_model:
            break
        batches = part.first_batch_sizes if number == 0 else part.batch_sizes
        workload = _draw(entry, part, plan, draw, dtypes[number % len(dtypes)], batches)
        chosen.setdefault(workload.id, workload)
    first, *others = chosen.values()
    rank = {dtype: position for position, dtype in enumerate(dtypes)}
    # by dtype first, because changing the precision of the weights on the device takes time; then small ones first
    others.sort(key=lambda workload: (rank[workload.dtype], workload.mode, cost(workload)))
    spares: dict[str, Workload] = {}
    for number in range(2 * part.per_model):
        workload = _draw(entry, part, plan, draw, dtypes[-1 - number % len(dtypes)], part.first_batch_sizes)
        if workload.id not in chosen and len(spares) < max(1, part.per_model // 2):
            spares.setdefault(workload.id, workload)
    wanted = _with_twins((first, *others), part)
    return Group(part.name, entry.spec, (*wanted, *_with_twins(spares.values(), part)), len(wanted))


def _with_twins(workloads: Iterable[Workload], part: Part) -> list[Workload]:
    """Each workload, followed by the same one with each option of the part."""
    every: list[Workload] = []
    for workload in workloads:
        every.append(workload)
        if "channels_last" in part.twins:
            every.append(replace(workload, channels_last=True))
        if TF32 in part.twins and workload.dtype == "fp32":
            every.append(replace(workload, dtype=TF32))
    return every


def cost(workload: Workload) -> int:
    """The number of elements of one batch of input, with which the cost of a workload grows."""
    elements = workload.batch_size
    for size in workload.input_shape:
        elements *= size
    return elements


def _draw(entry: Entry, part: Part, plan: Plan, draw: random.Random, dtype: str, batches: Sequence[int]) -> Workload:
    mode, optimizer = draw.choice(part.modes), draw.choice(part.optimizers)
    batch, shape = draw.choice(batches), entry.input_shape
    if mode in ("prefill", "decode"):
        batch, length = _fit(entry, mode, batch, draw.choice(part.sequences or (128,)), plan)
        shape = (length,)
    elif not shape:
        lengths = [length for length in part.sequences or (128,) if length <= entry.max_sequence]
        shape = (draw.choice(lengths or [entry.max_sequence]),)
    elif entry.flexible and part.sizes and draw.random() < part.size_share:
        size = draw.choice(part.sizes)
        shape = (*shape[:-2], size, size)
    return Workload(entry.spec, batch, shape, dtype, mode, optimizer, entry.family)


def _fit(entry: Entry, mode: str, batch: int, length: int, plan: Plan) -> tuple[int, int]:
    """Halve the batch, then the sequence, until the estimated time and cache are within the limits."""
    length = min(length, entry.max_sequence - 1)
    # decode costs grow with the cache and not with the arithmetic, so only prefill has an estimated time
    while batch > 1 or length > 32:
        seconds = 2 * entry.parameters * batch * length / _GUESSED_FLOPS_PER_S if mode == "prefill" else 0.0
        cache = entry.cache_bytes_per_token * batch * length
        few = mode == "decode" or batch * length <= _MAX_TOKENS
        if ms(seconds) <= plan.limits.max_latency_ms and cache <= _MAX_CACHE_BYTES and few:
            break
        batch, length = (batch // 2, length) if batch > 1 else (1, max(length // 2, 32))
    return batch, length


def chosen_for(purpose: str, share: float, plan: Plan, workload_id: str) -> bool:
    """Whether a workload belongs to the share that gets an energy reading or a kernel trace."""
    return fraction(purpose, plan.seed, workload_id) < share


def group_to_json(group: Group, energy: set[str]) -> Message:
    """A group as a worker reads it; ``energy`` names the workloads whose energy is measured."""
    workloads = [{**workload.to_json(), "energy": workload.id in energy} for workload in group.workloads]
    return {
        "part": group.part,
        "spec": group.spec,
        "workloads": workloads,
        "wanted": group.target_count,
        "role": group.role,
    }


def group_from_json(values: Message) -> tuple[Group, set[str]]:
    """The group that :func:`group_to_json` wrote."""
    workloads = tuple(workload_from_json(workload) for workload in values["workloads"])
    energy = {workload.id for workload, raw in zip(workloads, values["workloads"]) if raw["energy"]}
    return Group(values["part"], values["spec"], workloads, values["wanted"], values["role"]), energy


def settings_from_json(values: Message) -> tuple[Measuring, Limits]:
    """The ``measuring`` and ``limits`` sections of a worker's settings."""
    return Measuring(**values["measuring"]), Limits(**values["limits"])
