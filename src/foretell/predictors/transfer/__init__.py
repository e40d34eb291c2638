"""Predictors: transfer: from the GPU that was measured to GPUs that were not."""

from foretell.predictors.transfer.predictor import TransferPredictor, extrapolated

__all__ = ["TransferPredictor", "extrapolated"]
