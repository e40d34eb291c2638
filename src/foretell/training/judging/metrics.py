"""Training: metrics: errors of predicted positive quantities, their ranks, and the coverage of intervals.

All errors are shares of the truth: 0.04 is four per cent. The truth must be positive and everything finite. A metric of
nothing, of a zero or of a NaN is an error, never a number.
"""

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from foretell.errors import DataError

Values = NDArray[np.float64]
WITHIN = 0.10


@dataclass(frozen=True, slots=True)
class Accuracy:
    """The accuracy of one predictor on one set; ``kendall_tau`` is None where all values tie."""

    count: int
    mape: float
    median_ape: float
    p95_ape: float
    within_10_percent: float
    kendall_tau: float | None


@dataclass(frozen=True, slots=True)
class MeanSpread:
    """A metric over seeds: its mean, and the standard deviation of a sample (0 for one seed)."""

    mean: float
    spread: float
    seeds: int

    def __str__(self) -> str:
        return f"{self.mean:.4g} ± {self.spread:.2g}"


def accuracy(truth: ArrayLike, predicted: ArrayLike) -> Accuracy:
    """All metrics of point predictions at once.

    >>> accuracy([1.0, 2.0, 4.0], [1.1, 2.0, 3.0]).within_10_percent == 2 / 3
    True
    """
    return Accuracy(
        count=len(_apes(truth, predicted)),
        mape=mape(truth, predicted),
        median_ape=median_ape(truth, predicted),
        p95_ape=p95_ape(truth, predicted),
        within_10_percent=share_within(truth, predicted),
        kendall_tau=kendall_tau(truth, predicted),
    )


def mape(truth: ArrayLike, predicted: ArrayLike) -> float:
    """The mean of the absolute errors as shares of the truth.

    >>> mape([1.0, 2.0, 4.0], [1.5, 2.0, 5.0])
    0.25
    """
    return float(np.mean(_apes(truth, predicted)))


def median_ape(truth: ArrayLike, predicted: ArrayLike) -> float:
    """Half of the predictions are at most this far off.

    >>> median_ape([1.0, 2.0, 4.0], [1.5, 2.0, 5.0])
    0.25
    """
    return float(np.median(_apes(truth, predicted)))


def p95_ape(truth: ArrayLike, predicted: ArrayLike) -> float:
    """Nineteen in twenty predictions are at most this far off (linear interpolation).

    >>> round(p95_ape([1.0, 1.0, 1.0], [1.0, 1.0, 2.0]), 6)
    0.9
    """
    return float(np.percentile(_apes(truth, predicted), 95))


def share_within(truth: ArrayLike, predicted: ArrayLike, limit: float = WITHIN) -> float:
    """The share of predictions that are off by no more than ``limit`` of the truth.

    >>> share_within([1.0, 10.0, 10.0, 10.0], [1.2, 11.0, 9.0, 9.5])
    0.75
    """
    actual, guess = _pair(truth, predicted)
    slack = (
        8 * np.finfo(np.float64).eps
    )  # a value on the limit counts, although in floating point 11 − 10 is not exactly a tenth of 10
    return float(np.mean(np.abs(guess - actual) <= (limit + slack) * actual))


def kendall_tau(truth: ArrayLike, predicted: ArrayLike) -> float | None:
    """Kendall's τ-b: 1 for the same order, −1 for the reverse; None where one side ties throughout.

    W. R. Knight: A computer method for calculating Kendall's tau with ungrouped data, JASA 61, 1966; O(n log² n) here.

    >>> round(kendall_tau([1.0, 2.0, 3.0, 4.0], [1.0, 3.0, 2.0, 4.0]), 6)
    0.666667
    >>> kendall_tau([1.0, 2.0], [5.0, 5.0]) is None
    True
    """
    actual, guess = _pair(truth, predicted)
    order = np.lexsort((guess, actual))
    actual, guess = actual[order], guess[order]
    pairs = len(actual) * (len(actual) - 1) // 2
    tied_actual, tied_guess = _tied_pairs(actual), _tied_pairs(np.sort(guess))
    tied_both = _tied_pairs(np.unique(np.stack([actual, guess]), axis=1, return_inverse=True)[1].ravel())
    # τ-b would divide by 0
    if pairs in (tied_actual, tied_guess):
        return None
    excess = pairs - tied_actual - tied_guess + tied_both - 2 * _inversions(guess)
    return float(excess / (np.sqrt(pairs - tied_actual) * np.sqrt(pairs - tied_guess)))


def coverage(truth: ArrayLike, low: ArrayLike, high: ArrayLike) -> float:
    """The share of truths that lie in their intervals, ends included.

    >>> coverage([1.0, 2.0, 3.0, 4.0], [1.0, 1.0, 1.0, 1.0], [2.0, 2.0, 2.0, 5.0])
    0.75
    """
    actual, lower, upper = _interval(truth, low, high)
    return float(np.mean((lower <= actual) & (actual <= upper)))


def median_relative_width(predicted: ArrayLike, low: ArrayLike, high: ArrayLike) -> float:
    """The median width of intervals as a share of the predicted value.

    >>> median_relative_width([1.0, 2.0, 4.0], [0.5, 1.5, 3.0], [1.5, 2.5, 5.0])
    0.5
    """
    value, lower, upper = _interval(predicted, low, high)
    return float(np.median((upper - lower) / value))


def over_seeds(values: Iterable[float]) -> MeanSpread:
    """Mean and spread of one metric over repetitions that differ only in their seed.

    >>> str(over_seeds([0.03, 0.04, 0.05]))
    '0.04 ± 0.01'
    """
    numbers = np.array(list(values), dtype=np.float64)
    if not numbers.size or not np.all(np.isfinite(numbers)):
        raise DataError(
            f"Got {numbers.size} values over seeds, {_not_finite(numbers)} of them not finite; "
            "give at least one, all finite."
        )
    return MeanSpread(float(numbers.mean()), float(numbers.std(ddof=1)) if numbers.size > 1 else 0.0, numbers.size)


def _apes(truth: ArrayLike, predicted: ArrayLike) -> Values:
    actual, guess = _pair(truth, predicted)
    return np.asarray(np.abs(guess - actual) / actual, dtype=np.float64)


def _pair(truth: ArrayLike, predicted: ArrayLike) -> tuple[Values, Values]:
    actual, guess = _checked(("truth", truth), ("predicted", predicted))
    _positive("truth", actual)
    return actual, guess


def _interval(value: ArrayLike, low: ArrayLike, high: ArrayLike) -> tuple[Values, Values, Values]:
    middle, lower, upper = _checked(("value", value), ("low", low), ("high", high))
    _positive("value", middle)
    if np.any(lower > upper):
        raise DataError(f"Got {int(np.sum(lower > upper))} intervals whose low end is above the high one; swap them.")
    return middle, lower, upper


def _checked(*named: tuple[str, ArrayLike]) -> tuple[Values, ...]:
    arrays = tuple(np.asarray(values, dtype=np.float64) for _, values in named)
    shapes = ", ".join(f"{name} {array.shape}" for (name, _), array in zip(named, arrays))
    if any(array.ndim != 1 or array.shape != arrays[0].shape for array in arrays):
        raise DataError(f"Got {shapes}; give rows of equal length.")
    if not arrays[0].size:
        raise DataError(f"Got {shapes}; there is no metric of nothing: give at least one value.")
    for (name, _), array in zip(named, arrays):
        if _not_finite(array):
            raise DataError(
                f"Got {_not_finite(array)} values of {name} that are NaN or infinite; leave these rows out."
            )
    return arrays


def _not_finite(values: Values) -> int:
    return int(np.sum(~np.isfinite(values)))


def _positive(name: str, values: Values) -> None:
    if np.any(values <= 0):
        raise DataError(f"Got {int(np.sum(values <= 0))} values of {name} ≤ 0, the least {values.min():g}; errors are "
                        "shares of positive values: leave these rows out.")  # fmt: skip


def _tied_pairs(ordered: NDArray[np.generic]) -> int:
    _, counts = np.unique(ordered, return_counts=True)
    return int(np.sum(counts * (counts - 1) // 2))


def _inversions(values: Values) -> int:
    """The number of pairs in descending order: a merge sort from the bottom, with one sort of the whole array a level.

    >>> _inversions(np.array([3.0, 1.0, 2.0, 2.0]))
    3
    """
    ranks = np.unique(values, return_inverse=True)[1].astype(np.int64)
    count, width, inversions = len(ranks), 1, 0
    place = np.arange(count)
    while width < count:
        block, in_right = place // (2 * width), (place // width) % 2
        # equal values of the left half come first, because a tie is no inversion
        order = np.lexsort((in_right, ranks, block))
        from_right = in_right[order].astype(bool)
        # Before a value of the right half come all values of the left half that are not larger; the rest of the left
        # half is inverted with it. Sorting keeps blocks together, so ``block`` is right after the sort, too.
        seen_left = np.cumsum(~from_right)
        left_until_here = np.minimum((block + 1) * width, count - block * width)
        inversions += int(np.sum((left_until_here - seen_left)[from_right]))
        ranks = ranks[order]
        width *= 2
    return inversions
