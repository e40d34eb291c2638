"""Copies that products make of their operands."""

from foretell.graph import Graph, Node
from foretell.graph.ir.layout import layouts
from foretell.graph.memory.operand_copies import einsum_between, operand_copies
from foretell.testing import chain, one_node


def copies(graph: Graph) -> dict[str, int]:
    return operand_copies(graph, graph.nodes[-1], layouts(graph))


def test_a_batched_product_copies_what_cannot_be_folded() -> None:
    swap = Node("t", "Transpose", ("x",), ("t",), {"perm": (0, 2, 1, 3)})
    product = Node("m", "MatMul", ("t", "w"), ("y",))
    shapes = {"x": (2, 5, 3, 4), "t": (2, 3, 5, 4), "w": (2, 3, 4, 6), "y": (2, 3, 5, 6)}
    assert copies(chain([swap, product], shapes, ["x", "w"], ["y"])) == {"t": 2 * 3 * 5 * 4 * 4}
    assert copies(one_node("MatMul", [(2, 3, 5, 4), (2, 3, 4, 6)], [(2, 3, 5, 6)])) == {}


def test_an_einsum_copies_what_it_has_to_permute() -> None:
    node = Node("e", "Einsum", ("x", "w"), ("y",), {"equation": "bihd,bjhd->bhij"})
    shapes = {"x": (2, 4, 3, 8), "w": (2, 5, 3, 8), "y": (2, 3, 4, 5)}
    graph = chain([node], shapes, ["x", "w"], ["y"])
    assert copies(graph) == {"x": 2 * 4 * 3 * 8 * 4, "w": 2 * 5 * 3 * 8 * 4}
    assert einsum_between(graph, node, layouts(graph)) == []


def test_three_operands_have_a_result_in_between() -> None:
    node = Node("e", "Einsum", ("x", "u", "v"), ("y",), {"equation": "ij,jk,kl->il"})
    graph = chain([node], {"x": (9, 2), "u": (2, 9), "v": (9, 3), "y": (9, 3)}, ["x", "u", "v"], ["y"])
    assert einsum_between(graph, node, layouts(graph)) == [2 * 3 * 4]


def test_a_longer_transform_pads_a_copy_of_its_signal() -> None:
    assert copies(one_node("DFT", [(4, 8)], [(4, 9)])) == {"in0": 4 * 16 * 4}
    assert copies(one_node("DFT", [(4, 8)], [(4, 5)])) == {}
