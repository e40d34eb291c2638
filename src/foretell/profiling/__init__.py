"""Profiling: a model on a real device → measurements. Nothing here is imported until it is asked for."""
