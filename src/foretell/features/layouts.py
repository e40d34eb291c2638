"""Features: the memory layout of both operands of a matrix product: row-major, transposed, or neither.

Libraries have separate kernels for each combination (NN, NT, TN, TT). The columns of `foretell.features.COLUMNS`
describe the layout of the first operand only.
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
    """Return a row of `LAYOUT_COLUMNS` for each unit; a unit without two operands gets zeros.

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
        node = next((graph.nodes[position] for position in members if graph.nodes[position].op == operator), None)
        if node is not None and len(node.inputs) > 1:
            for operand, attribute in enumerate(("transA", "transB")):
                rows[number, 2 * operand : 2 * operand + 2] = _operand_flags(graph, node, operand, attribute, laid_out)
    return rows


def _operand_flags(
    graph: Graph, node: Node, operand: int, attribute: str, laid_out: Mapping[str, Layout]
) -> tuple[bool, bool]:
    """Whether an operand is transposed, and whether neither of its last two axes is dense (stride 1)."""
    name = node.inputs[operand]
    if not name or len(graph.tensors[name].shape) < 2:
        return False, False
    strides = laid_out[name].strides
    by_rows, by_columns = strides[-1] == 1, strides[-2] == 1
    transposed = by_columns and not by_rows
    # a transposed layout and a transpose flag of Gemm cancel out
    return transposed != bool(node.integer(attribute, 0)), not (by_rows or by_columns)
