"""Predictors: what every predictor can do."""

from typing import Protocol

from foretell.records import Prediction, Workload


class Predictor(Protocol):
    """Tells how a workload will run, and says itself whether the answer is extrapolated."""

    def predict(self, workload: Workload) -> Prediction:
        """Tell how the workload will run."""
        ...
