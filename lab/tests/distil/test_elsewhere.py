"""A fit on a machine without a store leaves files that the product's cache can take."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from foretell.predictors.sample import Sample
from foretell.predictors.unit.fit_model import (
    CrossFit,
    Settings,
    cross_fit_networks,
    fit_unit_network,
    folds_of,
    learning_samples,
)
from foretell.predictors.unit.fit_network import NetworkFit, fit_networks
from foretell.predictors.unit.model import UnitModel
from foretell.predictors.unit.network import UnitNetwork
from foretell.predictors.unit.rows import UnitRows
from foretell.training.cross_fits import ALL_DATA, cross_fits
from foretell.training.examples import samples as sample_files
from foretell.training.judging.protocol import groups_of
from lab.distil import elsewhere
from lab.distil.fit import Fit, ask, started
from lab.distil.fitted import read_parts, with_student
from lab.distil.rows import SPACE, Rows
from lab.distil.singles import single_operators
from tests.small.small_samples import QUICK, small_samples

WIDTH = 16
SETTINGS = Settings(
    members=3, fold_members=2, network=NetworkFit(width=WIDTH, blocks=1, bins=4, embedding=4, epochs=2, batch=8)
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder: Path = tmp_path_factory.mktemp("carried")
    samples = small_samples()
    sample_files._save(samples, folder / elsewhere.SAMPLES)
    rows, folds = UnitRows.of(samples), folds_of(groups_of(samples), SETTINGS)
    without = folds.copy()
    without[folds == 3] = -1
    elsewhere._write(
        folder / elsewhere.FOLDS, classes=np.zeros(len(rows.counts), np.int16),
        **{ALL_DATA: folds, "architecture-0": without},
    )  # fmt: skip
    some = slice(0, 60)
    names = np.array([SPACE, groups_of(samples)[0], "nobody"])
    others = Rows(
        rows.features[some] + np.float32(0.25), rows.bound_us[some], np.arange(60) % 3,
        np.arange(60) < 6, names,
    )  # fmt: skip
    elsewhere.write_rows(others, folder / elsewhere.ROWS)
    elsewhere.write_rows(single_operators("h200", 20), folder / elsewhere.SINGLES)
    return folder


def test_networks_students_and_splits_are_files_that_the_cache_can_take(folder: Path, tmp_path: Path) -> None:
    fit = Fit(blocks=1, minutes=1.0, epochs=2, batch=32)
    elsewhere.fit(folder, tmp_path, (WIDTH, 8), fit, 100, SETTINGS)
    elsewhere.splits(folder, tmp_path, 1, replace(SETTINGS, members=2))
    assert {file.stem for file in tmp_path.glob("*.npz")} == {ALL_DATA, "student-16", "student-8", "architecture-0"}
    samples = small_samples()
    folds = folds_of(groups_of(samples), SETTINGS)
    for name, members in ((ALL_DATA, 3), ("student-16", 1), ("student-8", 1)):
        (read,) = cross_fits(samples, {name: folds}, SETTINGS, {name: tmp_path / f"{name}.npz"}).values()
        network = UnitNetwork.load(read.network)
        assert network.members == members
        assert network.is_distilled == name.startswith("student")
        assert np.isfinite(read.predictions.log_ratio).all()
        assert len(read.predictions.log_ratio) == sum(len(sample.units) for sample in samples)
    # what exists is not made again
    before = (tmp_path / "student-8.npz").stat().st_mtime_ns
    elsewhere.fit(folder, tmp_path, (8,), fit, 0, replace(SETTINGS, network=replace(SETTINGS.network, epochs=1)))
    assert (tmp_path / "student-8.npz").stat().st_mtime_ns == before


def test_networks_of_a_split_answer_for_its_test_side_and_those_of_folds_for_the_rest(
    folder: Path, tmp_path: Path
) -> None:
    fit = Fit(blocks=1, minutes=1.0, epochs=1, batch=32)
    elsewhere.fit(folder, tmp_path, (), fit, 0, SETTINGS)
    elsewhere.splits(folder, tmp_path, 1, replace(SETTINGS, members=2))
    samples = small_samples()
    rows, folds = UnitRows.of(samples), folds_of(groups_of(samples), SETTINGS)
    of_all, of_split = (
        cross_fits(samples, {name: folds}, SETTINGS, {name: tmp_path / f"{name}.npz"})[name]
        for name in (ALL_DATA, "architecture-0")
    )
    is_seen = (folds != 3)[rows.owner]
    assert np.array_equal(of_split.predictions.log_ratio[is_seen], of_all.predictions.log_ratio[is_seen])
    network = UnitNetwork.load(of_split.network)
    assert network.members == 2
    asked = elsewhere.Questions.of_units(rows.features[~is_seen], rows.bound_us[~is_seen])
    told = network.predict(asked.encoded, asked.bound_us)
    # weights are stored in 8 bits
    assert of_split.predictions.log_ratio[~is_seen] == pytest.approx(told.log_ratio, abs=0.05)
    assert np.abs(of_all.predictions.log_ratio[~is_seen] - told.log_ratio).max() > 0.05


def test_an_older_network_teaches_the_served_student_and_no_other(folder: Path) -> None:
    samples = small_samples()
    rows, folds = UnitRows.of(samples), folds_of(groups_of(samples), SETTINGS)
    learns = learning_samples(folds, SETTINGS)
    fitted = fit_networks(rows, learns, SETTINGS.network)
    older = fitted.network([0])
    plain, taught = (elsewhere._asked(samples, folds, fitted, folder, 0, SETTINGS, one) for one in (None, older))
    asked = ask(plain.questions, [older])
    for one, other in zip(plain.answers[:-1], taught.answers[:-1], strict=True):
        assert np.array_equal(one.log_ratio, other.log_ratio)
    between = (plain.answers[-1].log_ratio + asked.log_ratio) / 2
    assert taught.answers[-1].log_ratio == pytest.approx(between)
    assert np.array_equal(taught.answers[-1].spread, plain.answers[-1].spread)


def test_a_student_of_a_fold_is_asked_about_no_unit_of_its_architectures(folder: Path) -> None:
    samples = small_samples()
    folds = folds_of(groups_of(samples), SETTINGS)
    questions, fold_of_row = elsewhere._questions(
        samples, folds, (folder / elsewhere.ROWS, folder / elsewhere.SINGLES), 200
    )
    plain = len(questions) - 200
    assert set(np.unique(fold_of_row)) <= {-2, 0, 1, 2, 3}
    own = {questions.encoded.numbers[row].tobytes() for row in range(plain) if fold_of_row[row, 0] == folds[0]}
    rows = UnitRows.of(samples)
    asked = elsewhere.Questions.of_units(rows.features, rows.bound_us).encoded.numbers
    assert {asked[row].tobytes() for row in np.flatnonzero(folds[rows.owner] == folds[0])} <= own
    # units between two belong to both
    assert (fold_of_row[plain:, 0] != fold_of_row[plain:, 1]).any()


def test_a_student_is_served_with_the_trees_of_another_fit_and_its_own_errors(tmp_path: Path) -> None:
    samples = small_samples()
    data = fit_unit_network(samples, groups_of(samples), *_cross_fit(samples), QUICK)
    trees, student = tmp_path / "trees.zip", tmp_path / "student.zip"
    trees.write_bytes(data)
    parts = read_parts(trees)
    other = started(UnitNetwork.load(parts["network.npz"]), 0).to_bytes()
    student.write_bytes(with_student(parts, other, {"held_out": {"latency_ms": 0.5}}))
    file = elsewhere.serve(student, trees, tmp_path / "out", "h200", 1.5)
    made, before = UnitModel.load(file.read_bytes()), UnitModel.load(data)
    assert made.network is not None
    assert made.network.is_distilled
    assert made.card["held_out"] == {"latency_ms": 0.5}
    assert made.card["quantiles"]["latency_ms"] == pytest.approx(1.5 * before.card["quantiles"]["latency_ms"])
    assert made.models.keys() == before.models.keys()
    assert (tmp_path / "out" / "index.json").exists()


def _cross_fit(samples: list[Sample]) -> tuple[CrossFit]:
    return tuple(cross_fit_networks(samples, [folds_of(groups_of(samples), QUICK)], QUICK, "cpu"))  # type: ignore[return-value]
