"""Predictors: fitting of a model of slices by robust least squares on logarithms of latency.

What is learned is a ratio: the latency on a slice over the measured latency of the whole device. Only whole workloads
are measured on slices, so the error of a workload is passed on to all its units, in proportion to their share of the
time. There are few parameters (one weight a feature), a small ridge penalty pulls the weights to 0, and large errors
count by their size (`foretell.predictors.least_squares`).
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from foretell.errors import InputError
from foretell.predictors.least_squares import solve
from foretell.predictors.sample import Sample
from foretell.predictors.slices.features import GREEN_COLUMNS, SLICE_COLUMNS, describe_scaling, launches_of
from foretell.predictors.slices.model import SliceModel, logistic, share_of_launch_cost

_PENALTY = 0.01  # the ridge penalty: a weight of 1 costs as much as an error of this size, times √rows
_HUBER_DELTA = 0.05  # larger errors count by their size instead of their square
_FIRST_MPS_US = 0.4  # where the fit of the cost of a launch under MPS starts
_SHARED = len(SLICE_COLUMNS) - len(GREEN_COLUMNS)

Values = NDArray[np.float64]
Rows = NDArray[np.intp]


@dataclass(frozen=True)
class MeasuredSlices:
    """Latencies on slices, one entry each: the sample, the number of SMs, and whether it is a green context."""

    sample: Rows
    sms: Values
    green: NDArray[np.bool_]
    latency_ms: Values

    def __len__(self) -> int:
        return len(self.sample)

    def of(self, rows: Rows) -> "MeasuredSlices":
        """Some of the rows."""
        return MeasuredSlices(self.sample[rows], self.sms[rows], self.green[rows], self.latency_ms[rows])


@dataclass(frozen=True)
class _Units:
    """The units of all samples, stacked: features for MPS and for green contexts, and shares of the sample's time."""

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
    penalty: float = _PENALTY,
) -> SliceModel:
    """Fit a model to measured slices; ``unit_us`` are the predicted times of units on the whole device."""
    if not len(measured):
        raise InputError(
            "Got no measured slice; measure some, of workloads that were measured on the whole device too."
        )
    units = _Units.of(samples, unit_us)
    is_used = np.isin(np.repeat(np.arange(len(samples)), np.diff([*units.starts, len(units.shares)])), measured.sample)
    weight = units.shares[is_used] / units.shares[is_used].sum()
    middle = weight @ units.columns[0][is_used]
    # weighted by time: columns are standardised for the units that matter
    spread = np.sqrt(weight @ (units.columns[0][is_used] - middle) ** 2)
    # columns of green contexts are 0 under MPS and must stay 0: they are not standardised
    middle[_SHARED:], spread[_SHARED:] = 0.0, 1.0
    spread[spread == 0] = 1.0
    problem = _Problem(
        units, tuple((columns - middle) / spread for columns in units.columns), measured, device_sms, penalty
    )
    solution = solve(
        problem.errors, np.array([0.0, *(0.0 for _ in SLICE_COLUMNS), np.log(_FIRST_MPS_US)]), _HUBER_DELTA
    )
    # without a measurement under MPS the cost of a launch is unknown: exp(−∞) = 0
    if measured.green.all():
        solution[-1] = -np.inf
    weights, middles, spreads = (tuple(map(float, values)) for values in (solution[1:-1], middle, spread))
    return SliceModel(device, float(solution[0]), weights, middles, spreads, mps_launch_us=float(np.exp(solution[-1])))


def fit_floor_w(whole_w: Values, power_w: Values, scale: Values) -> float:
    """The floor that explains the power on slices best: P = floor + (P of the whole − floor) / scale.

    The error is the mean of |log(predicted / measured)|, over all floors in steps of a watt.

    >>> float(fit_floor_w(np.array([400.0, 300.0]), np.array([250.0, 200.0]), np.array([2.0, 2.0])))
    100.0
    """
    floors = np.arange(0.0, float(np.median(power_w)), 1.0)[:, None]
    # a device that draws less than the floor draws the same on a slice
    predicted_w = np.where(whole_w <= floors, whole_w, floors + (whole_w - floors) / scale)
    return float(floors[np.argmin(np.abs(np.log(predicted_w / power_w)).mean(axis=1)), 0])


@dataclass(frozen=True)
class _Problem:
    """The least-squares problem; its parameters are the base, the weights, and log(cost of a launch under MPS)."""

    units: _Units
    columns: tuple[Values, ...]
    measured: MeasuredSlices
    device_sms: int
    penalty: float

    def errors(self, parameters: Values) -> tuple[Values, Values]:
        """The errors log(predicted / measured), then the penalty of each weight; and the Jacobian of both."""
        measured, units = self.measured, self.units
        slowdown = self.device_sms / measured.sms - 1.0
        shares, slopes = np.zeros(len(measured)), np.zeros((len(measured), len(parameters)))
        for green, columns in enumerate(self.columns):
            rows = np.flatnonzero(measured.green == bool(green))
            parallel = logistic(parameters[0] + columns @ parameters[1:-1])
            # the derivative of the logistic function is p (1 − p)
            slope = units.shares * parallel * (1.0 - parallel)
            by_parameter = np.column_stack([slope, slope[:, None] * columns])
            shares[rows] = np.add.reduceat(units.shares * parallel, units.starts)[measured.sample[rows]]
            slopes[rows, :-1] = np.add.reduceat(by_parameter, units.starts, axis=0)[measured.sample[rows]]
        counted = share_of_launch_cost(measured.sms / self.device_sms) * ~measured.green
        cost = np.exp(parameters[-1]) * units.launches_per_us[measured.sample] * counted
        ratio = 1.0 + shares * slowdown + cost
        slopes[:, :-1] *= (slowdown / ratio)[:, None]
        slopes[:, -1] = cost / ratio
        # the measured latency of the whole device: an error of its prediction must not be learned as one of the slice
        errors = np.log(units.whole_ms[measured.sample] * ratio / measured.latency_ms)
        penalty = self.penalty * np.sqrt(len(measured)) * np.eye(len(parameters))[1:-1]
        return np.concatenate([errors, penalty @ parameters]), np.concatenate([slopes, penalty])
