"""Graph: a model as data: its tensors and operators, what they cost, and the memory they need.

Nothing in this room imports a deep-learning framework.
"""

from foretell.graph.cost.node_costs import Cost, CostTable, graph_costs
from foretell.graph.cost.training import TrainingStep, training_step
from foretell.graph.ir.graph import Graph
from foretell.graph.ir.groups import Group, run_groups
from foretell.graph.ir.node import Node
from foretell.graph.ir.tensor import Tensor, parse_dtype
from foretell.graph.memory.liveness import Peak, inference_peak
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
