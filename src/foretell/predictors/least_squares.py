"""predictors: least squares with outliers bent: small errors count by their square, large ones by their size."""

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

_STEPS = 300
_FIRST_DAMPING, _TINY = 1e-2, 1e-9

Values = NDArray[np.float64]


def solve(errors_at: Callable[[Values], tuple[Values, Values]], parameters: Values, bend: float) -> Values:
    """Damped Gauss–Newton steps; each is taken only where it helps.

    ``errors_at`` tells all errors at some parameters, and their slopes; an error of the size of ``bend`` begins to
    count by its size.
    """
    damping, (errors, slopes) = _FIRST_DAMPING, errors_at(parameters)
    for _ in range(_STEPS):
        bent = 1.0 / np.sqrt(1.0 + (errors / bend) ** 2)
        square = (slopes.T * bent) @ slopes
        damped = square + damping * np.diag(np.diag(square) + _TINY)
        step = np.linalg.solve(damped, -slopes.T @ (bent * errors))
        tried_errors, tried_slopes = errors_at(parameters + step)
        gain = _loss(errors, bend) - _loss(tried_errors, bend)
        if gain > 0:
            parameters, errors, slopes, damping = parameters + step, tried_errors, tried_slopes, damping / 3
            if gain < _TINY * _loss(errors, bend):
                break
        else:
            damping *= 4
    return parameters


def _loss(errors: Values, bend: float) -> float:
    return float((np.sqrt(1.0 + (errors / bend) ** 2) - 1.0).sum()) * bend**2
