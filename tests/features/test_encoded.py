"""Units as a network takes them."""

import numpy as np

from foretell.features import COLUMNS
from foretell.features.encoded import ENCODED_WIDTH, encode
from small.small_samples import small_samples


def _rows() -> np.ndarray:
    return np.concatenate([sample.units.features for sample in small_samples()[:6]])


def test_every_unit_is_a_row_of_numbers_of_a_like_size():
    rows = _rows()
    encoded = encode(rows)
    assert len(encoded) == len(rows)
    assert encoded.numbers.shape == (len(rows), ENCODED_WIDTH)
    assert encoded.numbers.dtype == np.float32
    assert np.isfinite(encoded.numbers).all()
    assert np.abs(encoded.numbers).max() < 64


def test_operators_are_codes_from_one_and_launches_are_counted():
    rows = _rows()
    encoded = encode(rows)
    np.testing.assert_array_equal(encoded.operators, rows[:, 0] + 1)
    np.testing.assert_allclose(encoded.launches, np.exp2(rows[:, COLUMNS.index("launches")]) - 1, rtol=1e-5)
    rows[0, 0] = -1
    assert encode(rows).operators[0] == 0


def test_sizes_that_divide_differ_from_those_that_do_not():
    row = _rows()[:1].repeat(2, axis=0)
    at = COLUMNS.index("channels")
    row[:, at] = (64, 65)
    numbers = encode(row).numbers
    assert (numbers[0] != numbers[1]).sum() >= 5
