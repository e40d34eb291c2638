import numpy as np
import pytest

from lab.papers.lilou.input_sizes import lines, side_of


def test_only_pictures_have_a_side():
    assert side_of("3x32x64") == 32
    assert side_of("128") is None
    assert side_of("20x3") is None


def test_errors_are_grouped_by_the_side():
    sides = np.array([32, 32, 224])
    found = list(lines(sides, np.array([1.0, 2.0, 4.0]), {"x": np.array([1.5, 3.0, 4.4])}))
    assert "1 – 47 px (2)" in found[0]
    cells = found[2].split(" | ")
    assert cells[1] == "50.0"
    assert cells[5] == "10.0"
    assert float(cells[7]) == pytest.approx((50 + 50 + 10) / 3, abs=0.1)
