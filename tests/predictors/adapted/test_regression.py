"""Factors: one measurement moves little, many find the truth, intervals begin wide and hold it."""

import numpy as np
import pytest

from foretell.predictors.adapted.regression import LATENCY_PARTS, fit
from foretell.predictors.adapted.units import CLASSES, SIMILARITIES, WIDTH, Work

PRIOR = LATENCY_PARTS.scaled(0.3, 0.3)
PRODUCTS, ELEMENTWISE = 1 + CLASSES.index("products"), 1 + CLASSES.index("elementwise")


def work(share: float, random: np.random.Generator) -> Work:
    """Ten units: products take a share of the time, elementwise ones the rest."""
    rows = np.zeros((10, WIDTH), np.float32)
    rows[:, 0] = 1.0
    rows[:5, PRODUCTS], rows[5:, ELEMENTWISE] = 1.0, 1.0
    rows[:, 1 + len(CLASSES) :] = random.standard_normal((10, SIMILARITIES)) / np.sqrt(SIMILARITIES)
    return Work(rows, np.repeat([share / 5, (1 - share) / 5], 5) * 100.0)


def drawn(
    number: int, factors: tuple[float, float], noise: float = 0.01, seed: int = 0
) -> tuple[list[Work], np.ndarray]:
    random = np.random.default_rng(seed)
    works = [work(share, random) for share in random.uniform(0.05, 0.95, number)]
    shares = np.array([float(one.spent_us[:5].sum()) / 100.0 for one in works])
    ratios = np.log(shares * factors[0] + (1 - shares) * factors[1]) + noise * random.standard_normal(number)
    return works, ratios


def test_many_measurements_find_the_factors_of_classes() -> None:
    works, ratios = drawn(64, (1.6, 0.8))
    found = fit(works, ratios, [str(place) for place in range(64)], PRIOR).factors
    new, truth = drawn(50, (1.6, 0.8), 0.0, seed=1)
    off = [found.ratio(one) - expected for one, expected in zip(new, truth, strict=True)]
    assert np.abs(off).mean() < 0.04
    assert np.abs(truth).mean() > 0.15, "without the factors the error would be large"


def test_one_measurement_moves_an_answer_towards_it_and_not_all_the_way() -> None:
    works, ratios = drawn(1, (1.5, 1.5))
    found = fit(works, ratios, ["a"], PRIOR).factors
    other, _ = drawn(1, (1.0, 1.0), seed=3)
    assert 0 < found.ratio(other[0]) < 0.5 * ratios[0]


def test_one_measurement_that_is_absurd_says_nothing_and_two_that_agree_do() -> None:
    other = drawn(1, (1.0, 1.0), seed=3)[0][0]
    works, ratios = drawn(2, (20.0, 20.0))
    ratio, width = fit(works[:1], ratios[:1], ["a"], PRIOR).factors.of(other)
    assert ratio < 0.3
    assert ratio + width > 2.0, "but it is not ruled out"
    assert fit(works, ratios, ["a", "b"], PRIOR).factors.ratio(other) > 2.0


def test_one_odd_measurement_among_many_hardly_counts() -> None:
    works, ratios = drawn(20, (1.1, 1.1))
    groups = [str(place) for place in range(20)]
    odd = ratios.copy()
    odd[0] += 2.0
    other = drawn(1, (1.0, 1.0), seed=3)[0][0]
    right, spoiled = (fit(works, values, groups, PRIOR).factors.ratio(other) for values in (ratios, odd))
    assert spoiled == pytest.approx(right, abs=0.05)


def test_intervals_narrow_with_measurements_and_hold_nine_in_ten() -> None:
    new, truth = drawn(200, (1.6, 0.8), 0.05, seed=1)
    widths = []
    for number in (1, 8, 64):
        works, ratios = drawn(number, (1.6, 0.8), 0.05)
        found = fit(works, ratios, [str(place) for place in range(number)], PRIOR).factors
        answers = [found.of(one) for one in new]
        widths.append(np.mean([width for _, width in answers]))
    assert widths[0] > widths[1] > widths[2]
    inside = np.mean([abs(ratio - expected) <= width for (ratio, width), expected in zip(answers, truth, strict=True)])
    assert 0.8 <= inside <= 0.99


def test_leaving_out_is_a_fit_without_the_group() -> None:
    works, ratios = drawn(12, (1.4, 0.9), 0.05)
    groups = ["a", "a", "b", *(str(place) for place in range(9))]
    whole = fit(works, ratios, groups, PRIOR)
    without = fit(works[2:], ratios[2:], groups[2:], PRIOR).factors
    for place in (0, 1):
        assert whole.left_out[place] == pytest.approx(ratios[place] - without.ratio(works[place]), abs=0.04)


def test_what_does_not_help_architectures_left_out_is_given_up() -> None:
    """Errors of single models, of which others know nothing, around a base that is right."""
    groups = [str(place) for place in range(16)]
    given_up = 0
    for seed in range(12):
        works, _ = drawn(16, (1.0, 1.0), seed=seed)
        ratios = 0.2 * np.random.default_rng(seed).standard_t(3, 16)
        found = fit(works, ratios, groups, PRIOR)
        # what is learned is never farther off, on architectures left out, than the base
        assert np.abs(found.left_out).mean() <= np.abs(ratios).mean() + 1e-9
        given_up += not found.factors.weights.any()
    assert given_up >= 4
    works, ratios = drawn(16, (1.5, 1.4))
    assert fit(works, ratios, groups, PRIOR).factors.ratio(works[0]) > 0.3
