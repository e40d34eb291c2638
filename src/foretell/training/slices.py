"""Training: slices: fit a model of slices to measured ones, and judge it on architectures that it has not seen.

The latency on a slice is that of the whole device times a ratio. First the ratio is judged alone, with the measured
latency of the whole device. Then both are judged together: the whole device is predicted by networks that have not seen
the architecture either. ``foretell train`` caches these networks; where there are none, the shipped predictor is used,
and the report says so.
"""

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from foretell.datasets.parquet_files import find_files, read_columns
from foretell.devices import Slice, find_device, parse_slice
from foretell.errors import DataError, ForetellError
from foretell.features.pooled import pool
from foretell.files import write_whole
from foretell.predictors import Predictor, best_predictor, find_predictor
from foretell.predictors.fitted_files import write_fitted
from foretell.predictors.sample import Sample
from foretell.predictors.slices.fit import MeasuredSlices, fit_floor_w, fit_slices
from foretell.predictors.slices.model import METHODS, SliceModel, file_name, write
from foretell.predictors.unit.fit_model import Settings, conformal_quantile, folds_of, predict_samples
from foretell.predictors.unit.predictor import shipped as shipped_units
from foretell.predictors.unit.rows import UnitRows
from foretell.records import Target
from foretell.training.cross_fits import held_out_unit_us
from foretell.training.examples.graphs import GraphKey, read_graphs
from foretell.training.examples.samples import read_samples
from foretell.training.examples.workloads import measured_rows, workload_of
from foretell.training.fusion import FOLDS, fold_of
from foretell.training.judging.metrics import accuracy, mape
from foretell.training.judging.protocol import groups_of
from foretell.training.judging.table import Cell, Comparison, page
from foretell.units import KILO

SLICES, BOUNDS, EVENLY, WHOLE_DEVICE = "slices", "bounds of the slice", "by share of SMs", "whole device"
HELD_OUT = "by networks that have not seen the architecture"
SEEN = "by the shipped predictor, which has seen these architectures"
_COLUMNS = ("workload_id", "spec", "method", "percent", "sm_count", "latency_ms", "power_w", "status")
_SHARES = frozenset(
    (
        "ratio",
        "mape",
        "power",
        "share of the whole",
        f"{WHOLE_DEVICE}: power",
        *(f"{name}: mape" for name in (BOUNDS, EVENLY, WHOLE_DEVICE)),
    )
)

Log = Callable[[str], None]
Values = NDArray[np.float64]


@dataclass(frozen=True)
class WholeDevice:
    """Predictions for whole devices: the times of each sample's units, its latency, and what predicted them."""

    unit_us: Sequence[Values]
    latency_ms: Values
    source: str


@dataclass(frozen=True)
class SliceSet:
    """Measured slices with their samples, and the predictions for the whole device."""

    device: str
    samples: Sequence[Sample]
    measured: MeasuredSlices
    percent: Values
    whole_device: WholeDevice

    @property
    def measured_ms(self) -> Values:
        """For each row the measured latency on the whole device."""
        return np.array([sample.truth["latency_ms"] for sample in self.samples])[self.measured.sample]

    @property
    def predicted_ms(self) -> Values:
        """For each row the predicted latency on the whole device."""
        return np.asarray(self.whole_device.latency_ms[self.measured.sample])

    @property
    def slices(self) -> list[Slice]:
        """For each row its slice."""
        device, measured = find_device(self.device), self.measured
        rows = list(zip(measured.green.tolist(), measured.sms.astype(int).tolist(), strict=True))
        known = {
            row: replace(parse_slice(f"sms:{row[1]}", device), kind="sms" if row[0] else "mps") for row in set(rows)
        }
        return [known[row] for row in rows]

    def fit(self, rows: NDArray[np.intp]) -> SliceModel:
        """A model of slices fitted to these rows."""
        sms = find_device(self.device).sms
        return fit_slices(self.samples, self.whole_device.unit_us, self.measured.of(rows), self.device, sms)

    def ratios(self, model: SliceModel, rows: NDArray[np.intp]) -> Values:
        """Latency on the slice over latency on the whole device, as a model predicts it."""
        sms, slices, ratios = find_device(self.device).sms, self.slices, np.zeros(len(rows))
        for place, row in enumerate(rows.tolist()):
            number = int(self.measured.sample[row])
            units, unit_us = self.samples[number].units, self.whole_device.unit_us[number]
            part_us = model.unit_times_us(units.features, unit_us, slices[row], sms)
            ratios[place] = float(part_us @ units.counts) / float(unit_us @ units.counts)
        return ratios


def read_slices(store: Path, device: str, cache: Path, log: Log = lambda _: None) -> SliceSet:
    """The measured slices below ``store`` of workloads that were measured on the whole device too."""
    device = find_device(device).id
    measured = _measured_slices(store)
    if not measured:
        raise DataError(
            f"No slice was measured below {store}; measure some with a plan of the kind slices: foretell collect."
        )
    all_samples = read_samples(store, device, cache, log)
    # slices are replayed CUDA graphs: only a replayed whole device can be compared with them
    known = {sample.workload_id: place for place, sample in enumerate(all_samples) if sample.captured}
    rows = [row for row in measured if row["workload_id"] in known]
    if not rows:
        raise DataError(f"No workload with slices was measured on the whole {device} below {store}; collect it too.")
    chosen = sorted({known[row["workload_id"]] for row in rows})
    number = {all_samples[place].workload_id: position for position, place in enumerate(chosen)}
    return SliceSet(
        device,
        [all_samples[place] for place in chosen],
        MeasuredSlices(
            np.array([number[row["workload_id"]] for row in rows], np.intp),
            np.array([row["sm_count"] for row in rows], np.float64),
            np.array([row["method"] != METHODS["mps"] for row in rows], bool),
            np.array([row["latency_ms"] for row in rows], np.float64),
        ),
        np.array([row["percent"] for row in rows], np.float64),
        _predict_whole_device(all_samples, chosen, device, cache),
    )


@dataclass(frozen=True)
class MeasuredPower:
    """The power on slices, and on all SMs of the same workload; ``scale`` is how much slower the slice is."""

    spec: tuple[str, ...]
    percent: Values
    scale: Values
    power_w: Values
    whole_w: Values

    @classmethod
    def read(cls, store: Path, device: str) -> "MeasuredPower":
        """All slices with a power whose workload was measured on all SMs in a green context too."""
        rows = _measured_slices(store, "power_w")
        sms = find_device(device).sms
        whole = {row["workload_id"]: row for row in rows if row["sm_count"] == sms and row["method"] != METHODS["mps"]}
        rows = [row for row in rows if row["workload_id"] in whole and row is not whole[row["workload_id"]]]
        pairs = [(row, whole[row["workload_id"]]) for row in rows]
        return cls(
            tuple(row["spec"] for row in rows),
            np.array([row["percent"] for row in rows], np.float64),
            np.array([row["latency_ms"] / full["latency_ms"] for row, full in pairs], np.float64),
            np.array([row["power_w"] for row in rows], np.float64),
            np.array([full["power_w"] for _, full in pairs], np.float64),
        )

    def of(self, rows: NDArray[np.bool_]) -> "MeasuredPower":
        """Some of the rows."""
        spec = tuple(spec for spec, used in zip(self.spec, rows.tolist(), strict=True) if used)
        return MeasuredPower(spec, *(array[rows] for array in (self.percent, self.scale, self.power_w, self.whole_w)))

    def fit_floor_w(self) -> float:
        """The floor of the device; 0 where no power was measured."""
        return fit_floor_w(self.whole_w, self.power_w, self.scale) if len(self.spec) else 0.0

    def predicted_w(self, floor_w: float) -> Values:
        """The power on each slice, from the measured power and slowdown of the whole device."""
        return np.where(
            self.whole_w <= floor_w, self.whole_w, floor_w + (self.whole_w - floor_w) / np.maximum(self.scale, 1.0)
        )

    def judge(self) -> Comparison | None:
        """Held-out errors by percentage; the floor is fitted to other architectures. None without measurements."""
        if not self.spec:
            return None
        fold = np.array([fold_of(spec) for spec in self.spec], np.intp)
        predicted_w = np.zeros(len(fold))
        for number in np.unique(fold).tolist():
            training = fold != number
            if not training.any():
                raise DataError("All slices with a power belong to one fold; measure more architectures.")
            predicted_w[~training] = self.of(~training).predicted_w(self.of(training).fit_floor_w())

        def figures(rows: NDArray[np.bool_]) -> dict[str, Cell]:
            power_w, whole_w = self.power_w[rows], self.whole_w[rows]
            return {
                "count": int(rows.sum()),
                "power": mape(power_w, predicted_w[rows]),
                f"{WHOLE_DEVICE}: power": mape(power_w, whole_w),
                "share of the whole": float(np.median(power_w / whole_w)),
            }

        rows = {f"{value:g}": figures(self.percent == value) for value in np.unique(self.percent)}
        rows["all"] = figures(np.ones(len(fold), bool))
        title = f"Power by percentage of the SMs, {len(set(self.spec))} models; slowdown as measured"
        return Comparison(title, rows, ranked=False, shares=_SHARES, head="percent")


def _measured_slices(store: Path, quantity: str = "latency_ms") -> list[Mapping[str, Any]]:
    """The first successful measurement of a quantity on every slice."""
    rows: dict[tuple[str, str, int], Mapping[str, Any]] = {}
    for file in find_files(store):
        if file.table == "slices":
            for row in read_columns(file, _COLUMNS).to_pylist():
                if row["status"] == "ok" and row["method"] in METHODS.values() and row.get(quantity) is not None:
                    # the first measurement of a slice counts: a later campaign must not change old results
                    rows.setdefault((row["workload_id"], row["method"], row["sm_count"]), row)
    return list(rows.values())


def _predict_whole_device(
    all_samples: Sequence[Sample], chosen: Sequence[int], device: str, cache: Path
) -> WholeDevice:
    """Held-out predictions of cached networks; without any, those of the shipped predictor."""
    rows = UnitRows.of(all_samples)
    folds = folds_of(groups_of(all_samples), Settings())
    unit_us = held_out_unit_us(rows, device, cache)
    if unit_us is not None:
        latency_ms = _corrected_ms(all_samples, rows, unit_us, folds)
        return WholeDevice([unit_us[rows.part(place)] for place in chosen], latency_ms[chosen], HELD_OUT)
    model = shipped_units(device, best_predictor(device))
    samples = [all_samples[place] for place in chosen]
    times = [model.times_us(sample.units) for sample in samples]
    return WholeDevice(times, predict_samples(model, samples)["latency_ms"], SEEN)


def _corrected_ms(samples: Sequence[Sample], rows: UnitRows, unit_us: Values, folds: NDArray[np.intp]) -> Values:
    """The sums of units, corrected by trees that have not seen the fold."""
    sums_us, settings = rows.sums(unit_us), Settings()
    pooled = np.stack([pool(sample.units, unit_us[rows.part(i)], sample.setting) for i, sample in enumerate(samples)])
    target = np.log(np.where(rows.is_replayed, rows.latency_us, 1.0) / sums_us)
    log_correction = np.zeros(len(samples))
    for fold in np.unique(folds):
        training, held_out = rows.is_replayed & (folds != fold), folds == fold
        if training.any():
            log_correction[held_out] = (
                settings.seeded(settings.whole).fit(pooled[training], target[training]).predict(pooled[held_out])
            )
    return np.asarray(sums_us * np.exp(log_correction) / KILO)


def judge(slice_set: SliceSet, log: Log = lambda _: None) -> Values:
    """The ratio of every row, predicted by a model that has not seen its architecture."""
    fold = np.array([fold_of(sample.spec) for sample in slice_set.samples], np.intp)[slice_set.measured.sample]
    ratios = np.full(len(fold), np.nan)
    for number in np.unique(fold).tolist():
        log(f"fold {number + 1} of {FOLDS}")
        training, held_out = np.flatnonzero(fold != number), np.flatnonzero(fold == number)
        if not len(training):
            raise DataError("All slices belong to one fold; measure slices of more architectures.")
        ratios[held_out] = slice_set.ratios(slice_set.fit(training), held_out)
    return ratios


def scale_bounds(slice_set: SliceSet, store: Path, predictor: Predictor, log: Log = lambda _: None) -> Values:
    """The ratio of every row as a predictor of whole devices gives it from the bounds of the slice."""
    device, ratios = find_device(slice_set.device), np.full(len(slice_set.measured), np.nan)
    rows_of_sample: defaultdict[int, list[int]] = defaultdict(list)
    for row, number in enumerate(slice_set.measured.sample.tolist()):
        rows_of_sample[number].append(row)
    rows, waiting = measured_rows(store), defaultdict[GraphKey, list[int]](list)
    for number, sample in enumerate(slice_set.samples):
        waiting[GraphKey.of(rows[sample.workload_id])].append(number)
    slices, done = slice_set.slices, 0
    for key, _, graph in read_graphs(store, list(waiting)):
        for number in waiting[key]:
            workload = workload_of(rows[slice_set.samples[number].workload_id], graph, Target(device))
            known: dict[int, float] = {}
            whole_ms = _latency_ms(predictor, workload)
            for row in rows_of_sample[number]:
                slice_ = slices[row]
                # MPS and green contexts of the same size have the same bounds
                if slice_.sms not in known:
                    target = Target(device, slice_)
                    known[slice_.sms] = _latency_ms(predictor, replace(workload, target=target)) / whole_ms
                ratios[row] = known[slice_.sms]
            done += 1
            if done % 20 == 0:
                log(f"{done} of {len(slice_set.samples)} workloads scaled by bounds")
    return ratios


def _latency_ms(predictor: Predictor, workload: Any) -> float:
    latency_ms = predictor.predict(workload).latency_ms
    return latency_ms.value if latency_ms is not None else np.nan


def compare(slice_set: SliceSet, ratios: Values, bounds: Values | None = None) -> list[Comparison]:
    """Tables: all slices, then by percentage, method and family; ``bounds`` are the ratios of `scale_bounds`."""
    measured = slice_set.measured
    # a baseline without a number for every row is left out
    others = {} if bounds is None or not np.isfinite(bounds).all() else {BOUNDS: bounds}
    others |= {EVENLY: find_device(slice_set.device).sms / measured.sms, WHOLE_DEVICE: np.ones(len(measured))}

    def figures(rows: NDArray[np.intp]) -> dict[str, Cell]:
        truth_ms, predicted_ms = measured.latency_ms[rows], slice_set.predicted_ms[rows]
        cells: dict[str, Cell] = {"count": len(rows), "ratio": mape(truth_ms, (slice_set.measured_ms * ratios)[rows])}
        cells["mape"] = mape(truth_ms, predicted_ms * ratios[rows])
        return cells | {f"{name}: mape": mape(truth_ms, predicted_ms * other[rows]) for name, other in others.items()}

    predictions = {
        name: {
            key: value
            for key, value in asdict(accuracy(measured.latency_ms, slice_set.predicted_ms * predictor_ratios)).items()
            if key != "count"
        }
        for name, predictor_ratios in {SLICES: ratios, **others}.items()
    }
    size = f"{len(measured)} slices of {len(slice_set.samples)} workloads"
    tables = [Comparison(f"{size}; the whole device predicted {slice_set.whole_device.source}", predictions)]
    for green, name in enumerate(METHODS.values()):
        own = np.flatnonzero(measured.green == bool(green))
        if len(own):
            rows = {
                f"{value:g}": figures(own[slice_set.percent[own] == value])
                for value in np.unique(slice_set.percent[own])
            }
            tables.append(_table(f"{name}, by percentage of the SMs", {**rows, "all": figures(own)}, "percent"))
    family = np.array([sample.family for sample in slice_set.samples])[measured.sample]
    rows = {name: figures(np.flatnonzero(family == name)) for name in np.unique(family).tolist()}
    worst = dict(sorted(rows.items(), key=lambda row: -float(row[1]["mape"] or 0.0)))  # type: ignore[arg-type]
    return [*tables, _table("By family, worst first", worst, "family")]


def _table(title: str, rows: Mapping[str, Mapping[str, Cell]], head: str) -> Comparison:
    return Comparison(title, rows, ranked=False, shares=_SHARES, head=head)


def evaluate(store: Path, device: str, cache: Path, log: Log = lambda _: None) -> list[Comparison]:
    """Held-out tables, with the bounds of the shipped predictor beside them where it has any."""
    slice_set = read_slices(store, device, cache, log)
    ratios = judge(slice_set, log)
    try:
        bounds: Values | None = scale_bounds(slice_set, store, find_predictor(None, find_device(device).id), log)
    # the comparison is optional: the tables come out without it
    except ForetellError as error:
        log(f"not compared with {BOUNDS}: {error}")
        bounds = None
    power = MeasuredPower.read(store, slice_set.device).judge()
    return [*compare(slice_set, ratios, bounds), *([power] if power is not None else [])]


def write_report(tables: Sequence[Comparison], folder: Path) -> Path:
    """Write the tables as Markdown."""
    text = (
        "# Latency and power on a part of a GPU\n\n"
        "Architectures held out, five folds. Remade by `foretell evaluate slices --report`.\n\n"
        "`ratio` is the error of latency on the slice over latency on the whole, with the measured latency of the "
        f"whole; for `mape` that is predicted, too. *{BOUNDS}*: the predictor of whole devices, given the peaks that "
        "the slice leaves."
    )
    write_whole(folder / "slices.md", page(text, tables))
    return folder / "slices.md"


def train(store: Path, device: str, cache: Path, out: Path, log: Log = lambda _: None) -> Path:
    """Fit a model to all slices, and write it with its held-out errors."""
    slice_set = read_slices(store, device, cache, log)
    ratios = judge(slice_set, log)
    truth_ms = slice_set.measured.latency_ms
    errors = np.abs(np.log(slice_set.measured_ms * ratios / truth_ms))
    # shares of SMs are not exactly the nominal percentages: round to tenths
    share = np.round(slice_set.measured.sms / find_device(slice_set.device).sms, 1)
    by_share = [(float(one), conformal_quantile(errors[share == one], Settings().miss)) for one in np.unique(share)]
    floor_w = MeasuredPower.read(store, slice_set.device).fit_floor_w()
    model = replace(slice_set.fit(np.arange(len(ratios))), errors=tuple(by_share), floor_w=floor_w)
    card = {
        "slices": len(ratios),
        "workloads": len(slice_set.samples),
        "held_out": {
            "ratio": mape(truth_ms, slice_set.measured_ms * ratios),
            "latency_ms": mape(truth_ms, slice_set.predicted_ms * ratios),
        },
        "whole": slice_set.whole_device.source,
    }
    return write_fitted(out, file_name(slice_set.device), write(model, card))
