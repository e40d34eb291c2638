"""Predictors: fit what the simulation of contention leaves out, and the constants of time-slicing."""

import numpy as np
from numpy.typing import NDArray

from foretell.predictors.boosting import TreeFit, trees_of
from foretell.predictors.sharing.features import COLUMNS, RISING
from foretell.predictors.trees import Trees

Values = NDArray[np.float64]

_FIT = TreeFit(
    rounds=300,
    leaves=7,
    learning_rate=0.05,
    least_in_leaf=8,
    objective="regression_l1",
    others={
        "feature_fraction": 0.5,
        "bagging_fraction": 0.8,
        "bagging_freq": 1,
        "monotone_constraints": [int(name in RISING) for name in COLUMNS],
    },
)


def fit_correction(rows: NDArray[np.float32], base: Values, log_slowdown: Values) -> Trees:
    """Trees for the measured log slowdown less the simulated one, ``base``."""
    return trees_of(_FIT.fit(rows, log_slowdown - base))
