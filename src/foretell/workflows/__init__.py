"""workflows: the only hall where rooms meet: from a model and a target to an answer."""

from foretell.workflows.predict import devices, load_graph, predict

__all__ = ["devices", "load_graph", "predict"]
