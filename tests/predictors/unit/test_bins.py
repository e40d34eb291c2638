"""Bins of sizes: a size is through those below it, none of those above, and part of its own."""

import numpy as np
import pytest

from foretell.features.encoded import ENCODED_WIDTH, MEASURED_WIDTH
from foretell.predictors.unit.bins import Bins


@pytest.fixture
def numbers() -> np.ndarray:
    return np.random.default_rng(0).normal(size=(7000, ENCODED_WIDTH)).astype(np.float32)


def test_each_size_has_bins_of_as_many_rows(numbers: np.ndarray) -> None:
    numbers[:, 1] = 3.0  # what never changes has none
    numbers[:, 2] = numbers[:, 2] > 0
    bins = Bins.of(numbers, 8)
    assert np.bincount(bins.columns).tolist() == [8, 0, 1, *[8] * (MEASURED_WIDTH - 3)]
    inside = (numbers[:, [0]] >= bins.lows[:8]) & (numbers[:, [0]] < bins.lows[:8] + bins.widths[:8])
    np.testing.assert_allclose(inside.mean(axis=0), 1 / 8, atol=0.03)


def test_bins_encode_the_position_of_a_size(numbers: np.ndarray) -> None:
    bins = Bins.of(numbers, 4)
    positions = bins.with_positions(numbers)
    np.testing.assert_array_equal(positions[:, :ENCODED_WIDTH], numbers)
    first = positions[:, ENCODED_WIDTH : ENCODED_WIDTH + 4]
    assert (np.diff(first, axis=1) <= 0).all()  # what is not through one is not in the next
    known = first.sum(axis=1) > 0
    inside = (numbers[:, 0] > bins.lows[0]) & (numbers[:, 0] < bins.lows[3] + bins.widths[3])
    assert (known == (numbers[:, 0] > bins.lows[0])).all()
    np.testing.assert_allclose(
        bins.lows[0] + (first * bins.widths[:4]).sum(axis=1)[inside], numbers[inside, 0], atol=1e-5
    )


def test_without_bins_numbers_stay(numbers: np.ndarray) -> None:
    bins = Bins.of(numbers, 0)
    assert not len(bins)
    np.testing.assert_array_equal(bins.with_positions(numbers), numbers)
