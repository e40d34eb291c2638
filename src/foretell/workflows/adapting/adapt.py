"""Workflows: a predictor for a device from a few measurements of it, kept in the user's folder."""

import datetime
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from foretell.datasets.splits import architecture_of
from foretell.devices import Device
from foretell.devices.device_file import device_of
from foretell.errors import DataError, InputError
from foretell.files import write_whole
from foretell.predictors import best_predictor, find_predictor
from foretell.predictors.adapted.base import Base, base_of
from foretell.predictors.adapted.model import METRICS, AdaptedModel, Card
from foretell.predictors.adapted.predictor import probe_of, setting_of
from foretell.predictors.adapted.regression import (
    LATENCY_PARTS,
    MEMORY_PARTS,
    POWER_PARTS,
    Factors,
    Fit,
    Widths,
    fit,
)
from foretell.predictors.adapted.units import CLASSES, Values
from foretell.predictors.protocol import Predictor
from foretell.readable import Readable
from foretell.records import Estimate, Measurement
from foretell.workflows.adapting.measured import Measured, read_measured
from foretell.workflows.workload import own_predictor_path

SUFFIX = ".zip"
_PARTS = {"latency_ms": LATENCY_PARTS, "memory_mib": MEMORY_PARTS, "power_w": POWER_PARTS}
_ABSURD = 100.0  # a measurement so many times the prediction has another unit
_NINE_IN_TEN = 1.645  # standard deviations on either side
_SHOWN_SHARE = 0.03
_FEW = 8


@dataclass(frozen=True)
class ClassFactor:
    """What measurements changed for a class of units: its time over the base's, and its share of the measured time."""

    units: str
    factor: Estimate
    share: float


@dataclass(frozen=True, repr=False)
class Adaptation(Readable):
    """A predictor that was adapted to a device, and how good it is.

    Errors are medians over the measured workloads. Before, the base answers; after, an answer that was adapted to all
    other architectures. ``interval_share`` is how many of those answers' intervals hold the measured time. With fewer
    than three architectures there is no error after.
    """

    device: str
    base: str
    samples: int
    models: int
    metrics: tuple[str, ...]
    error_before: float
    error_after: float | None
    interval_share: float | None
    factor: Estimate
    classes: tuple[ClassFactor, ...]
    file: str | None
    kept: str | None
    warnings: tuple[str, ...] = ()

    def heading(self) -> str:
        """The device and how many measurements there were."""
        return f"Adapted to {self.device}: {self.samples} measurements of {self.models} models"

    def lines(self) -> Iterator[tuple[str, str]]:
        """The errors, the factors and the files."""
        yield "error before", f"{self.error_before:.1%} (median, {self.base})"
        if self.error_after is not None:
            yield "error after", f"{self.error_after:.1%} (median, each architecture left out)"
        if self.interval_share is not None:
            yield "in the interval", f"{self.interval_share:.0%}"
        yield "all units", _spelled(self.factor)
        yield from ((row.units, f"{_spelled(row.factor)}, {row.share:.0%} of the time") for row in self.classes)
        yield from ((name, path) for name, path in (("file", self.file), ("kept", self.kept)) if path)
        yield from (("warning", warning) for warning in self.warnings)

    def rows(self) -> list[dict[str, Any]]:
        """One row for each class of units."""
        return [
            {"device": self.device, "units": row.units, "factor": row.factor.value, "factor_low": row.factor.low,
             "factor_high": row.factor.high, "share": row.share}
            for row in self.classes
        ]  # fmt: skip

    def to_dict(self) -> dict[str, Any]:
        """The object that ``foretell adapt --json`` prints; what is not known is absent."""
        result: dict[str, Any] = {
            "device": self.device, "predictor": "adapted", "base": self.base, "samples": self.samples,
            "models": self.models, "metrics": list(self.metrics), "error_before": self.error_before,
        }  # fmt: skip
        further = {"error_after": self.error_after, "interval_share": self.interval_share, "file": self.file,
                   "kept": self.kept}  # fmt: skip
        result |= {name: value for name, value in further.items() if value is not None}
        classes = [{"units": row.units, "factor": row.factor.to_dict(), "share": row.share} for row in self.classes]
        return result | {"factor": self.factor.to_dict(), "classes": classes, "warnings": list(self.warnings)}


def adapt(
    device: str | Path | Device,
    source: str | Path | Sequence[Measurement],
    *,
    out: str | Path | None = None,
    keep: bool = True,
    base: str | None = None,
    trust: bool = False,
    log: Callable[[str], None] = lambda _: None,
) -> Adaptation:
    """Make a predictor for a device from a few measurements of it.

    Args:
        device: A name of the catalogue, or a file such as ``my-gpu.toml``.
        source: A CSV file (``docs/adapt.md`` has its columns), a folder that ``profile`` or ``collect`` stored to, or
            measurements that ``foretell.profile`` returned.
        out: A file for the predictor, ending in .zip; ``predict(…, predictor="my-gpu.zip")`` uses it.
        keep: Keep it in the user's folder too, so that ``predict`` uses it for this device by itself.
        base: The predictor to start from; the best one for the device by default.
        trust: Allow code that comes with a model to run.
        log: Called with what is being done.

    If anything is wrong with a measurement, an error says which one, and nothing is written.
    """
    target = device_of(device)
    path = None if out is None else Path(out)
    if path is not None and path.suffix != SUFFIX:
        raise InputError(f"A predictor is a {SUFFIX} file; {path} is not: use -o {path.with_suffix(SUFFIX).name}.")
    if path is None and not keep:
        raise InputError("The predictor would not be written anywhere: give a file, or keep it.")
    name = base or best_predictor(target.id)
    start = find_predictor(name, target.id)
    measured, notes = read_measured(source, target, trust=trust, log=log)
    samples = described(measured, start)
    fits = fit_metrics(samples)
    model = AdaptedModel(_card(target, name, start, samples, fits), {key: one.factors for key, one in fits.items()})
    kept = own_predictor_path(target.id) if keep else None
    for file in (path, kept):
        if file is not None:
            try:
                file.parent.mkdir(parents=True, exist_ok=True)
                write_whole(file, model.to_bytes())
            except OSError as error:
                raise DataError(f"Cannot write the predictor {file}: {error.strerror}.") from error
    return _adaptation(target, name, samples, fits, path, kept, notes)


@dataclass(frozen=True)
class Sample:
    """A measurement and what the base says about it."""

    measured: Measured
    base: Base

    @property
    def group(self) -> str:
        """Variants of one architecture are left out together."""
        return architecture_of(self.measured.row.model)

    def ratio(self, metric: str) -> float | None:
        """The logarithm of measured over predicted; None where one of them is not known."""
        value: float | None = getattr(self.measured.row, metric)
        predicted: Estimate | None = getattr(self.base.prediction, metric)
        return None if value is None or predicted is None else math.log(value / predicted.value)


def described(measured: Sequence[Measured], start: Predictor) -> list[Sample]:
    """What the base says about every measurement; refuse times that cannot be in milliseconds."""
    samples = []
    for one in measured:
        base = base_of(one.workload, start)
        if base is None:
            raise DataError(f"{one.row.where}: {one.row.model} does nothing on the device.")
        samples.append(Sample(one, base))
    for metric, unit in (("latency_ms", "milliseconds"), ("memory_mib", "MiB"), ("power_w", "watts")):
        for sample in samples:
            ratio = sample.ratio(metric)
            if ratio is not None and abs(ratio) > math.log(_ABSURD):
                row = sample.measured.row
                raise DataError(
                    f"{row.where}: {metric} of {row.model} is {getattr(row, metric):g}, {math.exp(abs(ratio)):,.0f} "
                    f"times {'more' if ratio > 0 else 'less'} than predicted: is it in {unit}?"
                )
    return samples


def fit_metrics(samples: Sequence[Sample]) -> dict[str, Fit]:
    """The factors of every metric that was measured."""
    fits = {}
    for metric in METRICS:
        known = [(sample, ratio) for sample in samples if (ratio := sample.ratio(metric)) is not None]
        if known:
            # one workload with a part that nobody measured has a wide interval: it says little about the others
            deviation = float(np.median([_deviation(getattr(sample.base.prediction, metric)) for sample, _ in known]))
            fits[metric] = fit(
                [sample.base.work for sample, _ in known],
                np.array([ratio for _, ratio in known]),
                [sample.group for sample, _ in known],
                scaled(_PARTS[metric], deviation),
            )
    return fits


def scaled(parts: Widths, deviation: float) -> Widths:
    """The prior of a base that says how far off it may be."""
    return parts.scaled(deviation, deviation)


def _deviation(estimate: Estimate) -> float:
    """The standard deviation, in logarithms, that an interval states."""
    return max(math.log(estimate.value / estimate.low), math.log(estimate.high / estimate.value)) / _NINE_IN_TEN


def _card(device: Device, base: str, start: Predictor, samples: Sequence[Sample], fits: dict[str, Fit]) -> Card:
    latency = fits["latency_ms"]
    return Card(
        device=device.id,
        base=base,
        samples=len(samples),
        models=len({sample.measured.row.model for sample in samples}),
        made_at=datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        settings=tuple(sorted({setting_of(sample.measured.workload) for sample in samples})),
        shares=tuple(np.max([sample.base.work.shares for sample in samples], axis=0).tolist()),
        probe=probe_of(device, start, base),
        drift=float(np.sqrt(np.mean(latency.left_out**2))) if len(samples) > 1 else latency.factors.widths.noise,
    )


def _adaptation(
    device: Device,
    base: str,
    samples: Sequence[Sample],
    fits: dict[str, Fit],
    file: Path | None,
    kept: Path | None,
    notes: Sequence[str],
) -> Adaptation:
    latency = fits["latency_ms"]
    ratios = np.array([sample.ratio("latency_ms") for sample in samples], np.float64)
    groups = {sample.group for sample in samples}
    left_out = latency.left_out
    is_judged = len(groups) >= 3
    inside = np.abs(left_out) <= latency.factors.quantile * latency.deviations
    warnings = [*notes]
    if len(groups) < _FEW:
        warnings.append(
            f"{len(groups)} architecture{'s' * (len(groups) != 1)}: intervals stay wide; foretell adapt --suggest 16 "
            "says which models to measure next"
        )
    return Adaptation(
        device.id,
        base,
        len(samples),
        len({sample.measured.row.model for sample in samples}),
        tuple(fits),
        _median_error(ratios),
        _median_error(left_out) if is_judged else None,
        float(inside.mean()) if is_judged else None,
        *_class_factors(latency.factors, samples),
        None if file is None else str(file),
        None if kept is None else str(kept),
        tuple(warnings),
    )


def _median_error(ratios: Values) -> float:
    """The median of |predicted − measured| / measured, where ratios are logarithms of measured over predicted."""
    return float(np.median(np.abs(np.exp(-ratios) - 1.0)))


def _factor(factors: Factors, of_class: Values, value: float) -> Estimate:
    """A mean factor of units in these shares of classes; its interval is without the doubts about single units."""
    row = np.zeros(len(factors.weights))
    row[0], row[1 : 1 + len(CLASSES)] = 1.0, of_class
    variance = float((row**2 * factors.widths.variances()).sum()) - float(((factors.explained @ row) ** 2).sum())
    width = _NINE_IN_TEN * math.sqrt(max(variance, 0.0))
    return Estimate(value, value * math.exp(-width), value * math.exp(width))


def _class_factors(factors: Factors, samples: Sequence[Sample]) -> tuple[Estimate, tuple[ClassFactor, ...]]:
    """The mean factor of all units over the measured workloads, and of each class, largest share first."""
    before, after = np.zeros(len(CLASSES)), np.zeros(len(CLASSES))
    for sample in samples:
        work = sample.base.work
        members = work.rows[:, 1 : 1 + len(CLASSES)]
        total = float(work.spent_us.sum())
        before += work.spent_us @ members / total
        after += (work.spent_us * factors.of_units(work.rows)) @ members / total
    found = []
    for place in np.argsort(-after).tolist():
        share = float(after[place] / after.sum())
        if share >= _SHOWN_SHARE:
            factor = _factor(factors, np.eye(len(CLASSES))[place], float(after[place] / before[place]))
            found.append(ClassFactor(CLASSES[place], factor, share))
    return _factor(factors, after / after.sum(), float(after.sum() / before.sum())), tuple(found)


def _spelled(factor: Estimate) -> str:
    return f"× {factor.value:.2f} ({factor.low:.2f} – {factor.high:.2f})"


def adapted_prediction(sample: Sample, model: AdaptedModel) -> tuple[float, float]:
    """The logarithm of measured over adapted, and half of the width of the interval."""
    ratio = sample.ratio("latency_ms")
    middle, width = model.factors["latency_ms"].of(sample.base.work)
    assert ratio is not None
    return ratio - middle, width
