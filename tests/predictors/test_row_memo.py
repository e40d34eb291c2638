"""Rows are computed once; along a smooth column they are interpolated, between kinks only."""

import numpy as np
import pytest

from foretell.features import COLUMNS
from foretell.features.encoded import encode
from foretell.features.reuse import MOVED_IN_ALL
from foretell.predictors.row_memo import RowMemo, Smooth
from foretell.predictors.unit.predictor import shipped
from tests.small.small_samples import small_samples

KINK = 20.3


def column(*values):
    return np.array(values, np.float32)[:, None]


class Counted:
    """A function of rows that counts how many it was asked for."""

    def __init__(self, function):
        self.function, self.asked = function, 0

    def __call__(self, rows, beside):
        self.asked += len(rows)
        return self.function(rows, beside)


def tenfold(rows, beside):
    return rows.astype(np.float64) * 10.0 + beside[:, None]


def asked_of(memo, rows, beside=0.0):
    """The values of some rows, and how many had to be computed."""
    compute = Counted(tenfold)
    return memo.values(rows, np.full(len(rows), beside), compute).ravel().tolist(), compute.asked


def test_each_row_is_computed_once():
    memo = RowMemo(1)
    assert asked_of(memo, column(1, 2, 1)) == ([10, 20, 10], 2)
    assert asked_of(memo, column(3, 2)) == ([30, 20], 1)
    assert asked_of(memo, column(1, 2, 3)) == ([10, 20, 30], 0)
    assert asked_of(memo, column(1), beside=0.5) == ([10.5], 1)
    assert asked_of(memo, np.empty((0, 1), np.float32)) == ([], 0)


def test_it_grows_up_to_its_limit_and_starts_again():
    memo = RowMemo(1, most=1000)
    assert asked_of(memo, column(*range(900)))[1] == 900
    assert asked_of(memo, column(*range(850, 1050))) == ([10 * i for i in range(850, 1050)], 150)
    assert asked_of(memo, column(*range(900, 1050))) == ([10 * i for i in range(900, 1050)], 0)
    assert asked_of(memo, column(*range(2000)))[0] == [10 * i for i in range(2000)], "larger than the memo"


def bent(rows, beside):
    """Smooth in the second column, but for a kink; the first column sets curves apart."""
    at = rows[:, 1].astype(np.float64)
    return np.stack([np.sin(at / 3.0) + np.abs(at - np.float32(KINK)) + rows[:, 0], beside], axis=1)


def rows_at(places, first=1.0):
    return np.stack([np.full(len(places), first), places], axis=1).astype(np.float32)


def test_a_smooth_column_is_interpolated_once_it_was_asked_often_enough():
    memo, compute = RowMemo(2, smooth=Smooth.along(1, np.array([10.0, np.float32(KINK), 30.0]))), Counted(bent)
    draw = np.random.default_rng(0)
    for part in range(40):
        rows = rows_at(draw.uniform(18.0, 23.0, 50), first=part % 2)
        expected = bent(rows, np.arange(50.0) % 3)
        assert memo.values(rows, np.arange(50.0) % 3, compute) == pytest.approx(expected, abs=1e-7)
    # two first columns, three numbers beside them, six intervals between 18 and 23 with the kink
    curves = 2 * 3 * 6
    assert 5 * curves <= compute.asked <= 10 * curves < 40 * 50


def test_a_curve_is_not_drawn_for_a_few_rows():
    memo, compute = RowMemo(2, smooth=Smooth.along(1, np.array([10.0, 30.0]))), Counted(bent)
    places = np.linspace(19.1, 19.9, 5)
    assert memo.values(rows_at(places), np.zeros(5), compute) == pytest.approx(bent(rows_at(places), np.zeros(5)))
    assert compute.asked == 5
    memo.values(rows_at(places), np.zeros(5), compute)
    assert compute.asked == 5, "these rows are known as they are"


def test_without_a_smooth_column_nothing_is_interpolated():
    memo, compute = RowMemo(2), Counted(bent)
    memo.values(rows_at(np.linspace(19.1, 19.9, 200)), np.zeros(200), compute)
    assert compute.asked == 200


def test_values_beyond_all_intervals_and_in_narrow_ones_are_computed():
    smooth = Smooth.along(1, np.array([10.0, 20.0, 20.001, 30.0]))
    places = np.array([-50.0, 500.0, 20.0005, 20.5], np.float32)
    assert (smooth.interval(places) >= 0).tolist() == [False, False, False, True]
    memo = RowMemo(2, smooth=smooth)
    for _ in range(20):
        draw = np.random.default_rng(0).uniform(100.0, 200.0, 30)
        assert memo.values(rows_at(draw), np.zeros(30), bent) == pytest.approx(bent(rows_at(draw), np.zeros(30)))


def test_the_curves_of_the_shipped_network_are_the_network_to_six_digits():
    """Between the kinks that it names, at random places; log(time / bound) of every unit."""
    network = shipped("h200", "unit-network").network
    sample = max(small_samples(), key=lambda one: len(one.units))
    features, at = sample.units.features[:40], COLUMNS.index(MOVED_IN_ALL)
    bound_us, smooth = sample.units.bound_us[:40], network.smooth
    draw = np.random.default_rng(1)

    def told(place):
        rows = features.copy()
        rows[:, at] = place
        return network.predict(encode(rows), bound_us).log_ratio, rows[:, at]

    for interval in draw.choice(np.arange(5, len(smooth.nodes) - 8), 6, replace=False):
        nodes = np.stack([told(node)[0] for node in smooth.nodes[interval]], axis=1)
        expected, places = told(draw.uniform(smooth.edges[interval], smooth.edges[interval + 1]))
        found = smooth.interval(places)
        if found[0] >= 0:
            assert (smooth.weights(places, found) * nodes).sum(axis=1) == pytest.approx(expected, abs=4e-6)
