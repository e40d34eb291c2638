"""Who slows whom, by the rule of thumb and by a table."""

import pytest

from foretell.scheduling import Contention, MeasuredSlowdowns, PlaceKind
from scheduling.worlds import H200, KIND, profile

SLICED = PlaceKind(KIND.name, H200, None, "time-slicing", 3)


def test_alone_nobody_is_slowed() -> None:
    assert Contention()(KIND, [profile(0)]) == [1.0]
    assert MeasuredSlowdowns({}, Contention())(KIND, [profile(0)]) == [1.0]


def test_what_fits_together_is_not_slowed() -> None:
    small = profile(0, sm_share=0.5, bandwidth_share=0.5)
    assert Contention()(KIND, [small, small]) == [1.0, 1.0]


def test_the_scarcest_resource_decides() -> None:
    compute, memory = profile(0, sm_share=0.9, bandwidth_share=0.1), profile(1, sm_share=0.1, bandwidth_share=0.9)
    assert Contention()(KIND, [compute, memory]) == pytest.approx([1.0, 1.0])
    assert Contention()(KIND, [memory, memory]) == pytest.approx([1.8, 1.8])
    assert Contention()(KIND, [compute, compute]) == pytest.approx([1.8, 1.8])


def test_time_slices_add_up_as_measured() -> None:
    busy, idle = profile(0), profile(1, utilisation=0.0)
    assert Contention()(SLICED, [busy, busy]) == pytest.approx([2.21, 2.21])  # measured: 2.21 in the median
    assert Contention()(SLICED, [busy] * 3) == pytest.approx([3.315] * 3)  # measured: 3.31
    assert Contention()(SLICED, [busy, idle])[0] == 1.0


def test_a_table_answers_in_any_order_and_others_for_the_rest() -> None:
    one, two, three = profile(0), profile(1), profile(2)
    table = MeasuredSlowdowns({("mps", ("p0", "p1")): (1.2, 1.7)}, lambda kind, members: [5.0] * len(members))
    assert table(KIND, [one, two]) == [1.2, 1.7]
    assert table(KIND, [two, one]) == [1.7, 1.2]
    assert table(KIND, [one, three]) == [5.0, 5.0]
    assert table(SLICED, [one, two]) == [5.0, 5.0]
