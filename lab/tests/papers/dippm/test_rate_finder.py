import math

import pytest

pytest.importorskip("torch")

from lab.papers.dippm.rate_finder import PUBLISHED, curve, rate_of, suggestion
from small.tiny_workloads import tiny_recipe, tiny_samples


def test_the_rate_of_the_paper_is_one_of_the_finder():
    assert rate_of(43) == pytest.approx(PUBLISHED, rel=1e-4)


def test_the_steepest_fall_is_suggested():
    losses = [1.0] * 50 + [0.7, 0.4, 0.35] + [0.35] * 40
    assert suggestion(losses) in (rate_of(50), rate_of(51))
    assert math.isnan(suggestion([1.0, 0.5]))


def test_a_curve_begins_flat_and_ends_where_the_loss_runs_away():
    losses = curve(tiny_samples(8), tiny_recipe("dippm", dropout=0.0), 0)
    assert 20 < len(losses) <= 100
    assert all(math.isfinite(loss) for loss in losses)
