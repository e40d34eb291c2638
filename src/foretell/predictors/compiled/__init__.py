"""Predictors: compiled: latency under ``torch.compile``."""
