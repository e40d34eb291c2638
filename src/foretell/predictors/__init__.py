"""predictors: Workload → Prediction; one file a system."""

from typing import Protocol

from foretell.records import Prediction, Workload
from foretell.registry import Registry

PREDICTORS = Registry("predictor", {"roofline": "foretell.predictors.roofline:RooflinePredictor"})
DEFAULT_PREDICTOR = "roofline"


class Predictor(Protocol):
    """What every predictor can do."""

    def predict(self, workload: Workload) -> Prediction:
        """Tell how the workload will run."""
        ...


__all__ = ["DEFAULT_PREDICTOR", "PREDICTORS", "Predictor"]
