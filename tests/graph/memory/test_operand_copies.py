"""Copies that products make of their operands."""

from math import prod

import pytest

from foretell.graph import Graph, Node
from foretell.graph.ir.layout import layouts
from foretell.graph.memory.operand_copies import einsum_between, kept_copies, operand_copies
from foretell.testing import chain, one_node


def copies(graph: Graph) -> dict[str, int]:
    return operand_copies(graph, graph.nodes[-1], layouts(graph))


def kept(graph: Graph, *needing: str) -> list[int]:
    return kept_copies(graph, graph.nodes[-1], layouts(graph), frozenset(needing))


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


def test_a_copy_is_kept_for_the_gradient_of_its_partner_alone() -> None:
    swap = Node("t", "Transpose", ("x",), ("t",), {"perm": (1, 0, 2)})
    linear = Node("g", "Gemm", ("t", "w", "w_bias"), ("y",))
    shapes = {"x": (5, 2, 4), "t": (2, 5, 4), "w": (6, 4), "w_bias": (6,), "y": (2, 5, 6)}
    graph = chain([swap, linear], shapes, ["x"], ["y"])
    assert kept(graph, "w") == [2 * 5 * 4 * 4]
    assert kept(graph, "t", "w_bias") == kept(graph) == []
    square = Node("m", "MatMul", ("t", "t"), ("y",))  # is its own partner
    swap = Node("t", "Transpose", ("x",), ("t",), {"perm": (0, 2, 1, 3)})
    graph = chain([swap, square], {"x": (2, 4, 3, 4), "t": (2, 3, 4, 4), "y": (2, 3, 4, 4)}, ["x"], ["y"])
    assert kept(graph, "t") == [2 * 3 * 4 * 4 * 4]


def test_a_padded_signal_is_kept_whatever_needs_a_gradient() -> None:
    assert kept(one_node("DFT", [(4, 8)], [(4, 9)])) == [4 * 16 * 4]


# every operand has two axes to merge that lie apart, and is copied
TERMS = ("paiq", "pabqc", "badce", "dafeg", "fahgk")
SIZES = dict(zip("apqibcdefghk", (2, 3, 4, 5, 2, 7, 3, 2, 4, 5, 2, 5)))


@pytest.mark.parametrize("count", [2, 4, 5])
def test_the_copies_that_torch_saves_of_an_einsum(count: int) -> None:
    torch = pytest.importorskip("torch")
    terms = TERMS[:count]
    equation = ",".join(terms) + "->ai" + "".join(c for c in terms[-1] if c not in "a" + "".join(terms[:-1]))
    names = [f"in{place}" for place in range(count)]
    shapes = {name: tuple(SIZES[axis] for axis in term) for name, term in zip(names, terms)}
    shapes["y"] = tuple(SIZES[axis] for axis in equation.partition("->")[2])
    graph = chain([Node("e", "Einsum", tuple(names), ("y",), {"equation": equation})], shapes, names, ["y"])
    bytes_of = {name: prod(shapes[name]) * 4 for name in names}
    assert len(set(bytes_of.values())) == count
    assert copies(graph) == bytes_of
    for needing in names:
        operands = {name: torch.zeros(shapes[name], requires_grad=name == needing) for name in names}
        own = {tensor.data_ptr() for tensor in operands.values()}
        saved = []  # holds them, so that no later one gets the place of an earlier one
        with torch.autograd.graph.saved_tensors_hooks(lambda t: saved.append(t) or t, lambda t: t):  # noqa: B023
            torch.einsum(equation, *operands.values())
        sizes = {t.untyped_storage().nbytes() for t in saved if t.untyped_storage().data_ptr() not in own}
        assert sorted(sizes & {*bytes_of.values()}) == sorted(kept(graph, needing)), needing
