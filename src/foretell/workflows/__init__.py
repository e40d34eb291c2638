"""workflows: the only hall where rooms meet: from a model and a target to an answer."""

from foretell.workflows.collect import Collected, collect
from foretell.workflows.diagnose import Diagnosis, diagnose
from foretell.workflows.predict import devices, load_graph, predict
from foretell.workflows.profile import profile

__all__ = ["Collected", "Diagnosis", "collect", "devices", "diagnose", "load_graph", "predict", "profile"]
