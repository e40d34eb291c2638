"""Captured steps that stay on the device: replayed on slices, compiled, beside each other."""
