"""Predictors: the protocol that every predictor implements."""

from typing import Protocol

from foretell.records import Prediction, Workload


class Predictor(Protocol):
    """Predicts how a workload will run; the prediction says whether it is extrapolated."""

    def predict(self, workload: Workload) -> Prediction:
        """Predict how the workload will run."""
        ...
