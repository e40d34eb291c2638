"""The factor of a unit in fp32 on an older GPU follows its sizes, and nothing is extrapolated."""

import numpy as np
import pytest

from foretell.predictors.transfer.shapes import SHAPED, Shape, products, read_shape

SHAPE = Shape((1.0, 2.0), (1.0, 2.0), 0.5, (1.0, 0.0, 0.0, 0.0, 0.1))


def test_a_shape_has_a_term_for_each_size_and_each_product_of_two() -> None:
    np.testing.assert_allclose(SHAPE.logs(np.array([[1.0, 2.0], [2.0, 2.0], [1.0, 4.0]])), [0.5, 1.5, 0.6])


def test_far_sizes_count_as_near_ones() -> None:
    far, near = products(np.array([[99.0, -99.0], [3.0, -2.0]]), SHAPE.means, SHAPE.deviations)
    np.testing.assert_array_equal(far, near)


def test_a_shape_that_cannot_be_is_refused() -> None:
    count = len(SHAPED["rows"].sizes)
    terms = [0.0] * (count * (count + 3) // 2)
    good = {"means": [0.0] * count, "deviations": [1.0] * count, "level": 0.0, "terms": terms}
    assert read_shape("rows", good).level == 0.0
    for wrong in ({"terms": [0.0]}, {"level": float("nan")}, {"deviations": [0.0] * count}):
        with pytest.raises(ValueError, match="shape of 'rows'"):
            read_shape("rows", {**good, **wrong})
