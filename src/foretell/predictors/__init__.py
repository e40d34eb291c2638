"""Predictors: Workload → Prediction; a folder or a file for each concept."""

from foretell.predictors.choice import PREDICTORS, best_predictor, find_predictor
from foretell.predictors.protocol import Predictor

__all__ = ["PREDICTORS", "Predictor", "best_predictor", "find_predictor"]
