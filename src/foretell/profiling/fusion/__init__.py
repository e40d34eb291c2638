"""Profiling: fusion: which operators a compiler puts into each of its kernels."""
