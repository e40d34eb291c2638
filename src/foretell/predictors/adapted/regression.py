"""Predictors: adapted: factors on the times of units, from measurements of whole workloads.

Model. A measured time is Σ tᵤ exp(hᵤ) over the units of a workload: tᵤ is what the base predicts, hᵤ = rowᵤ · w a sum
of three logarithms: one for the whole device, one for the unit's class, one for units like it
(`foretell.predictors.adapted.units`). The weights w have a normal prior around 0, that is around the base. Its widths
say how far each part may go; they are shares of how far off the base says that it may be. So one measurement moves the
device's factor a little, and many determine the factors of classes and of single kinds of units: this is ridge
regression, or a Gaussian process with three nested kernels (C. Rasmussen and C. Williams, 2006, chapter 2).

The logarithm of the sum is not linear in w, so the fit is Gauss–Newton: the row of a workload is the mean of its units'
rows, weighted by their present times. Errors have heavy tails, so a measurement that contradicts all others counts less
(Student's t with `_FREEDOM` degrees; K. Lange et al., JASA 84, 1989). How wide the prior is altogether is chosen by its
evidence as soon as there are a few measurements; from the first one on, a device may turn out to be far off as a whole.

Measurements may teach nothing about architectures that are not among them. So each architecture is left out in turn,
and of the logarithms that were learned as large a share is kept as makes these errors smallest (`_kept`).

Intervals. Each architecture is left out in turn (in closed form), and its error is divided by the standard deviation
that the others give it. The quantile of these scores that covers nine in ten scales all intervals. While there are few,
the scores of a t distribution with four degrees of freedom stand beside them, so that intervals begin wide.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import product

import numpy as np
from numpy.typing import NDArray

from foretell.predictors.adapted.units import CLASSES, WIDTH, Values, Work

_ROUNDS = 8
_FREEDOM = 4.0
_LARGEST = math.log(500.0)  # no factor goes beyond
_FEW = 4  # with fewer measurements the prior is not questioned
_PRIOR_SCORES = 20
_DOUBT = 10.0
_COVERED = 0.9
_MULTIPLIERS = (0.25, 0.35, 0.5, 0.7, 1.0, 1.4, 2.0, 3.0)
_NOISES = (0.5, 1.0, 2.0)
_ODD = 4.0
_SINGLE, _SINGLE_NOISE = 1.0, 2.0
_SHARES = (1.0, 0.75, 0.5, 0.25, 0.0)  # of what was learned
_FAR = (1.0, 4.0, 12.0)  # a device may be far off as a whole: a heavy tail, in three steps


@dataclass(frozen=True)
class Widths:
    """How far the parts of a logarithm scatter: of the device, of classes, of alike units, and by chance."""

    device: float
    classes: float
    units: float
    noise: float

    def variances(self) -> Values:
        """The prior variance of every weight."""
        return np.repeat([self.device**2, self.classes**2, self.units**2], [1, len(CLASSES), WIDTH - 1 - len(CLASSES)])

    def scaled(self, factor: float, noise: float) -> "Widths":
        """Another prior of the same proportions."""
        return Widths(self.device * factor, self.classes * factor, self.units * factor, self.noise * noise)


# Of the standard deviation that the base states: chosen on devices that judge nothing (docs/lab/0036-adapt.md).
LATENCY_PARTS = Widths(0.4, 0.4, 1.0, 0.25)
POWER_PARTS = Widths(0.6, 0.4, 0.8, 0.4)
MEMORY_PARTS = Widths(0.8, 0.0, 0.0, 0.6)


@dataclass(frozen=True)
class Factors:
    """What was learned: the mean of the weights, and how much of their prior variance the measurements explained."""

    weights: Values
    widths: Widths
    explained: Values  # one row for each measurement: prior variance − explainedᵀ explained is the posterior one
    quantile: float

    def of_units(self, rows: NDArray[np.float32]) -> Values:
        """The factor of each unit."""
        return np.exp(np.clip(rows @ self.weights, -_LARGEST, _LARGEST))

    def of(self, work: Work) -> tuple[float, float]:
        """The logarithm of the factor of a whole workload, and half of the width of its interval."""
        return self.ratio(work), self.quantile * self.deviation(work)

    def ratio(self, work: Work) -> float:
        """The logarithm of the factor of a whole workload."""
        return math.log(float(work.spent_us @ self.of_units(work.rows)) / float(work.spent_us.sum()))

    def deviation(self, work: Work) -> float:
        """The standard deviation of what would be measured, in logarithms."""
        row = _weighted(work, self.weights)[0]
        prior = float((row**2 * self.widths.variances()).sum())
        return math.sqrt(max(prior - float(((self.explained @ row) ** 2).sum()), 0.0) + self.widths.noise**2)


@dataclass(frozen=True)
class Fit:
    """Factors, and for each measurement the error (a logarithm) when its architecture is left out."""

    factors: Factors
    left_out: Values
    deviations: Values


def fit(works: Sequence[Work], ratios: Values, groups: Sequence[str], widths: Widths) -> Fit:
    """Learn factors from the logarithms of measured over predicted; ``groups`` are left out together."""
    measured = ratios
    if len(works) == 1:
        # a single measurement does not count as farther off than the prior thinks possible: it may be an odd one
        most = _SINGLE * math.hypot(widths.device, widths.classes, widths.units)
        ratios = np.clip(ratios, -most, most)
        widths = replace(widths, noise=_SINGLE_NOISE * widths.noise)
    prior = _likeliest(works, ratios, widths, np.zeros(WIDTH), np.full(len(works), _first_trust(len(works))))
    if len(works) >= _FEW:
        weights, trust = _settle(works, ratios, prior)
        prior = _likeliest(works, ratios, widths, weights, trust)
    weights, trust = _settle(works, ratios, prior)
    rows, present = _linear(works, weights)
    covariance = _covariance(rows, prior, trust)
    root = np.linalg.cholesky(covariance)
    explained = np.linalg.solve(root, rows * prior.variances())
    left_out, deviations = _left_out(covariance, measured - present + rows @ weights, groups)
    # a measurement that is distrusted must not excuse its own error: its chance is that of any other
    chance = prior.noise**2 * (1.0 - 1.0 / trust)
    deviations = np.sqrt(np.maximum(deviations**2 + chance, prior.noise**2))
    kept = _kept(measured, left_out) if len(works) >= _FEW else 1.0
    left_out = measured - kept * (measured - left_out)
    return Fit(Factors(kept * weights, prior, explained, _quantile(left_out / deviations)), left_out, deviations)


def _kept(measured: Values, left_out: Values) -> float:
    """The share of what was learned that architectures which are left out want; none where the base is better."""
    errors = [float(np.abs(measured - share * (measured - left_out)).mean()) for share in _SHARES]
    return _SHARES[int(np.argmin(errors))]


def _settle(works: Sequence[Work], ratios: Values, prior: Widths) -> tuple[Values, Values]:
    """The likeliest weights, and how far each measurement is trusted."""
    at_first = np.full(len(works), _first_trust(len(works)))
    weights, trust, variances = np.zeros(WIDTH), at_first, prior.variances()
    for _ in range(_ROUNDS):
        rows, present = _linear(works, weights)
        target = ratios - present + rows @ weights
        solved = np.linalg.solve(_covariance(rows, prior, trust), target)
        weights = variances * (rows.T @ solved)
        if len(works) >= _FEW:
            off = target - rows @ weights
            trust = at_first * (_FREEDOM + 1) / (_FREEDOM + (off / prior.noise) ** 2)
    return weights, trust


def _first_trust(number: int) -> float:
    """A few measurements may all be odd ones: they count less than many."""
    return 1.0 / (1.0 + _DOUBT / number**2) ** 2


def _linear(works: Sequence[Work], weights: Values) -> tuple[Values, Values]:
    """The row of each workload at the present weights, and the logarithm of its factor."""
    found = [_weighted(work, weights) for work in works]
    return np.array([row for row, _ in found]), np.array([ratio for _, ratio in found])


def _weighted(work: Work, weights: Values) -> tuple[Values, float]:
    spent_us = work.spent_us * np.exp(np.clip(work.rows @ weights, -_LARGEST, _LARGEST))
    total_us = float(spent_us.sum())
    return np.asarray(spent_us @ work.rows / total_us), math.log(total_us / float(work.spent_us.sum()))


def _covariance(rows: Values, prior: Widths, trust: Values) -> Values:
    return np.asarray((rows * prior.variances()) @ rows.T + np.diag(prior.noise**2 / trust))


def _likeliest(works: Sequence[Work], ratios: Values, prior: Widths, weights: Values, trust: Values) -> Widths:
    """The prior under which the measurements are most likely; one far from the given one needs better reasons."""
    rows, present = _linear(works, weights)
    target = ratios - present + rows @ weights
    best, chosen = -math.inf, prior
    # a few measurements can tell that the whole device is far off if they agree, and nothing finer; a single one that
    # is far off may be an odd one
    multipliers, noises = (_MULTIPLIERS, _NOISES) if len(works) >= _FEW else ((1.0,), (1.0, _ODD))
    for factor, noise, far in product(multipliers, noises, _FAR) if len(works) > 1 else ((1.0, 1.0, 1.0),):
        tried = prior.scaled(factor, noise)
        tried = replace(tried, device=tried.device * far)
        root = np.linalg.cholesky(_covariance(rows, tried, trust))
        evidence = -0.5 * float((np.linalg.solve(root, target) ** 2).sum()) - float(np.log(np.diag(root)).sum())
        evidence -= 0.5 * math.log(factor) ** 2 + min(0.5 * math.log(noise) ** 2, abs(math.log(noise))) + math.log(far)
        if evidence > best:
            best, chosen = evidence, tried
    return chosen


def _left_out(covariance: Values, target: Values, groups: Sequence[str]) -> tuple[Values, Values]:
    """For each measurement the error of a fit without its group, and the standard deviation that the fit expected."""
    inverse = np.linalg.inv(covariance)
    solved = inverse @ target
    errors, deviations = np.zeros(len(target)), np.zeros(len(target))
    for group in sorted(set(groups)):
        members = np.flatnonzero(np.array([name == group for name in groups]))
        block = np.linalg.inv(inverse[np.ix_(members, members)])
        errors[members], deviations[members] = block @ solved[members], np.sqrt(np.diag(block))
    return errors, deviations


def _quantile(scores: Values) -> float:
    """The multiple of its standard deviation within which nine in ten errors lie."""
    together = np.sort(np.concatenate([np.abs(scores), _expected_scores()]))
    quantile = float(together[min(math.ceil(_COVERED * (len(together) + 1)), len(together)) - 1])
    # of very few, none is ruled out as an exception
    return max(quantile, float(np.abs(scores).max())) if len(scores) < _FEW else quantile


def _expected_scores() -> Values:
    """Evenly spread quantiles of |t| with four degrees of freedom, which have a closed form (W. Shaw, 2006)."""
    within = (np.arange(_PRIOR_SCORES) + 0.5) / _PRIOR_SCORES
    odds = 1.0 - within**2  # 4 p (1 − p), where p = (1 + within) / 2
    return np.asarray(2.0 * np.sqrt(np.cos(np.arccos(np.sqrt(odds)) / 3.0) / np.sqrt(odds) - 1.0))
