"""Advisors: rewrites of a graph that a programmer could make in the model: each returns the changed graph."""
