"""Predictors: language models as they are served: weights, cache, steps, several GPUs."""
