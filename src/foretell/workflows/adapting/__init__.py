"""Workflows: a device's own predictor: adapt to measurements, say what to measure, check for drift."""
