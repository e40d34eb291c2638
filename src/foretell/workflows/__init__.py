"""Workflows: the only hall where rooms meet: from a model and a target to an answer."""

from foretell.workflows.predict import devices, predict
from foretell.workflows.workload import load_graph

__all__ = ["devices", "load_graph", "predict"]
