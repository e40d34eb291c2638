"""Workflows about memory: whether a model fits, and what would make it fit."""
