"""Training: CPU runs: ONNX Runtime and two threads: fitted to their measurements, judged on architectures unseen.

What is learned is how a unit's time differs from that on one thread of eager PyTorch (`foretell.predictors.cpu.model`).
That time is of the same machine: processors of one name differ (an AMD EPYC took half as long as another one whose
product of matrices was a seventh faster), so it comes from trees that are fitted to what one thread took on the same
days. And it must not come from trees that have seen the architecture, or new models would be told better than they are:
trees are fitted once for each fold of architectures, and each workload gets its times from those that have not seen its
own.
"""

import hashlib
import io
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from foretell.datasets.parquet_files import find_files, read_columns
from foretell.devices import find_device
from foretell.devices.cpu_runs import OTHERS, RUN_COLUMNS, CpuRun
from foretell.errors import DataError
from foretell.files import write_whole
from foretell.predictors.adapted.regression import LATENCY_PARTS
from foretell.predictors.adapted.regression import fit as fit_factors
from foretell.predictors.adapted.units import work_of
from foretell.predictors.boosting import TreeFit
from foretell.predictors.cpu.model import NAME, on_eager
from foretell.predictors.fitted_files import write_fitted
from foretell.predictors.sample import Sample
from foretell.predictors.unit.fit_model import Settings, fit_unit_trees, fit_units, folds_of, predict_samples
from foretell.predictors.unit.model import UnitModel, tree_rows
from foretell.predictors.unit.pace import reference_ms
from foretell.predictors.unit.rows import UnitRows
from foretell.training.examples.samples import fingerprint, read_samples
from foretell.training.examples.workloads import measured_rows
from foretell.training.judging.metrics import coverage, mape, median_ape, median_relative_width, share_within
from foretell.training.judging.protocol import groups_of
from foretell.training.judging.table import Comparison, page
from foretell.units import ms, seconds_from_us

FOLDS = 4
WORST = 10
# multiples of a time are smoother than times, and there are fewer measurements: smaller trees than for one thread
SMALL = TreeFit(
    rounds=120, leaves=31, learning_rate=0.1, least_in_leaf=20,
    others={"feature_fraction": 0.6, "bagging_fraction": 0.8, "bagging_freq": 1, "cat_smooth": 20},
)  # fmt: skip
_DISTURBED = 1.25
_BASE_VERSION = 1  # raise it when the trees of one thread are fitted otherwise

Log = Callable[[str], None]
Values = NDArray[np.float64]


@dataclass(frozen=True)
class RunSet:
    """The workloads of one run; ``eager_us`` are the times of their units on one thread of eager PyTorch, predicted.

    ``apart`` are pairs of latencies of the same workload, measured twice, at the same pace.
    """

    run: CpuRun
    samples: Sequence[Sample]
    eager_us: Sequence[Values]
    apart: Sequence[tuple[float, float]]

    @cached_property
    def rebased(self) -> list[Sample]:
        """The samples with these times in place of the roofline's bounds."""
        pairs = zip(self.samples, self.eager_us, strict=True)
        return [replace(sample, units=on_eager(sample.units, own)) for sample, own in pairs]

    @cached_property
    def groups(self) -> list[str]:
        """The architecture of each sample."""
        return groups_of(self.samples)

    @cached_property
    def truth_ms(self) -> Values:
        """What was measured."""
        return np.array([sample.truth["latency_ms"] for sample in self.samples])

    @cached_property
    def eager_ms(self) -> Values:
        """What one thread of eager PyTorch would take, predicted."""
        pairs = zip(self.samples, self.eager_us, strict=True)
        return np.array([ms(seconds_from_us(float(sample.units.counts @ own))) for sample, own in pairs])


def settings(seed: int = 0) -> Settings:
    """How the trees of a run are fitted."""
    return replace(Settings(device="cpu", seed=seed), unit=SMALL)


def read_runs(store: Path, device: str, cache: Path, log: Log = lambda _: None) -> list[RunSet]:
    """The workloads of every run that a store has beside one thread of eager PyTorch."""
    device = find_device(device).id
    present = [run for run in OTHERS if measured_rows(store, run)]
    if not present:
        raise DataError(f"{store} has no measurement of {', of '.join(map(str, OTHERS))}; see plans/cpu-2.toml.")
    by_run = {run: steady(read_samples(store, device, cache, log, run), store, run) for run in present}
    times = _eager_times(store, device, cache, list(by_run.values()), log)
    return [
        RunSet(run, samples, own, repeated(store, run))
        for (run, samples), own in zip(by_run.items(), times, strict=True)
    ]


def _eager_times(
    store: Path, device: str, cache: Path, sets: Sequence[Sequence[Sample]], log: Log
) -> list[list[Values]]:
    """For each sample of each set the times of its units by trees that have not seen its architecture; cached."""
    asked = [sample for samples in sets for sample in samples]
    names = hashlib.sha256("".join(sample.workload_id for sample in asked).encode()).hexdigest()[:8]
    file = cache / f"cpu-base-{names}-{fingerprint(store, device, base=_BASE_VERSION)}.npz"
    if not file.exists():
        data = io.BytesIO()
        np.savez_compressed(data, us=np.concatenate(_cross_fitted(store, device, cache, asked, log)))
        write_whole(file, data.getvalue())
    with np.load(file, allow_pickle=False) as stored:
        flat = np.split(stored["us"], np.cumsum([len(sample.units) for sample in asked])[:-1])
    bounds = np.cumsum([0, *map(len, sets)])
    return [flat[start:end] for start, end in pairwise(bounds.tolist())]


def _cross_fitted(store: Path, device: str, cache: Path, asked: Sequence[Sample], log: Log) -> list[Values]:
    known = read_samples(store, device, cache, log, days=_days(store))
    usual = Settings(device=device)
    folds = folds_of([*groups_of(known), *groups_of(asked)], usual)
    own, rows = folds[len(known) :], UnitRows.of(known)
    found: dict[int, Values] = {}
    for fold in range(usual.folds):
        log(f"one thread, fold {fold + 1} of {usual.folds}")
        trees = fit_units(rows, folds[: len(known)][rows.owner] != fold, usual)
        for number in np.flatnonzero(own == fold).tolist():
            units = asked[number].units
            found[number] = np.exp(trees.predict(tree_rows(units.features))) * units.bound_us
    return [found[number] for number in range(len(asked))]


def steady(samples: Sequence[Sample], store: Path, run: CpuRun) -> list[Sample]:
    """The samples beside which the reference product took about as long as usual: else something else was running."""
    rows = measured_rows(store, run)
    usual_ms = float(np.median([row["reference_ms"] for row in rows.values()]))
    return [one for one in samples if rows[one.workload_id]["reference_ms"] < _DISTURBED * usual_ms]


def _days(store: Path) -> set[str]:
    """The days on which other runs than one thread of eager PyTorch were measured."""
    rows = [row for run in OTHERS for row in measured_rows(store, run).values()]
    return {str(row["measured_at"])[: len("2026-11-18")] for row in rows}


def repeated(store: Path, run: CpuRun) -> list[tuple[float, float]]:
    """The first two latencies of every workload that was measured twice, at the usual pace."""
    found: dict[str, list[float]] = {}
    for file in find_files(store):
        if file.table == "measurements":
            columns = ("workload_id", "status", "latency_ms", "reference_ms", *RUN_COLUMNS)
            for row in read_columns(file, columns).to_pylist():
                if row["status"] == "ok" and run.has(row):
                    pace = reference_ms(run) / (row["reference_ms"] or reference_ms(run))
                    found.setdefault(row["workload_id"], []).append(row["latency_ms"] * pace)
    return [(first, second) for first, second, *_ in (times for times in found.values() if len(times) > 1)]


@dataclass(frozen=True)
class Judged:
    """Predictions for architectures that no fit has seen; the last one has intervals."""

    latency_ms: Mapping[str, Values]
    low: Values
    high: Values


def judge(runs: RunSet, log: Log = lambda _: None) -> Judged:
    """Predict every workload by fits to other architectures: ours, and simpler ways."""
    folds = folds_of(runs.groups, replace(Settings(), folds=FOLDS))
    count = len(runs.samples)
    ours, low, high, alone, constant = (np.full(count, np.nan) for _ in range(5))
    for fold in range(FOLDS):
        log(f"{runs.run}, fold {fold + 1} of {FOLDS}")
        seen, asked = np.flatnonzero(folds != fold).tolist(), np.flatnonzero(folds == fold).tolist()
        groups = [runs.groups[number] for number in seen]
        for samples, into in ((runs.rebased, ours), (runs.samples, alone)):
            model = UnitModel.load(fit_unit_trees([samples[number] for number in seen], groups, settings()))
            answer = predict_samples(model, [samples[number] for number in asked])
            into[asked] = answer["latency_ms"]
            if into is ours:
                low[asked], high[asked] = answer["latency_ms_low"], answer["latency_ms_high"]
        ratio = np.log(runs.truth_ms[seen] / runs.eager_ms[seen])
        constant[asked] = runs.eager_ms[asked] * np.exp(np.median(ratio))
    works = [work_of(one.units, own) for one, own in zip(runs.samples, runs.eager_us, strict=True)]
    factors = fit_factors(works, np.log(runs.truth_ms / runs.eager_ms), runs.groups, LATENCY_PARTS)
    ways = {
        "one thread of eager PyTorch": runs.eager_ms,
        "one constant": constant,
        "factors, as foretell adapt": runs.truth_ms * np.exp(-factors.left_out),
        "trees on the roofline's bounds": alone,
        NAME: ours,
    }
    return Judged(ways, low, high)


def evaluate(store: Path, device: str, cache: Path, log: Log = lambda _: None) -> list[Comparison]:
    """Held-out tables of every run."""
    return [table for runs in read_runs(store, device, cache, log) for table in _tables(runs, judge(runs, log))]


def _tables(runs: RunSet, judged: Judged) -> Iterator[Comparison]:
    truth_ms, ours = runs.truth_ms, judged.latency_ms[NAME]
    rows = {
        name: {
            "mape": mape(truth_ms, told), "median_ape": median_ape(truth_ms, told),
            "within_10_percent": share_within(truth_ms, told),
        }
        for name, told in judged.latency_ms.items()
    }  # fmt: skip
    rows[NAME] |= {
        "coverage": coverage(truth_ms, judged.low, judged.high),
        "median_relative_width": median_relative_width(ours, judged.low, judged.high),
    }
    if runs.apart:
        first, second = np.array(runs.apart).T
        rows[f"measured again ({len(first)})"] = {
            "mape": mape(second, first), "median_ape": median_ape(second, first),
            "within_10_percent": share_within(second, first),
        }  # fmt: skip
    title = f"{str(runs.run)[0].upper()}{str(runs.run)[1:]}"
    yield Comparison(f"{title}: {len(truth_ms)} workloads, architectures held out", rows)
    errors = np.abs(ours / truth_ms - 1)
    families = np.array([sample.family for sample in runs.samples])
    by_family = sorted(set(families.tolist()), key=lambda name: -float(errors[families == name].mean()))
    yield Comparison(
        f"{title}: by family",
        {name: {"count": int((families == name).sum()), "mape": float(errors[families == name].mean())}
         for name in by_family},
        ranked=False, head="family",
    )  # fmt: skip
    worst = np.argsort(-errors)[:WORST].tolist()
    yield Comparison(
        f"{title}: the worst {WORST}",
        {f"{runs.samples[at].spec[:60]}, batch {runs.samples[at].setting.batch_size}":
         {"measured_ms": float(truth_ms[at]), "predicted_ms": float(ours[at]), "eager_ms": float(runs.eager_ms[at])}
         for at in worst},
        ranked=False, head="workload",
    )  # fmt: skip


def write_report(tables: Sequence[Comparison], folder: Path) -> Path:
    """Write the tables as Markdown."""
    text = (
        "# A CPU on two threads, and under ONNX Runtime\n\n"
        f"Architectures held out, {FOLDS} folds. Remade by `foretell evaluate cpu-runs -d cpu --store data-cpu "
        "--report`.\n\n"
        "Every way starts from the time on one thread of eager PyTorch, told by trees that have not seen the "
        "architecture, but for the trees on the roofline's bounds. `measured again`: the same workloads, minutes or "
        "hours later; no predictor gets below it."
    )
    write_whole(folder / "cpu-runs.md", page(text, tables))
    return folder / "cpu-runs.md"


def train(store: Path, device: str, cache: Path, out: Path, log: Log = lambda _: None) -> Path:
    """Fit a model to each run of a store; returns the last file that was written."""
    file = out
    for runs in read_runs(store, device, cache, log):
        data = fit_unit_trees(runs.rebased, runs.groups, settings(), log, NAME)
        log(f"{runs.run}: latency {UnitModel.load(data).card['held_out']['latency_ms']:.1%} off where it was held out")
        file = write_fitted(out, runs.run.file, data)
    return file
