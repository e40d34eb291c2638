"""foretell: tells how a deep-learning model will run before anyone runs it."""

from foretell.devices import Device
from foretell.errors import ForetellError
from foretell.graph import Graph
from foretell.records import Estimate, Measurement, Prediction, Target, Workload
from foretell.workflows import collect, devices, load_graph, predict, profile

__all__ = [
    "Device",
    "Estimate",
    "ForetellError",
    "Graph",
    "Measurement",
    "Prediction",
    "Target",
    "Workload",
    "collect",
    "devices",
    "load_graph",
    "predict",
    "profile",
]
