"""Serving: totals: percentiles from bins are those of the values."""

import random

import pytest

from foretell.scheduling.serving.totals import Limits, ServingTotals, Spread


def test_percentiles() -> None:
    """Within half a percent, whatever the scale."""
    rng, spread = random.Random(0), Spread()
    values = sorted(rng.lognormvariate(0, 3) for _ in range(5_000))
    for value in values:
        spread.add(value)
    for percent in (50, 95, 99):
        assert spread.percentile_s(percent) == pytest.approx(values[int(percent / 100 * 5_000) - 1], rel=0.01)
    assert spread.mean_s == pytest.approx(sum(values) / 5_000)
    assert Spread().percentile_s(99) == Spread().mean_s == 0


def test_warm_up_counts_in_tokens_only() -> None:
    """A request of the warm-up has no times."""
    totals = ServingTotals(Limits(tpot_ms=5))
    totals.add(0.0, 1.0, 2.0, 10, 20, counts=False)
    totals.add(1.0, 1.5, 2.5, 10, 101, counts=True)
    totals.add(1.0, 1.5, 1.5, 10, 1, counts=True)
    assert (totals.requests, totals.counted, totals.output_tokens, totals.counted_output_tokens) == (3, 2, 122, 102)
    assert (totals.tpot.count, totals.good) == (1, 1)
    assert totals.tokens_per_s == pytest.approx(102 / 1.5)
