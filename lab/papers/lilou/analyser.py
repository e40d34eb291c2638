"""Lab: LILOU's sub-graph analyser, judged beside foretell's networks on architectures that it has not seen.

Sub-graphs are units of eager mode. Each has one node, so GAT layers are linear layers here. All were traced on the
whole device, so the features of the device teach the network nothing about slices.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from foretell.devices import find_device
from foretell.errors import DataError
from foretell.features.units import COLUMNS, KINDS
from foretell.predictors.kernels.fit import FITS as KERNEL_FITS
from foretell.predictors.sample import Sample
from foretell.predictors.unit.fit_model import Settings, folds_of
from foretell.predictors.unit.fit_network import default_device
from foretell.predictors.unit.rows import UnitRows
from foretell.training import kernel_classes
from foretell.training.cross_fits import cross_fits
from foretell.training.examples.kernel_labels import KernelLabels, read_labels
from foretell.training.examples.samples import read_samples
from foretell.training.fusion import FOLDS, fold_of
from foretell.training.judging.metrics import accuracy
from foretell.training.judging.protocol import groups_of
from foretell.training.judging.table import PERCENT, Cell, Comparison
from foretell.units import KILO
from lab.papers.baselines import Linear
from lab.papers.kernel_regressors import KernelRegressors
from lab.papers.lilou.fitting import Gat, Schedule
from lab.papers.lilou.folds import (
    Arrays,
    Log,
    PlannedFit,
    complete,
    curve_of,
    facts_of,
    fit_folds,
    fit_table,
    parts_of,
    plan_folds,
    read_predictions,
)
from lab.papers.lilou.report import write_section
from lab.papers.lilou.sets import Flags, UnitSet, inference_units, load_units, prepare_units
from lab.papers.lilou.subgraph_network import (
    BOUND,
    MOST,
    NODES,
    PUBLISHED,
    SHAPES,
    Measured,
    SubgraphFit,
    Subgraphs,
    Sums,
    fit_subgraph_network,
)

TITLE = "How long sub-graphs take, and by which kernel: the analyser"
LILOU, OURS, ROOFLINE = "lilou", "unit-network, sum of units", "roofline"
BEST = "lilou, at its best"
BY_KERNEL, LINEAR = "rules and a forest for each kernel", "linear regression"
AT_ITS_BEST = SubgraphFit(
    Gat(width=128, layers=3, direction="mutual", published=False),
    Schedule(rate=2e-3, batch=1024, epochs=40),
    known=SHAPES,
    sums=8,
)
FITS = {LILOU: PUBLISHED, BEST: AT_ITS_BEST}
FIT_VERSION = 2  # raise it when the network, its features or its training change
_NETWORKS = "all-0"  # the cached networks of ``foretell train``: one for each fold over all data
_FIRST_SIZE = COLUMNS.index("launches")  # what is before are categories, which a node has already
_TIMES_US = (0.0, 3.0, 6.0, 20.0, 100.0, np.inf)
_OFFSET_US = 1e-4  # added to a bound before its logarithm
_CLASSES = ("at once", "among five", "at once, by time", "among five, by time")
_ERRORS = PERCENT | {"share", "mape", "by time", "rmspe", *(f"{name}: mape" for name in (LILOU, BEST, BY_KERNEL, OURS))}

Values = NDArray[np.float64]


@dataclass(frozen=True)
class Predicted:
    """LILOU's predictions: time and likeliest kernels of every traced unit, and times of the units to be summed."""

    time_us: Values
    likeliest: NDArray[np.int64]
    summed_us: Values


def fit_fold(
    prepared: Path, settings: SubgraphFit, fold: int, seconds: float | None, log: Log
) -> tuple[Arrays, dict[str, Any]]:
    """The predictions of a network for the units of a fold that it has not seen."""
    unit_set = load_units(prepared)
    training, validation, held_out = parts_of(unit_set.fold, unit_set.checked, fold)
    every = described(unit_set, settings.known)
    # kernels of training steps are no kernel of these units
    known, label = np.unique(unit_set.label, return_inverse=True)
    # ours learns the latency alone
    classes = len(known) if settings.known == NODES else 0
    measured = Measured(unit_set.time_us, label.astype(np.int64), unit_set.counts, classes)
    sums = teaching_sums(unit_set, fold) if settings.sums else None
    network, history = fit_subgraph_network(
        every, measured, training, validation, settings, default_device(), seconds, log, sums
    )
    time_us, likeliest = network.predict(every)
    own = np.flatnonzero(np.repeat(unit_set.summed_fold == fold, unit_set.lengths)) + len(unit_set.rows)
    predictions: Arrays = {
        "time_us": time_us[held_out],
        "likeliest": known[likeliest[held_out].astype(np.intp)].astype(np.int16),
        # units without a trace are predicted too: whole workloads are sums of all their units
        "summed_us": time_us[own],
    }
    halved = {n: v.astype(np.float32) if v.dtype == np.float64 else v for n, v in predictions.items()}
    return halved | curve_of(history) | (network.saved() if settings.known != NODES else {}), facts_of(history)


def described(unit_set: UnitSet, known: str) -> Subgraphs:
    """The traced units, then those to be summed, as sub-graphs; with the columns that a network knows of them."""
    nodes = unit_set.nodes.of(np.concatenate([unit_set.rows, unit_set.summed]))
    if known == NODES:
        return Subgraphs.of_nodes(nodes, unit_set.device)
    shapes = unit_set.shapes[np.concatenate([unit_set.shape, unit_set.summed_shape])]
    columns = [COLUMNS.index("log_bound_us")] if known == BOUND else list(range(_FIRST_SIZE, len(COLUMNS)))
    nodes = replace(nodes, sizes=np.concatenate([nodes.sizes, shapes[:, columns]], axis=1))
    return Subgraphs.of_nodes(nodes, unit_set.device, bound_us(shapes))


def bound_us(shapes: NDArray[np.float32]) -> Values:
    """The least time of units, from their columns."""
    logs = shapes[:, COLUMNS.index("log_bound_us")].astype(np.float64)
    return np.asarray(np.maximum(np.exp2(logs) - _OFFSET_US, _OFFSET_US))


def teaching_sums(unit_set: UnitSet, fold: int) -> tuple[Sums, Sums]:
    """The workloads of other folds: those to learn, and those that choose the epoch."""
    members = np.arange(len(unit_set.summed)) + len(unit_set.rows)
    count = len(unit_set.lengths)
    every = Sums(members, unit_set.repeats, unit_set.lengths, unit_set.latency_us, np.ones(count), np.arange(count))
    is_other = (unit_set.summed_fold != fold) & np.isfinite(unit_set.latency_us)
    checked = unit_set.summed_checked
    taught, chosen = (every.of(np.flatnonzero(is_other & side)) for side in (~checked, checked))
    return taught, chosen if len(chosen) else taught


def read_fits(planned: Sequence[PlannedFit], unit_set: UnitSet) -> dict[str, Predicted]:
    """The predictions of saved networks, each for what it has not seen."""
    summed_fold = np.repeat(unit_set.summed_fold, unit_set.lengths)
    by_network: dict[str, Predicted] = {}
    for fit in planned:
        predicted = by_network.setdefault(
            fit.name,
            Predicted(
                np.zeros(len(unit_set.rows)), np.full((len(unit_set.rows), MOST), -1), np.zeros(len(unit_set.summed))
            ),
        )
        arrays, _ = read_predictions(fit.file)
        in_fold = unit_set.fold == fit.fold
        predicted.time_us[in_fold] = arrays["time_us"]
        predicted.likeliest[in_fold, : arrays["likeliest"].shape[1]] = arrays["likeliest"]
        predicted.summed_us[summed_fold == fit.fold] = arrays["summed_us"]
    return by_network


def places_of(unit_set: UnitSet, samples: Sequence[Sample]) -> list[int]:
    """The positions of the summed workloads among all samples."""
    known = {sample.workload_id: place for place, sample in enumerate(samples)}
    for name, length in zip(unit_set.ids.tolist(), unit_set.lengths.tolist(), strict=True):
        if name not in known or len(samples[known[name]].units) != length:
            raise DataError(f"The workload {name} has changed since its units were saved: delete lilou-units-*.")
    return [known[name] for name in unit_set.ids.tolist()]


def unit_network_us(samples: Sequence[Sample], device: str, cache: Path) -> Values | None:
    """Held-out predictions of foretell's networks for the units of all samples; None where none are cached."""
    rows = UnitRows.of(samples)
    for file in sorted(cache.glob(f"networks-{device}-*/{_NETWORKS}.npz"), key=lambda file: -file.stat().st_mtime):
        folds = folds_of(groups_of(samples), Settings())
        (fit,) = cross_fits(samples, {_NETWORKS: folds}, Settings(), {_NETWORKS: file}).values()
        # networks of another state of the data have another number of rows
        if len(fit.predictions.log_ratio) == len(rows.counts):
            return np.asarray(np.exp(fit.predictions.log_ratio) * rows.bound_us)
    return None


def by_kernel_us(labels: KernelLabels, samples: Sequence[Sample], log: Log = lambda _: None) -> Values:
    """Predictions of a forest for each kernel for all units of samples, each fitted to the other folds."""
    rows, folds = UnitRows.of(samples), _folds(samples)
    is_used = inference_units(labels)
    predicted_us = np.zeros(len(rows.counts))
    for fold in range(FOLDS):
        log(f"a forest for each kernel, fold {fold + 1} of {FOLDS}")
        training, held_out = is_used & (labels.fold != fold), folds[rows.owner] == fold
        forests = KernelRegressors.fit(labels.features[training], labels.time_us[training] / labels.counts[training])
        predicted_us[held_out] = forests.predict(rows.features[held_out])
    return predicted_us


def linear_ms(samples: Sequence[Sample]) -> dict[str, Values]:
    """Predictions of least squares on FLOPs and parameters, fitted to the other folds; none where those are few."""
    folds, predicted_ms = _folds(samples), np.full(len(samples), np.nan)
    for fold in np.unique(folds).tolist():
        held_out = np.flatnonzero(folds == fold)
        fitted = Linear.fit([samples[place] for place in np.flatnonzero(folds != fold).tolist()])
        predicted_ms[held_out] = fitted.predict([samples[place] for place in held_out.tolist()]).get(
            "latency_ms", np.nan
        )
    return {LINEAR: predicted_ms} if np.isfinite(predicted_ms).all() else {}


def _folds(samples: Sequence[Sample]) -> NDArray[np.int64]:
    return np.array([fold_of(sample.spec) for sample in samples], np.int64)


def latency_tables(
    samples: Sequence[Sample], unit_us: Mapping[str, Values], whole_ms: Mapping[str, Values] | None = None
) -> list[Comparison]:
    """Tables: traced units, whole workloads as the sum of their units, and these by family.

    ``whole_ms`` are predictions for whole workloads, by predictors that do not know units.
    """
    rows = UnitRows.of(samples)
    traced = rows.is_traced
    counts, truth_us = rows.counts[traced], rows.traced_us[traced]
    units: dict[str, dict[str, Cell]] = {}
    for name, times_us in unit_us.items():
        error_us = np.abs(times_us[traced] - truth_us)
        by_unit = float(error_us / truth_us @ counts / counts.sum())
        units[name] = {"mape": by_unit, "by time": float(error_us @ counts / (truth_us @ counts))}
    comparisons = []
    if traced.any():
        comparisons.append(_table(f"Sub-graphs: {int(counts.sum()):,} traced units", units, "predictor"))
    timed = np.flatnonzero(rows.is_replayed)
    latency_ms = rows.latency_us[timed] / KILO
    predicted_ms = {name: rows.sums(times_us)[timed] / KILO for name, times_us in unit_us.items()}
    by_units = list(predicted_ms)
    others = {**(whole_ms or {}), ROOFLINE: np.array([sample.roofline_ms for sample in samples])}
    predicted_ms |= {name: latencies[timed] for name, latencies in others.items()}
    by_workload: dict[str, dict[str, Cell]] = {}
    for name, latencies in predicted_ms.items():
        by_workload[name] = {
            key: value for key, value in asdict(accuracy(latency_ms, latencies)).items() if key != "count"
        }
        by_workload[name]["rmspe"] = float(np.sqrt(np.mean((latencies / latency_ms - 1.0) ** 2)))
    comparisons.append(_table(f"End to end: {len(timed):,} workloads of inference", by_workload, "predictor"))
    family = np.array([samples[place].family for place in timed.tolist()])
    parts = {name: family == name for name in np.unique(family).tolist()}
    by_family = {
        name: _family(latency_ms[own], {predictor: predicted_ms[predictor][own] for predictor in by_units})
        for name, own in parts.items()
    }
    first = f"{next(iter(unit_us))}: mape"
    worst = dict(sorted(by_family.items(), key=lambda row: -float(row[1][first] or 0.0)))  # type: ignore[arg-type]
    return [*comparisons, _table("End to end, by family, worst first", worst, "family")]


def _family(latency_ms: Values, predicted_ms: Mapping[str, Values]) -> dict[str, Cell]:
    errors: dict[str, Cell] = {
        f"{name}: mape": float(np.abs(latencies / latency_ms - 1.0).mean()) for name, latencies in predicted_ms.items()
    }
    return {"count": len(latency_ms), **errors}


def part_tables(unit_set: UnitSet, predictions: Mapping[str, Predicted]) -> list[Comparison]:
    """Errors of traced units of models by the kind of the operator, and by how long they take."""
    fitted = np.all([(predicted.time_us > 0) for predicted in predictions.values()], axis=0)
    judged = np.flatnonzero(~unit_set.bench & fitted)
    kinds = unit_set.shapes[unit_set.shape[judged], COLUMNS.index("kind")].astype(np.int64)
    truth_us, counts = unit_set.time_us[judged], unit_set.counts[judged]
    by_kind = {name: kinds == number for number, name in enumerate(KINDS)}
    by_time = {f"{low:g} – {high:g} µs": (truth_us >= low) & (truth_us < high) for low, high in pairwise(_TIMES_US)}

    def errors(own: Flags) -> dict[str, Cell]:
        weight, time = counts[own] / counts[own].sum(), counts * truth_us
        cells: dict[str, Cell] = {"count": int(counts[own].sum()), "share": float(time[own].sum() / time.sum())}
        for name, predicted in predictions.items():
            off = np.abs(predicted.time_us[judged][own] / truth_us[own] - 1.0)
            cells[f"{name}: mape"] = float(off @ weight)
        return cells

    titles = ("Sub-graphs by kind of operator", "Sub-graphs by how long they take")
    rows = [{name: errors(own) for name, own in parts.items() if own.any()} for parts in (by_kind, by_time)]
    return [_table(title, found, "") for title, found in zip(titles, rows, strict=True)]


def class_table(
    unit_set: UnitSet, predictions: Mapping[str, Predicted], unit_network: Mapping[str, Mapping[str, Cell]]
) -> Comparison:
    """Shares of units whose kernel is predicted correctly; ``unit_network`` are rows for the same units."""
    is_judged = ~unit_set.bench
    # a network that tells no kernel, or was not fitted to a fold, has −1 there
    told = {name: predicted.likeliest for name, predicted in predictions.items() if (predicted.likeliest >= 0).any()}
    rows: dict[str, Mapping[str, Cell]] = {
        name: _class_scores(unit_set, likeliest, is_judged & (likeliest >= 0).any(axis=1))
        for name, likeliest in told.items()
    }
    units, classes = int(unit_set.counts[is_judged].sum()), len(np.unique(unit_set.label[is_judged]))
    title = f"Kernels: {units:,} units of inference, {classes} classes"
    return Comparison(title, {**rows, **unit_network}, ranked=False, shares=frozenset(_CLASSES))


def _class_scores(unit_set: UnitSet, likeliest: NDArray[np.int64], is_judged: Flags) -> dict[str, Cell]:
    right = likeliest[is_judged] == unit_set.label[is_judged][:, None]
    weights = unit_set.counts[is_judged], unit_set.counts[is_judged] * unit_set.time_us[is_judged]
    shares = [float(flags @ weight / weight.sum()) for weight in weights for flags in (right[:, 0], right.any(axis=1))]
    return dict(zip(_CLASSES, shares, strict=True))


def our_classes(store: Path, device: str, cache: Path, log: Log) -> dict[str, dict[str, Cell]]:
    """The same shares for foretell's classifier and its baseline; nothing where its folds are not cached."""
    files = kernel_classes.fold_files(store, device, cache, KERNEL_FITS)
    if not all(file.exists() for file in files):
        log(f"not compared with {kernel_classes.NETWORK}: not cached in {cache}; run foretell evaluate kernel-classes")
        return {}
    labels = read_labels(store, device, cache, log)
    is_judged = ~labels.bench & ~labels.training
    predictions = kernel_classes.judge(labels, device, files, log=log)
    return {name: kernel_classes.scores(labels, predicted, is_judged) for name, predicted in predictions.items()}


def _table(title: str, rows: Mapping[str, Mapping[str, Cell]], head: str) -> Comparison:
    return Comparison(title, rows, ranked=head == "predictor", shares=_ERRORS, head=head)


def evaluate(
    store: Path, device: str, cache: Path, *, only_networks: bool = False, fit_seconds: float | None = None,
    processes: int = 1, fits: Mapping[str, SubgraphFit] = FITS, log: Log = lambda _: None,
) -> list[Comparison]:  # fmt: skip
    """Held-out tables; none where only networks are fitted."""
    device = find_device(device).id
    prepared = prepare_units(store, device, cache, log)
    planned = plan_folds(prepared, fits, FIT_VERSION, FOLDS)
    if only_networks or not any(fit.file.exists() for fit in planned):
        fit_folds(planned, fit_fold, prepared, fit_seconds, processes, log)
    if only_networks:
        return []
    saved, planned = [fit for fit in planned if fit.file.exists()], complete(planned, log)
    unit_set, all_samples = load_units(prepared), read_samples(store, device, cache, log)
    places = places_of(unit_set, all_samples)
    predictions, samples = read_fits(planned, unit_set), [all_samples[place] for place in places]
    unit_us = {name: predicted.summed_us for name, predicted in predictions.items()}
    unit_us[BY_KERNEL] = by_kernel_us(read_labels(store, device, cache, log), samples, log)
    network_us = unit_network_us(all_samples, device, cache)
    if network_us is None:
        log(f"not compared with {OURS}: not cached in {cache}; run foretell train")
    else:
        rows = UnitRows.of(all_samples)
        unit_us[OURS] = np.concatenate([network_us[rows.part(place)] for place in places])
    tables = latency_tables(samples, unit_us, linear_ms(samples))
    if len(saved) > len(planned):
        tables += common_folds(samples, unit_us, read_fits(saved, unit_set), saved)
    every = read_fits(saved, unit_set)
    classes = class_table(unit_set, every, our_classes(store, device, cache, log))
    return [*tables, *part_tables(unit_set, every), classes, fit_table(saved)]


def common_folds(
    samples: Sequence[Sample], unit_us: Mapping[str, Values], predictions: Mapping[str, Predicted],
    saved: Sequence[PlannedFit],
) -> list[Comparison]:  # fmt: skip
    """The first tables once more, on the folds that all networks have; of some networks not all are fitted."""
    folds = set.intersection(*({fit.fold for fit in saved if fit.name == name} for name in predictions))
    chosen = [place for place, sample in enumerate(samples) if fold_of(sample.spec) in folds]
    rows = UnitRows.of(samples)
    every = {**unit_us, **{name: predicted.summed_us for name, predicted in predictions.items()}}
    own = {name: np.concatenate([times_us[rows.part(place)] for place in chosen]) for name, times_us in every.items()}
    words = ", ".join(str(fold + 1) for fold in sorted(folds))
    return [
        replace(table, title=f"Of fold {words}: {table.title}")
        for table in latency_tables([samples[place] for place in chosen], own)[:2]
    ]


def write_report(comparisons: Sequence[Comparison], folder: Path) -> Path:
    """Write the tables into LILOU's page."""
    has_ours = any(OURS in table.rows for table in comparisons)
    text = (
        "*lilou* is the network as published: three GAT layers of 256 channels, operators and sizes of nodes, the "
        "device beside them, latency and kernel at once. A sub-graph is a unit of eager mode: each is one node. "
        f"*{BEST}* is ours: three GAT layers of 128 channels whose outputs are all kept, without GraphSizeNorm; it "
        "learns the latency alone, as a ratio to the unit's bound, knows all that foretell knows of a unit, and learns "
        "the latency of whole workloads beside single units. A workload's architecture, and every unit of it, is in "
        "one fold; `last_tenth` is by how much the last tenth of the epochs improves the validation error. "
        + (f"*{OURS}*: foretell's networks, as a sum of units. " if has_ours else "")
        + "foretell's served predictor, which adds trees on the whole workload, and BRP-NAS are in "
        "[evaluation.md](evaluation.md). "
        f"*{BY_KERNEL}* is nn-Meter's way: a random forest for each operator and type on sizes and FLOPs, summed; its "
        "rules join nothing in eager mode. Units of benches of single operators are training data only."
    )
    return write_section(folder, TITLE, text, comparisons)
