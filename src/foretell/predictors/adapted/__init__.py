"""Predictors: adapted: a device's own predictor from a few measurements of it."""
