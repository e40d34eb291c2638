"""Predictors: fit what the simulation of contention leaves out, and the constants of time-slicing."""

import numpy as np
from numpy.typing import NDArray

from foretell.predictors.boosting import TreeFit, trees_of
from foretell.predictors.trees import Trees

Values = NDArray[np.float64]

_FIT = TreeFit(
    rounds=500,
    leaves=15,
    learning_rate=0.03,
    least_in_leaf=8,
    objective="fair",  # nearly the absolute error: a few groups are far off
    others={
        "fair_c": 0.1,
        "feature_fraction": 0.5,
        "bagging_fraction": 0.8,
        "bagging_freq": 1,
    },
)


def fit_correction(rows: NDArray[np.float32], base: Values, log_slowdown: Values) -> Trees:
    """Trees for the measured log slowdown less the simulated one, ``base``."""
    return trees_of(_FIT.fit(rows, log_slowdown - base))
