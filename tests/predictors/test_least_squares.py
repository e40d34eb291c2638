"""Least squares find what made the errors, and an outlier does not lead them astray."""

import numpy as np
import pytest

from foretell.predictors.least_squares import solve


def test_a_curve_is_found_although_one_point_is_far_off():
    places = np.linspace(0.0, 1.0, 20)
    truth = np.exp(0.7 * places) + 0.2
    truth[3] += 5.0

    def errors(parameters: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        predicted = np.exp(parameters[0] * places)
        return predicted + parameters[1] - truth, np.column_stack([places * predicted, np.ones(len(places))])

    assert solve(errors, np.zeros(2), delta=0.01) == pytest.approx([0.7, 0.2], abs=0.02)
    assert abs(solve(errors, np.zeros(2), delta=100.0)[1] - 0.2) > 0.1, "where nothing is bent, it does"


def test_an_optimal_start_is_kept():
    result = solve(lambda parameters: (parameters - 3.0, np.eye(1)), np.array([3.0]), delta=0.1)
    assert result.tolist() == [3.0]
