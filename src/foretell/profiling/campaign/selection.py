"""Profiling: choose workloads from earlier campaigns that are known to run and differ as much as possible."""

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from foretell.errors import InputError, MeasurementError
from foretell.profiling.campaign.done import find_tables, read_table
from foretell.profiling.campaign.plan import Part, Plan
from foretell.profiling.campaign.schedule import make_schedule
from foretell.profiling.workload import Workload, fraction, parse_spec, workload_from_row

Row = Mapping[str, Any]

_CLASSES_A_DECADE = 3
_COLUMNS = (
    "workload_id", "spec", "family", "part", "mode", "optimizer", "dtype", "batch_size", "input_shape", "status",
    "latency_ms", "latency_source", "noisy", "reserved_mib", "channels_last",
)  # fmt: skip
_TIMED = ("cuda-graph", "cpu-timer")  # what can be replayed: not sums of kernels
_NEWER = ("channels_last",)  # columns that older tables lack


@dataclass(frozen=True)
class Chosen:
    """A workload, its part of the plan, and its latency on the whole device if that is known."""

    workload: Workload
    part: str
    latency_ms: float | None = None


def choose(plan: Plan, limit: int = 0) -> list[Chosen]:
    """The workloads of a plan, ordered so that the first few already come from all parts."""
    target_count = min(plan.selection.workloads, limit) if limit else plan.selection.workloads
    if not plan.selection.measured:
        return _drawn(plan, target_count)
    rows: Sequence[Row] = list(_read(map(Path, plan.selection.measured), "measurements", _COLUMNS))
    if plan.selection.max_kernels:
        kernels = _count_kernels(map(Path, plan.selection.measured))
        rows = [row for row in rows if 0 < kernels[row["workload_id"]] <= plan.selection.max_kernels]
    total = math.fsum(part.share for part in plan.parts)
    queues = [(part, _part(rows, part, plan, math.ceil(target_count * part.share / total))) for part in plan.parts]
    chosen: list[Chosen] = []
    used = Counter({part.name: 0 for part in plan.parts})
    # the part that has got least for its share is next, so that every prefix of the list is balanced
    while len(chosen) < target_count and any(queue for _, queue in queues):
        part, queue = min(((p, q) for p, q in queues if q), key=lambda pair: used[pair[0].name] / pair[0].share)
        used[part.name] += 1
        chosen.append(queue.pop(0))
    if not chosen:
        raise InputError(f"Nothing in {', '.join(plan.selection.measured)} fits the plan. Widen [selection].")
    return chosen


def _drawn(plan: Plan, target_count: int) -> list[Chosen]:
    schedule, chosen = make_schedule(plan), dict[str, Chosen]()
    while len(chosen) < target_count and (group := schedule.next()) is not None:
        workload = group.workloads[0]
        chosen.setdefault(workload.id, Chosen(workload, group.part))
    return list(chosen.values())


def _files(paths: Iterable[Path], table: str) -> Iterable[Path]:
    for path in paths:
        files = find_tables(path, table)
        if not files:
            raise MeasurementError(f"There is no {table}.parquet below {path}. Change [selection] measured.")
        yield from files


def _read(paths: Iterable[Path], table: str, columns: Sequence[str]) -> Iterable[Row]:
    required = [name for name in columns if name not in _NEWER]
    for file in _files(paths, table):
        yield from read_table(file, required, [name for name in columns if name in _NEWER]).to_pylist()


def _count_kernels(paths: Iterable[Path]) -> Counter[str]:
    """How many kernels were traced of each workload."""
    kernels: Counter[str] = Counter()
    for file in _files(paths, "kernels"):
        counts = read_table(file, ("workload_id",)).column(0).value_counts().to_pylist()
        kernels.update({str(entry["values"]): int(entry["counts"]) for entry in counts})
    return kernels


def _part(rows: Sequence[Row], part: Part, plan: Plan, count: int) -> list[Chosen]:
    fitting = {str(row["workload_id"]): row for row in rows if row["part"] == part.name and _fits(row, part, plan)}
    picked = spread_out([fitting[workload_id] for workload_id in sorted(fitting)], count, str(plan.seed))
    return [Chosen(workload_from_row(row), part.name, float(row["latency_ms"])) for row in picked]


def _fits(row: Row, part: Part, plan: Plan) -> bool:
    limits = plan.selection
    return bool(
        row["status"] == "ok"
        and row["latency_source"] in _TIMED
        # a host's noise says nothing about the workload
        and (not row["noisy"] or row["latency_source"] == "cpu-timer")
        and limits.min_latency_ms <= row["latency_ms"] <= limits.max_latency_ms
        and (row["reserved_mib"] or 0.0) <= limits.max_memory_mib
        and row["mode"] in part.modes
        and row["dtype"] in part.dtypes
        and not any(word in row["spec"] for word in part.exclude)
    )


def spread_out(rows: Sequence[Row], count: int, seed: str) -> list[Row]:
    """Pick ``count`` rows greedily: each time the row whose traits occur least among the rows picked before."""
    used: Counter[tuple[str, object]] = Counter()
    left = sorted(rows, key=lambda row: fraction("selection", seed, row["workload_id"]))
    picked: list[Row] = []
    while left and len(picked) < count:
        best = min(left, key=lambda row: math.fsum(used[trait] for trait in traits(row)))
        left.remove(best)
        picked.append(best)
        used.update(traits(best))
    return picked


def traits(row: Row) -> tuple[tuple[str, object], ...]:
    """What two workloads can have in common.

    >>> row = {"latency_ms": 2.5, "batch_size": 8, "spec": "timm:resnet50", "family": "resnet", "mode": "inference"}
    >>> traits({**row, "dtype": "fp16"})[:2]
    (('latency', 1), ('batch', 1))
    """
    latency = math.floor(math.log10(row["latency_ms"]) * _CLASSES_A_DECADE)
    batch = int(math.log2(row["batch_size"])) // 2
    zoo = parse_spec(row["spec"]).zoo
    names = (("spec", row["spec"]), ("family", row["family"]), ("dtype", row["dtype"]), ("mode", row["mode"]))
    return (("latency", latency), ("batch", batch), ("zoo", zoo), *names)
