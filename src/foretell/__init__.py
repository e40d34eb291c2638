"""foretell: tells how a deep-learning model will run before anyone runs it."""

import importlib
from typing import TYPE_CHECKING, Any

from foretell.devices import Device
from foretell.errors import ForetellError
from foretell.graph import Graph
from foretell.records import Estimate, Measurement, Prediction, Target, Workload
from foretell.workflows import devices, load_graph, predict

if TYPE_CHECKING:
    from foretell.workflows.collect import collect
    from foretell.workflows.profile import profile
    from foretell.workflows.sweep import sweep

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
    "sweep",
]


def __getattr__(name: str) -> Any:
    """What is less often used is imported when it is asked for: predicting shall start quickly."""
    if name in ("collect", "profile", "sweep"):
        verb = getattr(importlib.import_module(f"foretell.workflows.{name}"), name)
        globals()[name] = verb
        return verb
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
