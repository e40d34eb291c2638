"""All units of many samples, one below the other."""

import numpy as np
import pytest

from foretell.predictors.unit.rows import UnitRows
from small.small_samples import small_samples


def test_rows_follow_their_samples():
    samples = small_samples()
    rows = UnitRows.of(samples)
    assert len(rows.features) == sum(len(sample.units) for sample in samples)
    for number in (0, 7, len(samples) - 1):
        np.testing.assert_array_equal(rows.features[rows.part(number)], samples[number].units.features)
        assert (rows.owner[rows.part(number)] == number).all()


def test_sums_count_equal_units():
    samples = small_samples()
    rows = UnitRows.of(samples)
    expected = [float((sample.units.bound_us * sample.units.counts).sum()) for sample in samples]
    np.testing.assert_allclose(rows.sums(rows.bound_us), expected)


def test_means_are_weighed_by_time():
    samples = small_samples()
    rows = UnitRows.of(samples)
    np.testing.assert_allclose(rows.means(rows.bound_us, np.full(len(rows.counts), 300.0)), 300.0)
    first = rows.part(0)
    spent = rows.bound_us[first] * rows.counts[first]
    values = np.arange(len(rows.counts), dtype=np.float64)
    assert rows.means(rows.bound_us, values)[0] == pytest.approx((spent * values[first]).sum() / spent.sum())


def test_what_was_not_traced_or_replayed_is_known():
    samples = small_samples()
    rows = UnitRows.of(samples)
    traced = [sample.unit_us is not None for sample in samples]
    assert [bool(rows.is_traced[rows.part(number)].all()) for number in range(len(samples))] == traced
    assert rows.is_replayed.tolist() == [sample.captured for sample in samples]
