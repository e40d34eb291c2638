"""Predictors: the protocol that every predictor implements, and how one is asked about many workloads."""

from collections.abc import Sequence
from typing import Protocol

from foretell.errors import ForetellError
from foretell.records import Prediction, Workload


class Predictor(Protocol):
    """Predicts how a workload will run; the prediction says whether it is extrapolated.

    A predictor that answers faster about many workloads at once also has ``predict_many``, which takes a list of them.
    """

    def predict(self, workload: Workload) -> Prediction:
        """Predict how the workload will run."""
        ...


def predict_all(predictor: Predictor, workloads: Sequence[Workload]) -> list[Prediction | ForetellError]:
    """The prediction of each workload, or the error that it ends with, in their order."""
    together = getattr(predictor, "predict_many", None)
    if together is not None:
        try:
            return list(together(workloads))
        except ForetellError:
            pass  # one of them fails: find out which
    return [_predicted(predictor, workload) for workload in workloads]


def _predicted(predictor: Predictor, workload: Workload) -> Prediction | ForetellError:
    try:
        return predictor.predict(workload)
    except ForetellError as error:
        return error
