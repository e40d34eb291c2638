"""How an einsum is carried out: copies and strides as in torch. Views are tested with the layouts."""

from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from foretell.graph.ir.strides import contiguous, plan_einsum

SIZES = dict(zip("bhijkd", (2, 3, 4, 5, 6, 7)))


def shape(term: str) -> tuple[int, ...]:
    return tuple(SIZES[axis] for axis in term)


@st.composite
def products(draw: st.DrawFn) -> tuple[str, str, str]:
    """Two operands, and a result that has some of their axes."""
    left, right = (draw(st.permutations(list("bhijkd")))[: draw(st.integers(1, 4))] for _ in range(2))
    axes = list(dict.fromkeys((*left, *right)))
    result = draw(st.permutations(axes))[: draw(st.integers(0, len(axes)))]
    return "".join(left), "".join(right), "".join(result)


@settings(max_examples=150, deadline=None)
@given(products())
def test_the_result_lies_as_in_torch(terms: tuple[str, str, str]) -> None:
    torch = pytest.importorskip("torch")
    left, right, result = terms
    plan = plan_einsum(
        f"{left},{right}->{result}", [shape(left), shape(right)], [contiguous(shape(t)) for t in terms[:2]]
    )
    summed = [axis for axis in left if axis in right and axis not in result]
    alone = [axis for one, other in ((left, right), (right, left)) for axis in one if axis not in other + result]
    if summed and not alone:
        out = torch.einsum(f"{left},{right}->{result}", torch.zeros(shape(left)), torch.zeros(shape(right)))
        assert plan is not None
        assert plan.strides == out.stride()


def test_operands_are_copied_where_their_axes_cannot_be_merged() -> None:
    plan = plan_einsum("bhid,bhjd->bhij", [(2, 3, 4, 7), (2, 3, 5, 7)], [(84, 28, 7, 1), (105, 35, 7, 1)])
    assert plan is not None
    assert plan.copied == ()
    # heads in between: b and h are no one axis
    plan = plan_einsum("bihd,bjhd->bhij", [(2, 4, 3, 7), (2, 5, 3, 7)], [(84, 21, 7, 1), (105, 21, 7, 1)])
    assert plan is not None
    assert plan.copied == (0, 1)
    assert plan.copies == (2 * 4 * 3 * 7, 2 * 5 * 3 * 7)


def test_an_outer_product_copies_nothing() -> None:
    plan = plan_einsum("bi,bj->bij", [(2, 4), (2, 5)], [(1, 2), (5, 1)])
    assert plan is not None
    assert plan.copied == ()


def test_of_three_operands_the_cheapest_pair_is_first() -> None:
    shapes = [(100, 2), (2, 100), (100, 3)]
    plan = plan_einsum("ij,jk,kl->il", shapes, [contiguous(size) for size in shapes])
    assert plan is not None
    assert plan.between == (2 * 3,)  # not 100 × 100


@pytest.mark.parametrize("equation", ["ij,jk", "...i,ij->...j", "ii,ij->j", "ij->ji,x", "ijk,jk->i"])
def test_what_is_not_looked_into(equation: str) -> None:
    shapes = [(2, 2), (2, 2)]
    assert plan_einsum(equation, shapes, [(2, 1), (2, 1)]) is None


def test_contiguous_strides_fall() -> None:
    assert all(a >= b for a, b in pairwise(contiguous((3, 1, 4, 2))))
