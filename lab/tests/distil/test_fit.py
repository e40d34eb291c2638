"""A small network learns what a teacher says, and says itself how far the teacher's members are apart."""

import numpy as np
import pytest

from foretell.features.encoded import encode
from foretell.predictors.unit.network import UnitNetwork
from foretell.predictors.unit.predictor import shipped
from lab.distil.fit import Fit, ask, distil, started
from lab.distil.rows import Rows, _part
from tests.small.small_samples import small_samples

ROWS = 256


@pytest.fixture(scope="module")
def rows() -> Rows:
    parts = [_part(sample.units, owner, True) for owner, sample in enumerate(small_samples())]
    columns = [np.concatenate(column)[:ROWS] for column in zip(*parts, strict=True)]
    return Rows(*columns, np.array([str(owner) for owner in range(len(parts))]))


@pytest.fixture(scope="module")
def teacher() -> UnitNetwork:
    network = shipped("h200", "unit-network").network
    assert network is not None
    return network


def test_each_fit_counts_alike_and_the_spread_is_that_of_the_newest(rows: Rows, teacher: UnitNetwork) -> None:
    alone, both = ask(rows, teacher, []), ask(rows, teacher, [teacher])
    told = teacher.predict(encode(rows.features), rows.bound_us)
    np.testing.assert_allclose(alone.log_ratio, told.log_ratio)
    np.testing.assert_array_equal(both.spread, told.spread)
    # the second one reads the bytes of the run as they are, not rounded: near, and not equal
    assert 0 < np.abs(both.log_ratio - alone.log_ratio).max() < 0.5


def test_it_comes_nearer_to_its_teacher_than_one_member(rows: Rows, teacher: UnitNetwork) -> None:
    answers, nobody = ask(rows, teacher, []), np.zeros(len(rows.bound_us), bool)
    start = started(teacher, 0)
    fit = Fit(width=320, blocks=4, minutes=5.0, epochs=25, batch=64, rate=3e-4)
    student = distil(rows, answers, teacher, nobody, fit, start)
    stored = UnitNetwork.load(student.to_bytes())
    assert stored.is_distilled
    assert stored.members == 1

    def away(network: UnitNetwork) -> float:
        told = network.predict(encode(rows.features), rows.bound_us)
        return float(np.abs(told.log_ratio - answers.log_ratio).mean())

    assert away(stored) < 0.6 * away(start)
    spread = stored.predict(encode(rows.features), rows.bound_us).spread
    assert np.corrcoef(spread, answers.spread)[0, 1] > 0.3
