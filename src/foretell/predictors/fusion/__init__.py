"""Predictors: fusion: which operators a compiler runs as one kernel."""
