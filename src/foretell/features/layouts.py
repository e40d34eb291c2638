"""Features: how the two operands of a unit's product lie: by rows, transposed, or otherwise.

Libraries have kernels of their own for each way. A row of `foretell.features.COLUMNS` tells of the first operand alone.
"""

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from foretell.features.units import Units
from foretell.graph import Graph
from foretell.graph.ir.layout import Layout, layouts
from foretell.graph.ir.node import Node
from foretell.records import Workload

LAYOUT_COLUMNS = ("first_transposed", "first_scattered", "second_transposed", "second_scattered")


def operand_layouts(workload: Workload, units: Units) -> NDArray[np.float32]:
    """A row of `LAYOUT_COLUMNS` for each unit; all 0 where there are no two operands.

    >>> from foretell.devices import find_device
    >>> from foretell.features import extract_units
    >>> from foretell.records import Target
    >>> from foretell.testing import tiny_graph
    >>> workload = Workload(tiny_graph(), Target(find_device("h200")))
    >>> operand_layouts(workload, extract_units(workload)).shape[1] == len(LAYOUT_COLUMNS)
    True
    """
    graph = workload.running_graph
    laid_out = layouts(graph)
    rows = np.zeros((len(units), len(LAYOUT_COLUMNS)), np.float32)
    for number, (operator, members) in enumerate(zip(units.operators, units.nodes, strict=True)):
        node = next((graph.nodes[each] for each in members if graph.nodes[each].op == operator), None)
        if node is not None and len(node.inputs) > 1:
            for operand, flipped in enumerate(("transA", "transB")):
                rows[number, 2 * operand : 2 * operand + 2] = _lies(graph, node, operand, flipped, laid_out)
    return rows


def _lies(graph: Graph, node: Node, operand: int, flipped: str, laid_out: Mapping[str, Layout]) -> tuple[bool, bool]:
    """Whether an operand is transposed, and whether neither of its last two axes lies densely."""
    name = node.inputs[operand]
    if not name or len(graph.tensors[name].shape) < 2:
        return False, False
    strides = laid_out[name].strides
    by_rows, by_columns = strides[-1] == 1, strides[-2] == 1
    transposed = by_columns and not by_rows
    return transposed != bool(node.integer(flipped, 0)), not (by_rows or by_columns)
