"""foretell: tells how a deep-learning model will run before anyone runs it."""

from foretell.devices import Device
from foretell.errors import ForetellError
from foretell.graph import Graph
from foretell.records import Estimate, Prediction, Target, Workload
from foretell.workflows import devices, load_graph, predict

__all__ = [
    "Device",
    "Estimate",
    "ForetellError",
    "Graph",
    "Prediction",
    "Target",
    "Workload",
    "devices",
    "load_graph",
    "predict",
]
