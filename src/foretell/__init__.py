"""foretell: tells how a deep-learning model will run before anyone runs it."""

import importlib
from typing import TYPE_CHECKING, Any

from foretell.devices import Device
from foretell.errors import ForetellError
from foretell.graph import Graph
from foretell.records import Estimate, Measurement, Prediction, Target, Workload
from foretell.workflows import devices, load_graph, predict

if TYPE_CHECKING:
    from foretell.workflows.measure.collect import collect
    from foretell.workflows.measure.profile import profile
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


# verbs that are less often used are imported when they are asked for: predicting shall start quickly
_VERBS = {
    "collect": "foretell.workflows.measure.collect",
    "profile": "foretell.workflows.measure.profile",
    "sweep": "foretell.workflows.sweep",
}


def __getattr__(name: str) -> Any:
    """A verb that nothing has imported yet."""
    if name in _VERBS:
        verb = getattr(importlib.import_module(_VERBS[name]), name)
        globals()[name] = verb
        return verb
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
