"""Testing: budgets that a build keeps, and tiny graphs and models. No other room imports this one."""

from foretell.testing.budgets import BudgetError, assert_fits, assert_latency, assert_memory
from foretell.testing.tiny import chain, one_node, tiny_graph, tiny_onnx

__all__ = [
    "BudgetError",
    "assert_fits",
    "assert_latency",
    "assert_memory",
    "chain",
    "one_node",
    "tiny_graph",
    "tiny_onnx",
]
