"""Predictors: slices: latency on a part of a GPU."""
