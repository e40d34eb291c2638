"""Profiling: run a model on a real device and return measurements. Nothing here is imported until it is needed."""
