"""predictors: fitting of a model of slices: least squares on logarithms of latency, few parameters, outliers bent.

What is learned is a ratio: the latency of the whole device is the measured one. The sum over the units of a workload
teaches them all; each weight is pulled to 0 a little.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from foretell.errors import InputError
from foretell.predictors.least_squares import solve
from foretell.predictors.sample import Sample
from foretell.predictors.slices.features import GREEN_COLUMNS, SLICE_COLUMNS, describe_scaling, launches_of
from foretell.predictors.slices.model import SliceModel, logistic

_PULL = 0.01  # how weights are pulled to 0: as by a row with an error of this much for each root of a row
_BEND = 0.05  # an error of this size begins to count by its size instead of its square
_FIRST_MPS_US = 0.4
_SHARED = len(SLICE_COLUMNS) - len(GREEN_COLUMNS)

Values = NDArray[np.float64]
Rows = NDArray[np.intp]


@dataclass(frozen=True)
class MeasuredSlices:
    """Latencies on slices: of which sample, how many SMs, whether a green context; in one order."""

    sample: Rows
    sms: Values
    green: NDArray[np.bool_]
    latency_ms: Values

    def __len__(self) -> int:
        return len(self.sample)

    def of(self, rows: Rows) -> "MeasuredSlices":
        """Some of them."""
        return MeasuredSlices(self.sample[rows], self.sms[rows], self.green[rows], self.latency_ms[rows])


@dataclass(frozen=True)
class _Units:
    """The units of all samples, one below the other: features by method, time by share of the sample, launches."""

    columns: tuple[Values, Values]
    shares: Values
    starts: Rows
    launches_per_us: Values
    whole_ms: Values

    @classmethod
    def of(cls, samples: Sequence[Sample], unit_us: Sequence[Values]) -> "_Units":
        features = np.concatenate([sample.units.features for sample in samples])
        times_us, counts = np.concatenate(unit_us), np.concatenate([sample.units.counts for sample in samples])
        sizes = [len(sample.units) for sample in samples]
        starts = np.cumsum([0, *sizes[:-1]])
        totals_us = np.add.reduceat(times_us * counts, starts)
        return cls(
            (describe_scaling(features, times_us, green=False), describe_scaling(features, times_us, green=True)),
            times_us * counts / np.repeat(totals_us, sizes),
            starts,
            np.add.reduceat(launches_of(features) * counts, starts) / totals_us,
            np.array([sample.truth["latency_ms"] for sample in samples]),
        )


def fit_slices(
    samples: Sequence[Sample],
    unit_us: Sequence[Values],
    measured: MeasuredSlices,
    device: str,
    device_sms: int,
    pull: float = _PULL,
) -> SliceModel:
    """Fit to measured slices of samples; ``unit_us`` are the times of their units on the whole device, as predicted."""
    if not len(measured):
        raise InputError("Got no measured slice; give some, of workloads that were measured on the whole device too.")
    units = _Units.of(samples, unit_us)
    use = np.isin(np.repeat(np.arange(len(samples)), np.diff([*units.starts, len(units.shares)])), measured.sample)
    weight = units.shares[use] / units.shares[use].sum()
    middle = weight @ units.columns[0][use]
    spread = np.sqrt(weight @ (units.columns[0][use] - middle) ** 2)
    middle[_SHARED:], spread[_SHARED:] = 0.0, 1.0
    spread[spread == 0] = 1.0
    problem = _Problem(units, tuple((rows - middle) / spread for rows in units.columns), measured, device_sms, pull)
    found = solve(problem.errors, np.array([0.0, *(0.0 for _ in SLICE_COLUMNS), np.log(_FIRST_MPS_US)]), _BEND)
    if measured.green.all():
        found[-1] = -np.inf
    weights, middles, spreads = (tuple(map(float, values)) for values in (found[1:-1], middle, spread))
    return SliceModel(device, float(found[0]), weights, middles, spreads, mps_launch_us=float(np.exp(found[-1])))


@dataclass(frozen=True)
class _Problem:
    """Parameters: base, weights, and the logarithm of what a launch costs under MPS."""

    units: _Units
    columns: tuple[Values, ...]
    measured: MeasuredSlices
    device_sms: int
    pull: float

    def errors(self, parameters: Values) -> tuple[Values, Values]:
        """The logarithm of predicted over measured of each row, below them the pulled weights; and all slopes."""
        measured, units = self.measured, self.units
        stretch = self.device_sms / measured.sms - 1.0
        shares, slopes = np.zeros(len(measured)), np.zeros((len(measured), len(parameters)))
        for green, columns in enumerate(self.columns):
            rows = np.flatnonzero(measured.green == bool(green))
            told = logistic(parameters[0] + columns @ parameters[1:-1])
            bend = units.shares * told * (1.0 - told)
            full = np.column_stack([bend, bend[:, None] * columns])
            shares[rows] = np.add.reduceat(units.shares * told, units.starts)[measured.sample[rows]]
            slopes[rows, :-1] = np.add.reduceat(full, units.starts, axis=0)[measured.sample[rows]]
        cost = np.exp(parameters[-1]) * units.launches_per_us[measured.sample] * ~measured.green
        ratio = 1.0 + shares * stretch + cost
        slopes[:, :-1] *= (stretch / ratio)[:, None]
        slopes[:, -1] = cost / ratio
        errors = np.log(units.whole_ms[measured.sample] * ratio / measured.latency_ms)
        pull = self.pull * np.sqrt(len(measured)) * np.eye(len(parameters))[1:-1]
        return np.concatenate([errors, pull @ parameters]), np.concatenate([slopes, pull])
