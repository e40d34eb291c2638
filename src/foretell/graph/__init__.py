"""graph: the intermediate representation: tensors, nodes, graphs, their costs, memory and files. Pure Python."""

from foretell.graph.cost import Cost, CostTable, graph_costs
from foretell.graph.graph import Graph
from foretell.graph.groups import Group, run_groups
from foretell.graph.memory import Peak, inference_peak
from foretell.graph.node import Node
from foretell.graph.tensor import Tensor, parse_dtype
from foretell.graph.training import TrainingStep, training_step
from foretell.graph.training_memory import training_peak

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
