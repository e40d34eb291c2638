"""Training: core sharing: fit the slowdown of processes on two cores of a CPU, and judge it on jobs it has not seen.

A group is held out as soon as one of its architectures is, as in `foretell.training.sharing`. Slowdowns are ratios of
means: where three processes share two cores, most runs of a short step are not interrupted at all, and its median would
say that nothing happened.

Two things about measuring decide what is learned (docs/lab/0043-cpu-sharing.md). Nothing is faster beside others than
alone, but hosts are noisy: the time alone of a workload is the least of its times alone and in pairs. And of three
processes a scheduler leaves one alone on its core for seconds, whichever that is; so all members of a trio get the
slowdown of the group, three divided by its throughput, and only the interval knows that single ones differ.
"""

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from foretell.datasets.parquet_files import find_files, read_columns
from foretell.errors import DataError
from foretell.predictors.fitted_files import write_fitted
from foretell.predictors.sharing import cores
from foretell.predictors.unit.fit_model import Settings, conformal_quantile
from foretell.training.fusion import FOLDS, fold_of
from foretell.training.judging.sharing import Judged, tables_of, write_page
from foretell.training.judging.table import Comparison

SOURCE = "not needed"
_COLUMNS = (
    "campaign_id", "group_id", "method", "members", "member", "workload_id", "spec", "family", "dtype", "mode",
    "batch_size", "solo_ms", "together_ms", "status",
)  # fmt: skip

Log = Callable[[str], None]
Values = NDArray[np.float64]
Row = Mapping[str, Any]


@dataclass(frozen=True)
class CoreGroup:
    """Processes that shared two cores, and the time of each alone."""

    rows: Sequence[Row]
    alone_ms: Sequence[float]

    @property
    def member_logs(self) -> Values:
        """The log slowdown of each."""
        return np.log([row["together_ms"] / alone for row, alone in zip(self.rows, self.alone_ms, strict=True)])

    @property
    def logs(self) -> Values:
        """The log slowdowns that are learned: of each where everybody has a core, else of the group."""
        own = self.member_logs
        if len(own) <= cores.CORES:
            return own
        return np.full(len(own), -np.log(np.exp(-own).mean()))

    @property
    def folds(self) -> list[int]:
        """The folds of its members."""
        return [fold_of(row["spec"]) for row in self.rows]


def read_groups(store: Path) -> list[CoreGroup]:
    """The complete groups on cores below ``store``."""
    rows: defaultdict[tuple[str, str], list[Row]] = defaultdict(list)
    for file in find_files(store):
        if file.table == "colocation":
            for row in read_columns(file, _COLUMNS).to_pylist():
                if row["status"] == "ok" and row["method"] == cores.METHOD:
                    rows[row["campaign_id"], row["group_id"]].append(row)
    if not rows:
        raise DataError(f"No group shared cores below {store}; measure some: plans/cpu-colocation.toml.")
    complete = [
        own for found in rows.values() if len(own := sorted(found, key=lambda row: row["member"])) == own[0]["members"]
    ]
    alone_ms: dict[str, float] = {}
    for row in (row for own in complete for row in own):
        times = (row["solo_ms"], *([row["together_ms"]] if row["members"] <= cores.CORES else ()))
        alone_ms[row["workload_id"]] = min(*times, alone_ms.get(row["workload_id"], np.inf))
    return [CoreGroup(own, [alone_ms[row["workload_id"]] for row in own]) for own in complete]


def fit(groups: Sequence[CoreGroup]) -> dict[int, float]:
    """By number of processes the median log slowdown."""
    logs: defaultdict[int, list[float]] = defaultdict(list)
    for group in groups:
        logs[len(group.rows)] += group.logs.tolist()
    return {count: max(float(np.median(own)), 0.0) for count, own in logs.items()}


def judge(groups: Sequence[CoreGroup]) -> list[Judged]:
    """Every member of every group, predicted by a fit that has not seen at least one architecture of the group."""
    judged = []
    for fold in range(FOLDS):
        training = [group for group in groups if fold not in group.folds]
        held_out = [group for group in groups if fold in group.folds]
        if not training or not held_out:
            continue
        known = fit(training)
        for group in held_out:
            size = len(group.rows)
            if size not in known:
                continue
            for row, log in zip(group.rows, group.logs.tolist(), strict=True):
                beside = tuple(other["spec"] for other in group.rows if other is not row)
                own = max(log, 0.0), known[size]
                others = {"time on the cores alone": cores.log_time(size)}
                judged.append(Judged(row, size, fold, group.folds.count(fold), *own, others, beside))
    if not judged:
        raise DataError("All groups on cores belong to one fold; measure groups of more architectures.")
    return judged


def evaluate(store: Path, device: str, cache: Path, log: Log = lambda _: None) -> list[Comparison]:  # noqa: ARG001
    """Held-out tables: pairs and trios, some or all members unseen."""
    return tables_of(judge(read_groups(store)), SOURCE)


def write_report(tables: Sequence[Comparison], folder: Path) -> Path:
    """Write the tables as Markdown."""
    command = "foretell evaluate core-sharing -d cpu --store data-cpu --report"
    return write_page(tables, folder, "sharing-cpu.md", "Models that share two cores of a CPU", command)


def train(store: Path, device: str, cache: Path, out: Path, log: Log = lambda _: None) -> Path:  # noqa: ARG001
    """Fit slowdowns to all groups, and write them with their held-out errors."""
    groups = read_groups(store)
    judged = judge(groups)
    single = {
        (row["campaign_id"], row["group_id"], row["member"]): own
        for group in groups
        for row, own in zip(group.rows, group.member_logs.tolist(), strict=True)
    }
    errors: defaultdict[int, list[float]] = defaultdict(list)
    for one in judged:
        key = (one.row["campaign_id"], one.row["group_id"], one.row["member"])
        errors[one.members].append(abs(single[key] - one.predicted))
    model = cores.CoreModel(
        {n: (own, conformal_quantile(np.array(errors[n]), Settings().miss)) for n, own in sorted(fit(groups).items())}
    )
    card = {"groups": len(groups), "held_out": float(np.mean([one.error for one in judged]))}
    return write_fitted(out, cores.FILE, cores.write(model, card))
