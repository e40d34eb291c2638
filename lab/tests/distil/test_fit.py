"""A small network learns what a teacher says, and says itself how far the teacher's members are apart."""

import numpy as np
import pytest

from foretell.features.encoded import MEASURED_WIDTH, encode
from foretell.predictors.unit.network import UnitNetwork
from foretell.predictors.unit.predictor import shipped
from lab.distil.fit import Fit, ask, distil, started, with_spread
from lab.distil.questions import Questions, between, beyond
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
    """Three members that agree on most and not on all: those of the shipped network, each a little different."""
    network = shipped("h200", "unit-network").network
    assert network is not None
    random = np.random.default_rng(0)
    weights = {}
    for name, array in network.weights.items():
        plain = array[:, :, :3] if name.startswith("leave") else array
        noise = random.standard_normal((3, *plain.shape[1:])).astype(np.float32)
        weights[name] = plain[:1] + 0.03 * plain.std() * noise * (plain.shape[1] > 1)
    return UnitNetwork(weights, network.bins, network.middle, network.spread, network.most_w)


def test_each_fit_counts_alike_and_the_spread_is_that_of_the_newest(rows: Rows, teacher: UnitNetwork) -> None:
    questions = Questions.about(rows)
    told = teacher.predict(encode(rows.features), rows.bound_us)
    other = started(teacher, 0)
    alone, both = ask(questions, [teacher]), ask(questions, [teacher, other])
    np.testing.assert_allclose(alone.log_ratio, told.log_ratio)
    said = other.predict(encode(rows.features), rows.bound_us).log_ratio
    np.testing.assert_allclose(both.log_ratio, (told.log_ratio + said) / 2)
    np.testing.assert_array_equal(both.spread, told.spread)


def test_it_comes_nearer_to_its_teacher_than_one_member(rows: Rows, teacher: UnitNetwork) -> None:
    questions = Questions.about(rows)
    answers, everybody = ask(questions, [teacher]), np.ones((1, len(questions)), bool)
    start = started(teacher, 0)
    fit = Fit(width=320, blocks=4, minutes=5.0, epochs=25, batch=64, rate=3e-4)
    (student,) = distil(questions, [answers], teacher, everybody, fit, [start])
    stored = UnitNetwork.load(student.to_bytes())
    assert stored.is_distilled
    assert stored.members == 1

    def away(network: UnitNetwork) -> float:
        told = network.predict(encode(rows.features), rows.bound_us)
        return float(np.abs(told.log_ratio - answers.log_ratio).mean())

    assert away(stored) < 0.6 * away(start)
    spread = stored.predict(encode(rows.features), rows.bound_us).spread
    assert np.corrcoef(spread, answers.spread)[0, 1] > 0.3


def test_units_between_two_have_their_kind_and_sizes_between_theirs(rows: Rows) -> None:
    questions = Questions.about(rows)
    more, pairs = between(questions, 500)
    np.testing.assert_array_equal(questions.encoded.operators[pairs[:, 1]], more.encoded.operators)
    kinds, known = (
        np.column_stack([one.encoded.operators, one.encoded.numbers[:, MEASURED_WIDTH:]]) for one in (more, questions)
    )
    assert {tuple(row) for row in kinds} <= {tuple(row) for row in known}
    assert questions.bound_us.min() <= more.bound_us.min() <= more.bound_us.max() <= questions.bound_us.max()
    sizes = {tuple(row) for row in questions.encoded.numbers[:, :MEASURED_WIDTH].round(4)}
    new = [tuple(row) not in sizes for row in more.encoded.numbers[:, :MEASURED_WIDTH].round(4)]
    assert np.mean(new) > 0.5
    together = questions.with_more(more)
    np.testing.assert_array_equal(together.of(slice(len(questions), None)).bound_us, more.bound_us)
    np.testing.assert_array_equal(together.encoded.numbers[: len(questions)], questions.encoded.numbers)


def test_the_spread_of_teachers_is_learned_also_beyond_what_was_measured(rows: Rows, teacher: UnitNetwork) -> None:
    near, far = (beyond(rows.features, rows.bound_us, octaves) for octaves in (0.0, 4.0))
    student = with_spread(started(teacher, 0), [teacher], near.with_more(far))
    for questions in (near, far):
        told, said = (network.predict(questions.encoded, questions.bound_us) for network in (teacher, student))
        assert np.corrcoef(np.log(told.spread + 0.005), np.log(said.spread + 0.005))[0, 1] > 0.5
        assert np.median(said.spread) == pytest.approx(np.median(told.spread), rel=0.4)
    # times and powers stay
    before = started(teacher, 0).predict(near.encoded, near.bound_us)
    after = student.predict(near.encoded, near.bound_us)
    np.testing.assert_array_equal(before.log_ratio, after.log_ratio)
