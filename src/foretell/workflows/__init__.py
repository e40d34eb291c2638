"""workflows: the only hall where rooms meet: from a model and a target to an answer."""

from foretell.workflows.diagnose import Diagnosis, diagnose
from foretell.workflows.predict import devices, load_graph, predict

__all__ = ["Diagnosis", "devices", "diagnose", "load_graph", "predict"]
