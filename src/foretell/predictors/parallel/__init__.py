"""Predictors: parallel: one training step over several GPUs, from the prediction for one and the collectives."""
