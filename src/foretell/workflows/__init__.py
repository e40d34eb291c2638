"""Workflows: the functions behind the commands and the public API. Only here do the other packages work together."""

from foretell.workflows.predict import devices, predict
from foretell.workflows.workload import load_graph

__all__ = ["devices", "load_graph", "predict"]
