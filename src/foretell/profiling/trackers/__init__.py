"""Profiling: trackers: what is read while a step runs: kernels, hardware counters, the driver."""
