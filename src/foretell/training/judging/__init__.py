"""Training: judging: how far predictions are from the truth, and predictors side by side."""

from foretell.training.judging.metrics import (
    Accuracy,
    MeanSpread,
    accuracy,
    coverage,
    kendall_tau,
    mape,
    median_ape,
    median_relative_width,
    over_seeds,
    p95_ape,
    share_within,
)
from foretell.training.judging.table import Comparison

__all__ = [
    "Accuracy",
    "Comparison",
    "MeanSpread",
    "accuracy",
    "coverage",
    "kendall_tau",
    "mape",
    "median_ape",
    "median_relative_width",
    "over_seeds",
    "p95_ape",
    "share_within",
]
