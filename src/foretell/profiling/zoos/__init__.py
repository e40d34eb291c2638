"""Profiling: zoos that are more than one file."""
