"""Training: core sharing: fit the slowdown of processes on two cores of a CPU, and judge it on jobs it has not seen.

A group is held out as soon as one of its architectures is, as in `foretell.training.sharing`. Slowdowns are ratios of
means: where three processes share two cores, most runs of a short step are not interrupted at all, and its median would
say that nothing happened.
"""

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from foretell.datasets.parquet_files import find_files, read_columns
from foretell.devices import find_device
from foretell.errors import DataError
from foretell.predictors.fitted_files import write_fitted
from foretell.predictors.sharing import cores
from foretell.predictors.unit.fit_model import Settings, conformal_quantile
from foretell.training.examples.samples import read_samples
from foretell.training.fusion import FOLDS, fold_of
from foretell.training.judging.sharing import Judged, tables_of, write_page
from foretell.training.judging.table import Comparison

SOURCE = "taken from the roofline"
_COLUMNS = (
    "campaign_id", "group_id", "method", "members", "member", "workload_id", "spec", "family", "dtype", "mode",
    "batch_size", "solo_ms", "together_ms", "status",
)  # fmt: skip
_ROUNDS, _LEAST_ERROR, _RIDGE = 20, 0.02, 1e-3

Log = Callable[[str], None]
Values = NDArray[np.float64]
Row = Mapping[str, Any]


@dataclass(frozen=True)
class CoreGroup:
    """Processes that shared two cores, and of each the share of its time that memory traffic takes."""

    rows: Sequence[Row]
    traffic: Sequence[float]

    @property
    def logs(self) -> Values:
        """The measured log slowdowns."""
        return np.array([np.log(row["together_ms"] / row["solo_ms"]) for row in self.rows])

    @property
    def folds(self) -> list[int]:
        """The folds of its members."""
        return [fold_of(row["spec"]) for row in self.rows]


def read_groups(store: Path, device: str, cache: Path, log: Log = lambda _: None) -> list[CoreGroup]:
    """The complete groups on cores below ``store`` whose members were all measured alone as workloads too."""
    rows: defaultdict[tuple[str, str], list[Row]] = defaultdict(list)
    for file in find_files(store):
        if file.table == "colocation":
            for row in read_columns(file, _COLUMNS).to_pylist():
                if row["status"] == "ok" and row["method"] == cores.METHOD:
                    rows[row["campaign_id"], row["group_id"]].append(row)
    if not rows:
        raise DataError(f"No group shared cores below {store}; measure some: plans/cpu-colocation.toml.")
    traffic = {
        sample.workload_id: cores.traffic_of(sample.units.features, sample.units.counts, sample.units.bound_us)
        for sample in read_samples(store, find_device(device).id, cache, log)
    }
    groups = [
        CoreGroup(own, [traffic[row["workload_id"]] for row in own])
        for found in rows.values()
        if len(own := sorted(found, key=lambda row: row["member"])) == own[0]["members"]
        and all(row["workload_id"] in traffic for row in own)
    ]
    log(f"{len(groups)} of {len(rows)} groups")
    if not groups:
        raise DataError(f"No member of a group was measured alone below {store}; collect it too.")
    return groups


def fit(groups: Sequence[CoreGroup]) -> Values:
    """Weights with the least absolute error of log slowdowns, by repeated least squares; large errors weigh less."""
    rows = np.concatenate([cores.describe(group.traffic) for group in groups])
    logs = np.concatenate([group.logs - cores.log_time(len(group.rows)) for group in groups])
    weights, trust = np.zeros(rows.shape[1]), np.ones(len(logs))
    for _ in range(_ROUNDS):
        scaled = rows * trust[:, None]
        weights = np.linalg.solve(rows.T @ scaled + _RIDGE * np.eye(rows.shape[1]), scaled.T @ logs)
        trust = 1.0 / np.maximum(np.abs(rows @ weights - logs), _LEAST_ERROR)
    return weights


def judge(groups: Sequence[CoreGroup]) -> list[Judged]:
    """Every member of every group, predicted by weights that have not seen at least one architecture of the group."""
    judged = []
    for fold in range(FOLDS):
        training = [group for group in groups if fold not in group.folds]
        held_out = [group for group in groups if fold in group.folds]
        if not training or not held_out:
            continue
        weights = fit(training)
        for group in held_out:
            size, logs = len(group.rows), group.logs
            predicted = np.maximum(cores.log_time(size) + cores.describe(group.traffic) @ weights, 0.0)
            same = [own.logs for own in training if len(own.rows) == size]
            constant = float(np.median(np.concatenate(same))) if same else cores.log_time(size)
            for place, row in enumerate(group.rows):
                others = {"time on the cores alone": cores.log_time(size), "constant": constant}
                beside = tuple(other["spec"] for other in group.rows if other is not row)
                own = float(logs[place]), float(predicted[place])
                judged.append(Judged(row, size, fold, group.folds.count(fold), *own, others, beside))
    if not judged:
        raise DataError("All groups on cores belong to one fold; measure groups of more architectures.")
    return judged


def evaluate(store: Path, device: str, cache: Path, log: Log = lambda _: None) -> list[Comparison]:
    """Held-out tables: pairs and trios, some or all members unseen."""
    return tables_of(judge(read_groups(store, device, cache, log)), SOURCE)


def write_report(tables: Sequence[Comparison], folder: Path) -> Path:
    """Write the tables as Markdown."""
    command = "foretell evaluate core-sharing -d cpu --store data-cpu --report"
    return write_page(tables, folder, "sharing-cpu.md", "Models that share two cores of a CPU", command)


def train(store: Path, device: str, cache: Path, out: Path, log: Log = lambda _: None) -> Path:
    """Fit the weights to all groups, and write them with their held-out errors."""
    groups = read_groups(store, device, cache, log)
    judged = judge(groups)
    errors: defaultdict[int, list[float]] = defaultdict(list)
    for one in judged:
        errors[one.members].append(abs(one.truth - one.predicted))
    widths = tuple((n, conformal_quantile(np.array(own), Settings().miss)) for n, own in sorted(errors.items()))
    model = cores.CoreModel(tuple(fit(groups).tolist()), widths)
    card = {"groups": len(groups), "held_out": float(np.mean([one.error for one in judged]))}
    return write_fitted(out, cores.FILE, cores.write(model, card))
