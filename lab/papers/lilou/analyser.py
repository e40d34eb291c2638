"""workflows: LILOU's sub-graph analyser, judged beside foretell's networks on architectures that it has not seen.

Sub-graphs are units of eager mode. Each of them is one node, so that GAT layers are linear ones here; and all were
traced on the whole device, so that what the network reads of the device teaches it nothing about slices.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from foretell.devices import find_device
from foretell.errors import DataError
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
from lab.papers.lilou.folds import (
    Arrays,
    Asked,
    Say,
    asked_folds,
    complete,
    facts_of,
    fit_folds,
    fit_table,
    parts_of,
    read_told,
)
from lab.papers.lilou.report import write_section
from lab.papers.lilou.sets import Flags, UnitSet, inference_units, load_units, prepare_units
from lab.papers.lilou.subgraph_network import MOST, PUBLISHED, Measured, SubgraphFit, Subgraphs, fit_subgraph_network

TITLE = "How long sub-graphs take, and by which kernel: the analyser"
LILOU, OURS, ROOFLINE = "lilou", "unit-network, sum of units", "roofline"
BY_KERNEL, LINEAR = "rules and a forest for each kernel", "linear regression"
FITS = {LILOU: PUBLISHED}
FIT_VERSION = 1  # raise it when the network, its features or its training change
_NETWORKS = "all-0"  # the networks by fold over all data, as ``foretell train`` keeps them
_CLASSES = ("at once", "among five", "at once, by time", "among five, by time")
_ERRORS = PERCENT | {"mape", "by time", "rmspe", *(f"{name}: mape" for name in (LILOU, BY_KERNEL, OURS))}

Values = NDArray[np.float64]


@dataclass(frozen=True)
class Predicted:
    """What LILOU tells: of every traced unit its time and likeliest kernels, and of all units to be summed the time."""

    time_us: Values
    likeliest: NDArray[np.int64]
    summed_us: Values


def fit_fold(
    prepared: Path, settings: SubgraphFit, fold: int, seconds: float | None, say: Say
) -> tuple[Arrays, dict[str, Any]]:
    """What a network that has not seen a fold tells of its units."""
    kept = load_units(prepared)
    taught, checked, held = parts_of(kept.fold, kept.checked, fold)
    subgraphs = Subgraphs.of_nodes(kept.nodes.of(kept.rows), kept.device)
    measured = Measured(kept.time_us, kept.label, kept.counts, len(kept.classes))
    network, history = fit_subgraph_network(
        subgraphs, measured, taught, checked, settings, default_device(), seconds, say
    )
    found: Arrays = {"time_us": np.zeros(0), "likeliest": np.zeros((0, MOST), np.int16), "summed_us": np.zeros(0)}
    if len(held):
        own = Subgraphs.of_nodes(kept.nodes.of(kept.rows[held]), kept.device)
        found["time_us"], found["likeliest"] = network.tell(own)
    rows = kept.summed[np.repeat(kept.summed_fold == fold, kept.lengths)]
    if len(rows):
        found["summed_us"], _ = network.tell(Subgraphs.of_nodes(kept.nodes.of(rows), kept.device))
    return {n: v.astype(np.float32) if v.dtype == np.float64 else v for n, v in found.items()}, facts_of(history)


def read_fits(asked: Sequence[Asked], kept: UnitSet) -> dict[str, Predicted]:
    """What the kept networks tell, each of what it has not seen."""
    summed_fold = np.repeat(kept.summed_fold, kept.lengths)
    found: dict[str, Predicted] = {}
    for each in asked:
        told = found.setdefault(
            each.name,
            Predicted(np.zeros(len(kept.rows)), np.full((len(kept.rows), MOST), -1), np.zeros(len(kept.summed))),
        )
        arrays, _ = read_told(each.file)
        held = kept.fold == each.fold
        told.time_us[held] = arrays["time_us"]
        told.likeliest[held, : arrays["likeliest"].shape[1]] = arrays["likeliest"]
        told.summed_us[summed_fold == each.fold] = arrays["summed_us"]
    return found


def places_of(kept: UnitSet, samples: Sequence[Sample]) -> list[int]:
    """Where the workloads that were summed are among all samples."""
    known = {sample.workload_id: place for place, sample in enumerate(samples)}
    for name, length in zip(kept.ids.tolist(), kept.lengths.tolist(), strict=True):
        if name not in known or len(samples[known[name]].units) != length:
            raise DataError(f"The workload {name} is no longer as it was when units were kept: delete lilou-units-*.")
    return [known[name] for name in kept.ids.tolist()]


def ours_us(samples: Sequence[Sample], device: str, cache: Path) -> Values | None:
    """What foretell's networks tell of the units of all samples, each of architectures it has not seen; if kept."""
    rows = UnitRows.of(samples)
    for file in sorted(cache.glob(f"networks-{device}-*/{_NETWORKS}.npz"), key=lambda file: -file.stat().st_mtime):
        folds = folds_of(groups_of(samples), Settings())
        (fit,) = cross_fits(samples, {_NETWORKS: folds}, Settings(), {_NETWORKS: file}).values()
        if len(fit.predictions.log_ratio) == len(rows.counts):
            return np.asarray(np.exp(fit.predictions.log_ratio) * rows.bound_us)
    return None


def by_kernel_us(labels: KernelLabels, samples: Sequence[Sample], say: Say = lambda _: None) -> Values:
    """What a forest for each kernel tells of all units of samples, each fitted to the units of other folds."""
    rows, folds = UnitRows.of(samples), _folds(samples)
    use = inference_units(labels)
    told = np.zeros(len(rows.counts))
    for fold in range(FOLDS):
        say(f"a forest for each kernel, fold {fold + 1} of {FOLDS}")
        taught, held = use & (labels.fold != fold), folds[rows.owner] == fold
        forests = KernelRegressors.fit(labels.features[taught], labels.time_us[taught] / labels.counts[taught])
        told[held] = forests.predict(rows.features[held])
    return told


def linear_ms(samples: Sequence[Sample]) -> dict[str, Values]:
    """What least squares on FLOPs and parameters tell, fitted to other folds; nothing where those are few."""
    folds, told = _folds(samples), np.full(len(samples), np.nan)
    for fold in np.unique(folds).tolist():
        held = np.flatnonzero(folds == fold)
        fitted = Linear.fit([samples[place] for place in np.flatnonzero(folds != fold).tolist()])
        told[held] = fitted.predict([samples[place] for place in held.tolist()]).get("latency_ms", np.nan)
    return {LINEAR: told} if np.isfinite(told).all() else {}


def _folds(samples: Sequence[Sample]) -> NDArray[np.int64]:
    return np.array([fold_of(sample.spec) for sample in samples], np.int64)


def latency_tables(
    samples: Sequence[Sample], unit_us: Mapping[str, Values], whole_ms: Mapping[str, Values] | None = None
) -> list[Comparison]:
    """Units that were traced, whole workloads as the sum of their units, and those by family.

    ``whole_ms`` is told of workloads by what knows no units.
    """
    rows = UnitRows.of(samples)
    traced = rows.is_traced
    counts, truth_us = rows.counts[traced], rows.traced_us[traced]
    units: dict[str, dict[str, Cell]] = {}
    for name, times_us in unit_us.items():
        off = np.abs(times_us[traced] - truth_us)
        by_unit = float(off / truth_us @ counts / counts.sum())
        units[name] = {"mape": by_unit, "by time": float(off @ counts / (truth_us @ counts))}
    found = []
    if traced.any():
        found.append(_table(f"Sub-graphs: {int(counts.sum()):,} traced units", units, "predictor"))
    timed = np.flatnonzero(rows.whole)
    latency_ms = rows.latency_us[timed] / KILO
    told_ms = {name: rows.sums(times_us)[timed] / KILO for name, times_us in unit_us.items()}
    by_units = list(told_ms)
    others = {**(whole_ms or {}), ROOFLINE: np.array([sample.roofline_ms for sample in samples])}
    told_ms |= {name: each[timed] for name, each in others.items()}
    whole: dict[str, dict[str, Cell]] = {}
    for name, each in told_ms.items():
        whole[name] = {key: value for key, value in asdict(accuracy(latency_ms, each)).items() if key != "count"}
        whole[name]["rmspe"] = float(np.sqrt(np.mean((each / latency_ms - 1.0) ** 2)))
    found.append(_table(f"End to end: {len(timed):,} workloads of inference", whole, "predictor"))
    family = np.array([samples[place].family for place in timed.tolist()])
    parts = {name: family == name for name in np.unique(family).tolist()}
    by_family = {
        name: _family(latency_ms[own], {who: told_ms[who][own] for who in by_units}) for name, own in parts.items()
    }
    worst = dict(sorted(by_family.items(), key=lambda row: -float(row[1][f"{LILOU}: mape"] or 0.0)))  # type: ignore[arg-type]
    return [*found, _table("End to end, by family, worst first", worst, "family")]


def _family(latency_ms: Values, told_ms: Mapping[str, Values]) -> dict[str, Cell]:
    errors: dict[str, Cell] = {
        f"{name}: mape": float(np.abs(each / latency_ms - 1.0).mean()) for name, each in told_ms.items()
    }
    return {"count": len(latency_ms), **errors}


def class_table(kept: UnitSet, told: Mapping[str, Predicted], ours: Mapping[str, Mapping[str, Cell]]) -> Comparison:
    """Shares of units whose kernel is told rightly; ``ours`` are rows of the same units."""
    use = ~kept.bench
    rows: dict[str, Mapping[str, Cell]] = {
        name: _class_scores(kept, each.likeliest, use) for name, each in told.items()
    }
    title = f"Kernels: {int(kept.counts[use].sum()):,} units of inference, {len(np.unique(kept.label[use]))} classes"
    return Comparison(title, {**rows, **ours}, ranked=False, shares=frozenset(_CLASSES))


def _class_scores(kept: UnitSet, likeliest: NDArray[np.int64], use: Flags) -> dict[str, Cell]:
    right = likeliest[use] == kept.label[use][:, None]
    weights = kept.counts[use], kept.counts[use] * kept.time_us[use]
    found = [float(flags @ weight / weight.sum()) for weight in weights for flags in (right[:, 0], right.any(axis=1))]
    return dict(zip(_CLASSES, found, strict=True))


def our_classes(store: Path, device: str, cache: Path, say: Say) -> dict[str, dict[str, Cell]]:
    """The same shares of foretell's classifier and its baseline; nothing where its folds are not kept."""
    files = kernel_classes.fold_files(store, device, cache, KERNEL_FITS)
    if not all(file.exists() for file in files):
        say(f"not compared with {kernel_classes.NETWORK}: not kept in {cache}; foretell evaluate kernel-classes")
        return {}
    labels = read_labels(store, device, cache, say)
    use = ~labels.bench & ~labels.training
    told = kernel_classes.judge(labels, device, files, say=say)
    return {name: kernel_classes.scores(labels, each, use) for name, each in told.items()}


def _table(title: str, rows: Mapping[str, Mapping[str, Cell]], head: str) -> Comparison:
    return Comparison(title, rows, ranked=head == "predictor", shares=_ERRORS, head=head)


def evaluate(
    store: Path, device: str, cache: Path, *, only_networks: bool = False, fit_seconds: float | None = None,
    processes: int = 1, fits: Mapping[str, SubgraphFit] = FITS, say: Say = lambda _: None,
) -> list[Comparison]:  # fmt: skip
    """Held-out tables; none where only networks are fitted."""
    device = find_device(device).id
    prepared = prepare_units(store, device, cache, say)
    asked = asked_folds(prepared, fits, FIT_VERSION, FOLDS)
    if only_networks or not any(each.file.exists() for each in asked):
        fit_folds(asked, fit_fold, prepared, fit_seconds, processes, say)
    if only_networks:
        return []
    asked = complete(asked, say)
    kept, everything = load_units(prepared), read_samples(store, device, cache, say)
    places = places_of(kept, everything)
    told, samples = read_fits(asked, kept), [everything[place] for place in places]
    unit_us = {name: each.summed_us for name, each in told.items()}
    unit_us[BY_KERNEL] = by_kernel_us(read_labels(store, device, cache, say), samples, say)
    ours = ours_us(everything, device, cache)
    if ours is None:
        say(f"not compared with {OURS}: not kept in {cache}; foretell train")
    else:
        rows = UnitRows.of(everything)
        unit_us[OURS] = np.concatenate([ours[rows.part(place)] for place in places])
    classes = class_table(kept, told, our_classes(store, device, cache, say))
    return [*latency_tables(samples, unit_us, linear_ms(samples)), classes, fit_table(asked)]


def write_report(found: Sequence[Comparison], folder: Path) -> Path:
    """The tables in LILOU's page."""
    text = (
        "*lilou* is the network as published: three GAT layers of 256 channels, operators and sizes of nodes, the "
        "device beside them, latency and kernel at once. A sub-graph is a unit of eager mode: each is one node. "
        f"*{OURS}*: foretell's networks, as far as they sum units; what answers adds trees on the whole, see "
        "[evaluation.md](evaluation.md), which has BRP-NAS too. "
        f"*{BY_KERNEL}* is nn-Meter's way: a random forest for each operator and type on sizes and FLOPs, summed; its "
        "rules join nothing in eager mode. Units of benches of single operators teach, but do not judge."
    )
    return write_section(folder, TITLE, text, found)
