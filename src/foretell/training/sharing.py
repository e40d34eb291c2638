"""Training: sharing: fit a model to groups of jobs that were measured on one GPU, and judge it on jobs it has not seen.

A group is held out as soon as one of its members is: no architecture is on both sides. Members that were held out are
counted apart: some of the group, or all of it. The times of units come from networks, and the launches from trees, that
have not seen the architecture either.

A user may have measured how long a job takes alone. So every job is there twice: with its times as they are predicted,
and scaled to what was measured alone. One correction is fitted to both, and each is judged
(``docs/lab/0065-sharing-closed.md``).
"""

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from foretell.datasets.parquet_files import find_files, read_columns
from foretell.devices import find_device
from foretell.errors import DataError
from foretell.files import write_whole
from foretell.predictors import best_predictor
from foretell.predictors.fitted_files import write_fitted
from foretell.predictors.sample import Sample
from foretell.predictors.sharing.features import describe_groups
from foretell.predictors.sharing.fit import fit_correction
from foretell.predictors.sharing.jobs import Job, describe_job
from foretell.predictors.sharing.launches import FIT_VERSION, LAUNCH_SCHEMA, LaunchModel, UnitFills, fit_launches
from foretell.predictors.sharing.model import (
    METHODS,
    MPS,
    TIME_SLICING,
    SharingModel,
    TimeSlices,
    Widths,
    file_name,
    groups_inside,
    largest_inside,
    write,
)
from foretell.predictors.unit.fit_model import Settings, conformal_quantile
from foretell.predictors.unit.predictor import shipped as shipped_units
from foretell.predictors.unit.rows import UnitRows
from foretell.training.cross_fits import held_out_units
from foretell.training.examples.fills import FILLS_VERSION, TracedFills, unit_fills
from foretell.training.examples.launches import read_launches
from foretell.training.examples.samples import fingerprint, read_samples
from foretell.training.fusion import FOLDS, fold_of
from foretell.training.judging.sharing import Judged, baselines, tables_of
from foretell.training.judging.table import Comparison
from foretell.units import seconds_from_ms, us

HELD_OUT = "by networks that have not seen the architecture"
SEEN = "by the shipped predictor, which has seen these architectures"
_COLUMNS = (
    "campaign_id", "group_id", "method", "members", "member", "workload_id", "spec", "family", "dtype", "mode",
    "batch_size", "percentage", "solo_ms", "together_ms", "status",
)  # fmt: skip
MEASURED = "sharing, times alone measured"
_SCALINGS = 3  # gaps do not grow with units: a few steps find the scale
_SCALES = (0.1, 10.0)
_WIDTH_AT = (1.0, 1.15, 1.4, 1.8, 2.5, 4.0)  # slowdowns between which an interval has a width of its own

Log = Callable[[str], None]
Values = NDArray[np.float64]


@dataclass(frozen=True)
class Member:
    """One measured member of a group."""

    row: Mapping[str, Any]
    sample: Sample
    unit_us: Values

    @property
    def share(self) -> float:
        """The limit of its SMs."""
        return float(self.row.get("percentage") or 100.0) / 100.0

    @property
    def log_slowdown(self) -> float:
        """The measured one."""
        return float(np.log(self.row["together_ms"] / self.row["solo_ms"]))


@dataclass(frozen=True)
class GroupSet:
    """Measured groups, how their units' times were predicted, and what traced units hold of the device.

    ``trees_name`` begins the names of the files in which fitted launches are cached.
    """

    device: str
    groups: Sequence[Sequence[Member]]
    source: str
    fills: TracedFills
    trees_name: Path

    def of(self, method: str) -> list[Sequence[Member]]:
        """The groups of one method."""
        return [group for group in self.groups if group[0].row["method"] == method]

    def fit_launches(self, without: int | None = None) -> LaunchModel:
        """The model of launches, fitted to all folds but one; from the cache where there is one."""
        name = "all" if without is None else str(without)
        file = self.trees_name.with_name(f"{self.trees_name.name}-trees-{LAUNCH_SCHEMA}-{FIT_VERSION}-{name}.npz")
        if file.exists():
            return LaunchModel.load(file.read_bytes())
        known = self.fills.without(without)
        if not len(known[0]):
            raise DataError("All traced launches belong to one fold; trace more architectures.")
        model = fit_launches(*known)
        write_whole(file, model.to_bytes())
        return model


def read_groups(store: Path, device: str, cache: Path, log: Log = lambda _: None) -> GroupSet:
    """The complete groups below ``store`` whose members were all measured alone as workloads too."""
    device = find_device(device).id
    rows = _measured_groups(store)
    if not rows:
        raise DataError(f"No group was measured below {store}; measure some with a plan of the kind colocation.")
    samples = read_samples(store, device, cache, log)
    unit_rows = UnitRows.of(samples)
    held_out = held_out_units(samples, device, cache)
    unit_us = None if held_out is None else np.exp(held_out.log_ratio) * unit_rows.bound_us
    source = SEEN if unit_us is None else HELD_OUT
    model = shipped_units(device, best_predictor(device)) if unit_us is None else None
    wanted = {row["workload_id"] for group in rows for row in group}
    known: dict[str, tuple[Sample, Values]] = {}
    for place, sample in enumerate(samples):
        if sample.workload_id in wanted:
            times = unit_us[unit_rows.part(place)] if unit_us is not None else model.times_us(sample.units)  # type: ignore[union-attr]
            known[sample.workload_id] = (sample, times)
    groups = [
        [Member(row, *known[row["workload_id"]]) for row in group]
        for group in rows
        if all(row["workload_id"] in known for row in group)
    ]
    log(f"{len(groups)} of {len(rows)} groups, {len(known)} workloads")
    if not groups:
        raise DataError(f"No member of a group was measured alone on {device} below {store}; collect it too.")
    fills = unit_fills(samples, read_launches(store, device, cache, log), find_device(device))
    name = cache / f"fills-{device}-{fingerprint(store, device, fills=FILLS_VERSION)}"
    return GroupSet(device, groups, source, fills, name)


def _measured_groups(store: Path) -> list[list[Mapping[str, Any]]]:
    """The groups all of whose members were measured; no limit of SMs is written as None in older files."""
    found: defaultdict[tuple[str, str, str], list[Mapping[str, Any]]] = defaultdict(list)
    for file in find_files(store):
        if file.table == "colocation":
            for row in read_columns(file, _COLUMNS).to_pylist():
                if row["status"] == "ok" and row["method"] in METHODS and row["solo_ms"] and row["together_ms"]:
                    found[row["campaign_id"], row["group_id"], row["method"]].append(row)
    return [
        sorted(group, key=lambda row: row["member"]) for group in found.values() if len(group) == group[0]["members"]
    ]


def _jobs(groups: Sequence[Sequence[Member]], models: Mapping[int, LaunchModel]) -> "Described":
    """The groups as jobs; ``models`` are by fold those that have not seen it."""
    held: dict[str, UnitFills] = {}
    known: dict[tuple[str, float], Job] = {}
    for member in (member for group in groups for member in group):
        sample = member.sample
        if sample.workload_id not in held:
            held[sample.workload_id] = models[fold_of(sample.spec)].predict(sample.units.features)
        key = (sample.workload_id, member.share)
        if key not in known:
            known[key] = _job(member, held[sample.workload_id])
    return Described(
        groups,
        [[known[member.sample.workload_id, member.share] for member in group] for group in groups],
        [[_measured_job(member, held[member.sample.workload_id]) for member in group] for group in groups],
    )


def _job(member: Member, held: UnitFills, scale: float = 1.0) -> Job:
    units = member.sample.units
    return describe_job(units.features, units.counts, scale * member.unit_us, held, member.share)


def _measured_job(member: Member, held: UnitFills) -> Job:
    """A job whose units are as much longer or shorter as its time alone is off."""
    job, scale = _job(member, held), 1.0
    for _ in range(_SCALINGS):
        scale = float(np.clip(scale * us(seconds_from_ms(member.row["solo_ms"])) / job.run_us, *_SCALES))
        job = _job(member, held, scale)
    return job


@dataclass(frozen=True)
class Described:
    """Groups as jobs, each described by a model of launches that has not seen its architecture.

    Those of ``measured`` take as long alone as was measured.
    """

    groups: Sequence[Sequence[Member]]
    jobs: Sequence[Sequence[Job]]
    measured: Sequence[Sequence[Job]]

    @property
    def logs(self) -> Values:
        """The measured log slowdowns."""
        return np.array([member.log_slowdown for group in self.groups for member in group])


def describe(group_set: GroupSet, log: Log = lambda _: None) -> Described:
    """The groups under MPS as jobs."""
    log("fitting launches")
    groups = group_set.of(MPS)
    return _jobs(groups, {fold: group_set.fit_launches(fold) for fold in range(FOLDS)})


def judge(group_set: GroupSet, described: Described, log: Log = lambda _: None) -> list[Judged]:
    """Every member of every group, predicted by models that have not seen at least one architecture of the group."""
    return [*_judge_mps(described, log), *_judge_time_slicing(group_set)]


def _judge_mps(described: Described, log: Log) -> list[Judged]:
    groups = described.groups
    if not groups:
        return []
    log("simulating groups")
    inside = [groups_inside(group) for group in described.jobs]
    (rows, base), (measured_rows, measured_base) = (
        describe_groups(
            [[group[one] for one in members] for group, found in zip(jobs, inside, strict=True) for members in found]
        )
        for jobs in (described.jobs, described.measured)
    )
    truth = [[member.log_slowdown for member in group] for group in groups]
    folds = [[fold_of(member.sample.spec) for member in group] for group in groups]
    # the rows of a group itself are the last among those of the groups inside it
    ends = np.cumsum([sum(map(len, found)) for found in inside])
    own = [np.arange(end - len(group), end) for end, group in zip(ends.tolist(), groups, strict=True)]
    result = []
    for fold in range(FOLDS):
        log(f"fold {fold + 1} of {FOLDS}")
        training = [number for number, found in enumerate(folds) if fold not in found]
        held_out = [number for number, found in enumerate(folds) if fold in found]
        if not held_out:
            continue
        if not training:
            raise DataError("All groups belong to one fold; measure groups of more architectures.")
        place = np.concatenate([own[number] for number in training])
        logs = np.concatenate([truth[number] for number in training])
        correction = fit_correction(
            np.concatenate([rows[place], measured_rows[place]]),
            np.concatenate([base[place], measured_base[place]]),
            np.tile(logs, 2),
        )
        predicted = largest_inside(inside, base + correction.predict(rows))
        measured = largest_inside(inside, measured_base + correction.predict(measured_rows))
        others = baselines(rows, place, logs)
        for number in held_out:
            for one, member in enumerate(groups[number]):
                row = int(own[number][one])
                simpler = {
                    MEASURED: measured[number][one],
                    "simulation alone": max(float(base[row]), 0.0),
                    **{name: float(values[row]) for name, values in others.items()},
                }
                result.append(
                    Judged(
                        member.row, len(groups[number]), fold, folds[number].count(fold), truth[number][one],
                        predicted[number][one], simpler,
                        tuple(other.row["spec"] for other in groups[number] if other is not member),
                    )
                )  # fmt: skip
    return result


def _judge_time_slicing(group_set: GroupSet) -> list[Judged]:
    groups = group_set.of(TIME_SLICING)
    folds = [[fold_of(member.sample.spec) for member in group] for group in groups]
    result = []
    for fold in range(FOLDS):
        known = _time_slices([group for group, found in zip(groups, folds, strict=True) if fold not in found])
        for group, found in zip(groups, folds, strict=True):
            if fold in found and len(group) in known:
                log = float(np.log(known[len(group)].slowdown))
                result += [
                    Judged(
                        member.row, len(group), fold, found.count(fold), member.log_slowdown, log,
                        {"1/n of the time": float(np.log(len(group)))},
                        tuple(other.row["spec"] for other in group if other is not member),
                    )
                    for member in group
                ]  # fmt: skip
    return result


def _time_slices(
    groups: Sequence[Sequence[Member]], errors: Mapping[int, float] | None = None
) -> dict[int, TimeSlices]:
    logs: defaultdict[int, list[float]] = defaultdict(list)
    for group in groups:
        logs[len(group)] += [member.log_slowdown for member in group]
    return {n: TimeSlices(n, float(np.exp(np.median(found))), (errors or {}).get(n, 0.0)) for n, found in logs.items()}


def widths_of(judged: Sequence[Judged]) -> Widths:
    """The errors that nine in ten stay below, by predicted slowdown."""
    logs = np.array([one.predicted for one in judged])
    errors = np.abs(logs - [one.truth for one in judged])
    edges = [*np.log(_WIDTH_AT), np.inf]
    result = []
    for low, high in pairwise(edges):
        within = (logs >= low) & (logs < high)
        if within.sum() >= 10:
            result.append((float(np.median(logs[within])), conformal_quantile(errors[within], Settings().miss)))
    return tuple(result) or ((0.0, conformal_quantile(errors, Settings().miss)),)


def evaluate(store: Path, device: str, cache: Path, log: Log = lambda _: None) -> list[Comparison]:
    """Held-out tables: MPS and time-slicing, pairs and trios, some or all members unseen."""
    group_set, judged = judge_store(store, device, cache, log)
    return tables_of(judged, group_set.source)


def judge_store(store: Path, device: str, cache: Path, log: Log = lambda _: None) -> tuple[GroupSet, list[Judged]]:
    """The groups of a store, and all their members, held out."""
    group_set = read_groups(store, device, cache, log)
    return group_set, judge(group_set, describe(group_set, log), log)


def write_report(tables: Sequence[Comparison], folder: Path) -> Path:
    """Write the tables as Markdown."""
    from foretell.training.judging.sharing import write_page

    return write_page(tables, folder)


def train(store: Path, device: str, cache: Path, out: Path, log: Log = lambda _: None) -> Path:
    """Fit a model to all groups, and write it with its held-out errors."""
    group_set = read_groups(store, device, cache, log)
    described = describe(group_set, log)
    judged = judge(group_set, described, log)
    mps = [one for one in judged if one.row["method"] == MPS]
    sliced = [one for one in judged if one.row["method"] == TIME_SLICING]
    if not mps or not sliced:
        raise DataError("Both MPS and time-slicing must be measured to fit a model of sharing; collect the other.")
    # jobs are described as those of users will be: by models that have not seen them
    (rows, base), (measured_rows, measured_base) = map(describe_groups, (described.jobs, described.measured))
    correction = fit_correction(
        np.concatenate([rows, measured_rows]), np.concatenate([base, measured_base]), np.tile(described.logs, 2)
    )
    errors = {
        n: conformal_quantile(
            np.array([abs(one.truth - one.predicted) for one in sliced if one.members == n]), Settings().miss
        )
        for n in {one.members for one in sliced}
    }
    slices = tuple(_time_slices(group_set.of(TIME_SLICING), errors).values())
    model = SharingModel(group_set.device, group_set.fit_launches(), correction, widths_of(mps), slices)
    card = {
        "groups": len(group_set.groups),
        "held_out": {
            method: float(np.mean([one.error for one in found]))
            for method, found in ((MPS, mps), (TIME_SLICING, sliced))
        },
        "held_out_measured": float(np.mean([one.error_of(MEASURED) for one in mps])),
        "units": group_set.source,
    }
    return write_fitted(out, file_name(group_set.device), write(model, card))
