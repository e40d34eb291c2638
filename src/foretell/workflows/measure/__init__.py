"""Workflows that run something on this machine: profile, collect, calibrate, characterise, diagnose."""
