import numpy as np
import pytest

from foretell.errors import DataError
from foretell.training.judging import metrics

RANDOM = np.random.default_rng(0)


def tau_by_definition(x, y):
    """Every pair compared: slow and plain."""
    first, second = np.triu_indices(len(x), 1)
    dx, dy = np.sign(x[first] - x[second]), np.sign(y[first] - y[second])
    return np.sum(dx * dy) / np.sqrt(np.sum(dx != 0) * np.sum(dy != 0))


@pytest.mark.parametrize("count", [2, 3, 7, 8, 9, 100, 257])
@pytest.mark.parametrize("levels", [2, 5, 1_000_000])
def test_tau_is_that_of_its_definition_with_and_without_ties(count, levels):
    x = RANDOM.integers(1, levels + 1, count).astype(float)
    y = np.round(x + RANDOM.normal(size=count) * levels / 3)
    x[0], y[0], x[1], y[1] = 1, 1, 2, 2  # no side ties throughout
    assert metrics.kendall_tau(x, y) == pytest.approx(tau_by_definition(x, y), abs=1e-12)


def test_tau_is_scipys_for_many_rows():
    stats = pytest.importorskip("scipy.stats")
    x = np.round(np.exp(RANDOM.normal(size=20_000)), 2) + 0.01
    y = np.round(x * np.exp(0.2 * RANDOM.normal(size=len(x))), 2)
    assert metrics.kendall_tau(x, y) == pytest.approx(stats.kendalltau(x, y).statistic, abs=1e-12)


def test_tau_at_its_ends():
    x = np.arange(1.0, 50.0)
    assert metrics.kendall_tau(x, x**2) == pytest.approx(1)
    assert metrics.kendall_tau(x, -x) == pytest.approx(-1)
    assert metrics.kendall_tau([1.0], [1.0]) is None
    assert metrics.kendall_tau([2.0, 2.0], [1.0, 3.0]) is None


def test_accuracy_gathers_all_metrics():
    truth = np.array([1.0, 2.0, 4.0, 8.0])
    result = metrics.accuracy(truth, truth * [1.0, 1.1, 0.8, 1.5])
    assert result.count == 4
    assert result.mape == pytest.approx(0.2)
    assert result.median_ape == pytest.approx(0.15)
    assert result.p95_ape == pytest.approx(0.2 + 0.85 * 0.3)
    assert result.within_10_percent == 0.5
    assert result.kendall_tau == pytest.approx(1)


@pytest.mark.parametrize("size", [0.001, 0.3, 7.0, 1e9])
def test_what_lies_on_the_limit_is_within_it(size):
    assert metrics.share_within([size, size], [size * 1.1, size * 0.9]) == 1.0
    assert metrics.share_within([size, size], [size * 1.1001, size * 0.8999]) == 0.0


def test_intervals():
    truth, low = np.array([1.0, 2.0, 3.0]), np.array([0.5, 2.0, 3.1])
    assert metrics.coverage(truth, low, low + 1) == pytest.approx(2 / 3)
    assert metrics.median_relative_width(truth, low, low + 1) == pytest.approx(0.5)
    with pytest.raises(DataError, match="1 intervals"):
        metrics.coverage(truth, low, np.array([1.0, 1.0, 4.0]))


def test_spread_over_seeds_is_that_of_a_sample():
    result = metrics.over_seeds([1.0, 2.0, 3.0, 4.0])
    assert (result.mean, result.seeds) == (2.5, 4)
    assert result.spread == pytest.approx(np.sqrt(5 / 3))
    assert metrics.over_seeds([0.5]).spread == 0.0


@pytest.mark.parametrize("metric", [metrics.accuracy, metrics.mape, metrics.share_within, metrics.kendall_tau])
@pytest.mark.parametrize(
    ("truth", "predicted", "message"),
    [
        ([], [], "nothing"),
        ([1.0, 0.0], [1.0, 1.0], "1 values of truth ≤ 0"),
        ([1.0, -2.0], [1.0, 1.0], "least -2"),
        ([1.0, 2.0], [1.0], "equal length"),
        ([[1.0]], [[1.0]], "equal length"),
        ([1.0, float("nan")], [1.0, 1.0], "1 values of truth that are NaN"),
        ([1.0, 1.0], [1.0, float("inf")], "predicted"),
    ],
)
def test_undefined_metrics_are_an_error(metric, truth, predicted, message):
    with pytest.raises(DataError, match=message):
        metric(truth, predicted)


@pytest.mark.parametrize("values", [[], [1.0, float("nan")]])
def test_seeds_without_a_number_are_an_error(values):
    with pytest.raises(DataError, match="over seeds"):
        metrics.over_seeds(values)
