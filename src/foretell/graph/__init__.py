"""Graph: a model as data: its tensors and operators, what they cost, and the memory they need.

Nothing in this room imports a deep-learning framework.
"""

import importlib
from typing import TYPE_CHECKING, Any

from foretell.graph.cost.node_costs import Cost, CostTable, graph_costs
from foretell.graph.ir.graph import Graph
from foretell.graph.ir.groups import Group, run_groups
from foretell.graph.ir.node import Node
from foretell.graph.ir.tensor import Tensor, parse_dtype
from foretell.graph.memory.liveness import Peak, inference_peak

if TYPE_CHECKING:
    from foretell.graph.cost.training import TrainingStep, training_step
    from foretell.graph.memory.training import training_peak

__all__ = [
    "Cost",
    "CostTable",
    "Graph",
    "Group",
    "Node",
    "Peak",
    "Tensor",
    "TrainingStep",
    "graph_costs",
    "inference_peak",
    "parse_dtype",
    "run_groups",
    "training_peak",
    "training_step",
]

# what only training steps need is imported on first access, so that a prediction starts quickly
_LATER = {
    "TrainingStep": "foretell.graph.cost.training",
    "training_peak": "foretell.graph.memory.training",
    "training_step": "foretell.graph.cost.training",
}


def __getattr__(name: str) -> Any:
    """A name of `__all__` that nothing has imported yet."""
    if name in _LATER:
        value = getattr(importlib.import_module(_LATER[name]), name)
        globals()[name] = value
        return value
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
