"""Predictors: robust least squares: small errors count by their square, large ones by their size."""

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

_STEPS = 300
_FIRST_DAMPING, _TINY = 1e-2, 1e-9

Values = NDArray[np.float64]


def solve(
    errors_at: Callable[[Values], tuple[Values, Values]], parameters: Values, delta: float, steps: int = _STEPS
) -> Values:
    """Minimise a pseudo-Huber loss with damped Gauss–Newton steps (Levenberg–Marquardt), and return the parameters.

    ``errors_at`` returns all errors at some parameters, and their slopes (the Jacobian); an error larger than ``delta``
    counts by its size. Each step solves a weighted least-squares problem in which an error has the weight 1 / √(1 +
    (error / bend)²). A step that does not lower the loss is not taken; the damping grows instead.

    K. Levenberg, 1944; D. Marquardt, 1963. The result is a local minimum: callers start close to it, and their problems
    have few parameters.
    """
    damping, (errors, slopes) = _FIRST_DAMPING, errors_at(parameters)
    for _ in range(steps):
        weights = 1.0 / np.sqrt(1.0 + (errors / delta) ** 2)
        normal = (slopes.T * weights) @ slopes
        # Marquardt's scaling: damping follows the diagonal, so that the units of a parameter do not matter
        damped = normal + damping * np.diag(np.diag(normal) + _TINY)
        step = np.linalg.solve(damped, -slopes.T @ (weights * errors))
        tried_errors, tried_slopes = errors_at(parameters + step)
        gain = _loss(errors, delta) - _loss(tried_errors, delta)
        if gain > 0:
            parameters, errors, slopes, damping = parameters + step, tried_errors, tried_slopes, damping / 3
            # converged: the last step hardly helped
            if gain < _TINY * _loss(errors, delta):
                break
        else:
            damping *= 4
    return parameters


def _loss(errors: Values, delta: float) -> float:
    return float((np.sqrt(1.0 + (errors / delta) ** 2) - 1.0).sum()) * delta**2
