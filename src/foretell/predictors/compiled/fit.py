"""predictors: fitting of a model of compiled times: least squares on logarithms, one weight a column.

The whole teaches, and where there is a trace, what libraries took and what generated kernels took. Each weight is
pulled to 0 a little, those that are a kind's own factor less.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from foretell.errors import InputError
from foretell.predictors.compiled.kernels import COMPILED_COLUMNS, CompiledKernels
from foretell.predictors.compiled.model import CompiledModel, factors
from foretell.predictors.least_squares import solve

PULL = 0.03  # how weights are pulled to 0: as by a row with an error of this much for each root of a row
_OWN_PULL = 0.1  # of that, where the column is a kind's own factor
_OWN = ("convolution", "plain_convolution", "attention", "recurrent", "product", "traffic", "launch")
_BEND = 0.1  # an error of this size begins to count by its size instead of its square
_LEAST_SHARE = 0.02  # what takes less of the whole teaches nothing

Values = NDArray[np.float64]


@dataclass(frozen=True)
class Measured:
    """A compiled workload: its kernels, its latency, and what libraries and generated kernels took of it (or NaN)."""

    kernels: CompiledKernels
    latency_us: float
    library_us: float = float("nan")
    generated_us: float = float("nan")


def fit_compiled(measured: Sequence[Measured], device: str, pull: float = PULL) -> CompiledModel:
    """Fit to measured workloads."""
    if not measured:
        raise InputError("Got no compiled workload; give some, with their kernels.")
    found = solve(_Problem.of(measured, pull).errors, np.zeros(len(COMPILED_COLUMNS)), _BEND)
    return CompiledModel(device, tuple(map(float, found)))


@dataclass(frozen=True)
class _Problem:
    """All rows one below the other; ``sums`` are which of them make up what was measured, and how much it counts."""

    base_us: Values
    columns: Values
    owner: NDArray[np.intp]
    library: NDArray[np.bool_]
    labels_us: Values
    weights: Values
    pull: Values

    @classmethod
    def of(cls, measured: Sequence[Measured], pull: float) -> "_Problem":
        labels_us = np.array([(each.latency_us, each.library_us, each.generated_us) for each in measured])
        shares = np.nan_to_num(labels_us / labels_us[:, :1])
        weights = np.where(shares > _LEAST_SHARE, np.sqrt(shares), 0.0)
        pulls = [_OWN_PULL if name in _OWN else 1.0 for name in COMPILED_COLUMNS]
        return cls(
            np.concatenate([each.kernels.base_us for each in measured]),
            np.concatenate([each.kernels.columns for each in measured]),
            np.repeat(np.arange(len(measured)), [len(each.kernels) for each in measured]),
            np.concatenate([each.kernels.is_library for each in measured]),
            np.where(weights > 0, labels_us, 1.0),
            weights,
            pull * np.sqrt(len(measured)) * np.array(pulls),
        )

    def errors(self, parameters: Values) -> tuple[Values, Values]:
        """The logarithm of predicted over measured of each sum, below them the pulled weights; and all slopes."""
        times_us = self.base_us * factors(self.columns, parameters)
        slopes_us = times_us[:, None] * self.columns
        errors, slopes = list[Values](), list[Values]()
        every = np.ones(len(times_us), bool)
        for number, rows in enumerate((every, self.library, ~self.library)):
            sums_us = np.bincount(self.owner[rows], times_us[rows], len(self.labels_us))
            by_owner = np.zeros((len(sums_us), len(parameters)))
            np.add.at(by_owner, self.owner[rows], slopes_us[rows])
            use = (self.weights[:, number] > 0) & (sums_us > 0)
            weights = self.weights[use, number]
            errors.append(weights * np.log(sums_us[use] / self.labels_us[use, number]))
            slopes.append(weights[:, None] * by_owner[use] / sums_us[use, None])
        return np.concatenate([*errors, self.pull * parameters]), np.concatenate([*slopes, np.diag(self.pull)])
