"""Predictors: from a Workload to a Prediction; each concept has a folder or a file of its own."""

from foretell.predictors.choice import PREDICTORS, best_predictor, find_predictor
from foretell.predictors.protocol import Predictor

__all__ = ["PREDICTORS", "Predictor", "best_predictor", "find_predictor"]
