import pytest

from lab.papers.trappm.shares import Judged, by_share, differences, interval

JUDGED = [
    Judged(arm, share, "random", seed, error + 0.01 * seed)
    for share in (25.0, 100.0)
    for arm, error in (("pre-trained", 0.10), ("none", 0.12), ("pre-trained 96 wide", 0.2), ("none 96 wide", 0.1))
    for seed in range(3)
]


def test_an_interval_needs_two_values_and_shrinks_with_more():
    assert interval([1.0]) == float("inf")
    assert interval([2.0, 2.0]) == 0
    assert interval([1.0, 2.0, 3.0] * 3) < interval([1.0, 2.0, 3.0])
    assert interval([1.0, 3.0]) == pytest.approx(12.71)


def test_arms_stand_by_share_with_their_seeds():
    table = by_share(JUDGED, "random")
    assert "| pre-trained | 11.0 ± 2.5 (3) | 11.0 ± 2.5 (3) |" in table
    assert "25 % of the labels | 100 % of the labels" in table
    assert "pre-trained" not in by_share(JUDGED, "architecture")


def test_differences_are_paired_by_seed_and_by_width():
    table = differences(JUDGED, "random")
    assert "| pre-trained − none | -2.0 ± 0.0 (3) | -2.0 ± 0.0 (3) |" in table
    assert "| pre-trained 96 wide − none 96 wide | 10.0 ± 0.0 (3) | 10.0 ± 0.0 (3) |" in table
    assert "as published" not in differences(
        [*JUDGED, Judged("pre-trained as published", 25.0, "random", 0, 0.1)], "random"
    )


def test_what_is_missing_is_a_dash_and_one_seed_says_so():
    table = by_share([JUDGED[0], Judged("none", 100.0, "random", 0, 0.1)], "random")
    assert "| none | – | 10.0 (one seed) |" in table
