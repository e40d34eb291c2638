"""Profiling: captured steps that stay on the device, to be replayed on slices, compiled, or beside each other."""
