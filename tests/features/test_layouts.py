"""How operands lie: a transposed second operand, a weight that its node transposes, and units without operands."""

import numpy as np
import pytest

from foretell.features import extract_units
from foretell.features.layouts import LAYOUT_COLUMNS, operand_layouts
from foretell.graph import Graph, Node, Tensor
from foretell.records import Workload
from foretell.testing import one_node, tiny_graph
from small.small_samples import H200


def product_of(permutation: tuple[int, ...]) -> Workload:
    """x · view, where view is a permutation of y's axes."""
    shape = tuple((4, 8, 8)[axis] for axis in permutation)
    tensors = [
        Tensor("x", (4, 8, 8), kind="input", batch_axis=0),
        Tensor("y", (4, 8, 8), kind="input", batch_axis=0),
        Tensor("view", shape),
        Tensor("z", (4, 8, 8)),
    ]
    nodes = [
        Node("turn", "Transpose", ("y",), ("view",), {"perm": permutation}),
        Node("product", "MatMul", ("x", "view"), ("z",)),
    ]
    graph = Graph.build("product", nodes, {t.name: t for t in tensors}, ["x", "y"], ["z"], batch_size=4)
    return Workload(graph, H200)


def of_operator(workload: Workload, operator: str) -> dict[str, float]:
    units = extract_units(workload)
    row = operand_layouts(workload, units)[units.operators.index(operator)]
    return dict(zip(LAYOUT_COLUMNS, row.tolist(), strict=True))


@pytest.mark.parametrize(("permutation", "transposed"), [((0, 1, 2), 0.0), ((0, 2, 1), 1.0)])
def test_a_transposed_view_is_marked_as_transposed(permutation: tuple[int, ...], transposed: float) -> None:
    result = of_operator(product_of(permutation), "MatMul")
    assert result["second_transposed"] == transposed
    assert result["first_transposed"] == result["first_scattered"] == result["second_scattered"] == 0.0


def test_a_node_may_transpose_a_row_major_operand() -> None:
    assert of_operator(Workload(tiny_graph(), H200), "Gemm")["second_transposed"] == 1.0
    plain = one_node("Gemm", [(2, 3), (3, 4)], [(2, 4)], weights=[1])
    assert of_operator(Workload(plain, H200), "Gemm")["second_transposed"] == 0.0


def test_units_without_two_operands_have_zeros() -> None:
    workload = Workload(one_node("Relu", [(2, 3)], [(2, 3)]), H200)
    assert np.array_equal(operand_layouts(workload, extract_units(workload)), np.zeros((1, len(LAYOUT_COLUMNS))))
