"""Predictors: fitting of a model of compiled times: robust least squares on logarithms, one weight a column.

Each measured workload gives an error for its whole latency. Where there is a trace of it, the time of library kernels
and the time of generated kernels give two more. A ridge penalty pulls the weights to 0; it is weaker for the weights
that are the base factor of a kind of kernel.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from foretell.errors import InputError
from foretell.predictors.compiled.kernels import COMPILED_COLUMNS, CompiledKernels
from foretell.predictors.compiled.model import CompiledModel, factors
from foretell.predictors.least_squares import solve

PENALTY = 0.03  # the ridge penalty: a weight of 1 costs as much as an error of this size, times √rows
_BASE_PENALTY = 0.1  # times the penalty, for the base factor of a kind
_BASE_COLUMNS = ("convolution", "plain_convolution", "attention", "recurrent", "product", "traffic", "launch")
_HUBER_DELTA = 0.02  # larger errors count by their size instead of their square: libraries choose odd kernels
_MIN_SHARE = 0.02  # a smaller part of the latency is mostly noise and is not fitted

Values = NDArray[np.float64]


@dataclass(frozen=True)
class Measured:
    """A compiled workload: its kernels, its latency, and the part of libraries and of generated kernels (or NaN)."""

    kernels: CompiledKernels
    latency_us: float
    library_us: float = float("nan")
    generated_us: float = float("nan")


def fit_compiled(measured: Sequence[Measured], device: str, penalty: float = PENALTY) -> CompiledModel:
    """Fit a model to measured workloads."""
    if not measured:
        raise InputError("Got no compiled workload; give some, with their kernels.")
    weights = solve(_Problem.of(measured, penalty).errors, np.zeros(len(COMPILED_COLUMNS)), _HUBER_DELTA)
    return CompiledModel(device, tuple(map(float, weights)))


@dataclass(frozen=True)
class _Problem:
    """The least-squares problem: the kernels of all workloads, stacked, and the measured sums with their weights."""

    base_us: Values
    columns: Values
    owner: NDArray[np.intp]
    library: NDArray[np.bool_]
    labels_us: Values
    weights: Values
    penalty: Values

    @classmethod
    def of(cls, measured: Sequence[Measured], penalty: float) -> "_Problem":
        labels_us = np.array(
            [(workload.latency_us, workload.library_us, workload.generated_us) for workload in measured]
        )
        shares = np.nan_to_num(labels_us / labels_us[:, :1])
        # a part of the latency weighs by its share: √, because errors are squared
        weights = np.where(shares > _MIN_SHARE, np.sqrt(shares), 0.0)
        pulls = [_BASE_PENALTY if name in _BASE_COLUMNS else 1.0 for name in COMPILED_COLUMNS]
        return cls(
            np.concatenate([workload.kernels.base_us for workload in measured]),
            np.concatenate([workload.kernels.columns for workload in measured]),
            np.repeat(np.arange(len(measured)), [len(workload.kernels) for workload in measured]),
            np.concatenate([workload.kernels.is_library for workload in measured]),
            np.where(weights > 0, labels_us, 1.0),
            weights,
            penalty * np.sqrt(len(measured)) * np.array(pulls),
        )

    def _sums(self, values: Values, rows: NDArray[np.bool_]) -> Values:
        """The sums of some rows, by workload; the rows of a workload lie together."""
        sums = np.zeros((len(self.labels_us), values.shape[1]))
        owner = self.owner[rows]
        if len(owner):
            first = np.flatnonzero(np.diff(owner, prepend=-1))
            sums[owner[first]] = np.add.reduceat(values[rows], first)
        return sums

    def errors(self, parameters: Values) -> tuple[Values, Values]:
        """The errors log(predicted / measured) of all sums, then the penalties; and the Jacobian of both."""
        times_us = self.base_us * factors(self.columns, parameters)
        slopes_us = times_us[:, None] * self.columns
        errors, slopes = list[Values](), list[Values]()
        all_rows = np.ones(len(times_us), bool)
        for number, rows in enumerate((all_rows, self.library, ~self.library)):
            sums_us = np.bincount(self.owner[rows], times_us[rows], len(self.labels_us))
            by_owner = self._sums(slopes_us, rows)
            # a workload may have no generated kernel at all
            is_known = (self.weights[:, number] > 0) & (sums_us > 0)
            weights = self.weights[is_known, number]
            errors.append(weights * np.log(sums_us[is_known] / self.labels_us[is_known, number]))
            slopes.append(weights[:, None] * by_owner[is_known] / sums_us[is_known, None])
        return np.concatenate([*errors, self.penalty * parameters]), np.concatenate([*slopes, np.diag(self.penalty)])
