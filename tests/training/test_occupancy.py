"""Occupancy is learned from counted kernels, judged on architectures that were not seen, and written."""

from pathlib import Path

import numpy as np
import pytest

from foretell.errors import DataError
from foretell.predictors.occupancy.fit import NetworkFit
from foretell.predictors.occupancy.model import OccupancyModel
from foretell.training import occupancy
from foretell.training.examples.samples import read_samples
from foretell.training.occupancy_tables import HELD_OUT, MEAN, MODEL, intervals
from small.small_counts import write_counts
from small.small_store import write_store

pytest.importorskip("pyarrow")
pytest.importorskip("lightgbm")
pytest.importorskip("torch")

WIDTHS = (8, 16, 32, 64, 96, 128, 192, 256)
FIT = NetworkFit(width=64, blocks=1, bins=4, epochs=60, batch=8, rate=5e-3, average=0.9)


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_counts(tmp_path_factory.mktemp("store"), WIDTHS)


@pytest.fixture(scope="module")
def cache(store: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A cache with networks that tell that every unit takes its bound."""
    folder = tmp_path_factory.mktemp("cache")
    rows = sum(len(sample.units) for sample in read_samples(store, "h200", folder))
    (folder / "networks-h200-0").mkdir()
    fit = {"log_ratio": np.zeros(rows, np.float32), "spread": np.zeros(rows, np.float32)}
    np.savez(folder / "networks-h200-0" / "all-0.npz", network=np.zeros(1, np.uint8), **fit)
    return folder


@pytest.fixture(scope="module")
def data(store: Path, cache: Path) -> occupancy.OccupancySet:
    return occupancy.read_occupancy(store, "h200", cache)


@pytest.fixture(scope="module")
def judged(data: occupancy.OccupancySet, store: Path, cache: Path) -> occupancy.Judged:
    return occupancy.judge(data, occupancy.fold_files(store, "h200", cache, FIT), FIT)


def test_counted_workloads_are_read_with_times_of_networks_that_have_not_seen_them(
    data: occupancy.OccupancySet,
) -> None:
    assert len(data.counted) == len(WIDTHS) * 2
    assert data.source == HELD_OUT
    assert data.unit_us == pytest.approx(data.rows.bound_us)
    assert (data.rows.owner[data.row] >= 0).all()


def test_labels_of_own_counters_are_exact_and_those_of_others_are_predicted(
    data: occupancy.OccupancySet, monkeypatch: pytest.MonkeyPatch
) -> None:
    every, none = np.ones(len(data.samples), bool), np.zeros(len(data.samples), bool)
    model = data.fit_launches(every)
    means = data.means(*data.label(model, every))[data.counted]
    assert means == pytest.approx(data.truth[data.counted], rel=1e-5)
    monkeypatch.setattr(type(model), "occupancy_pct", lambda _, launches: np.full(len(launches), 7.0))
    assert data.means(*data.label(model, every))[data.counted] == pytest.approx(means)
    assert data.means(*data.label(model, none))[data.counted] == pytest.approx(np.full(len(means), 7.0))
    with pytest.raises(DataError, match="No counted kernel"):
        data.fit_launches(none)


def test_a_fold_is_judged_by_a_network_that_has_not_seen_it(
    data: occupancy.OccupancySet, judged: occupancy.Judged, store: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert np.isfinite(judged.predicted).all()
    assert judged.with_traced_launches == pytest.approx(judged.truth, rel=0.5)
    seen: list[set[int]] = []

    def record(self: occupancy.OccupancySet, labels: object, samples: np.ndarray, *_: object) -> None:
        seen.append(set(self.fold[samples].tolist()))
        raise DataError("enough")

    monkeypatch.setattr(occupancy.OccupancySet, "fit_network", record)
    folds = sorted(set(data.fold[data.counted].tolist()))
    with pytest.raises(DataError, match="enough"):
        occupancy.judge(data, occupancy.fold_files(store, "h200", cache, NetworkFit(epochs=1)), NetworkFit(epochs=1))
    assert folds[0] not in seen[0]
    # fits that were finished are not repeated
    again = occupancy.judge(data, occupancy.fold_files(store, "h200", cache, FIT), FIT)
    assert again.predicted == pytest.approx(judged.predicted)


def test_tables_compare_with_the_mean_and_show_the_worst(judged: occupancy.Judged, tmp_path: Path) -> None:
    first, steps, *others = occupancy.compare(judged)
    assert set(first.rows) == {MODEL, MEAN}
    assert HELD_OUT in first.title
    assert len(steps.rows) == 3
    titles = [table.title for table in others]
    assert titles[:3] == ["By mode", "By dtype", "By batch"]
    assert "The worst" in titles[-2]
    assert sum(row["count"] for row in others[0].rows.values()) == len(judged.truth)
    low, high = intervals(judged)
    assert (low < judged.predicted).all()
    assert (high <= 100).all()
    text = occupancy.write_report([first, *others], tmp_path).read_text()
    assert text.startswith("# Occupancy")


def test_a_fitted_file_is_written_and_answers(
    data: occupancy.OccupancySet, store: Path, cache: Path, tmp_path: Path
) -> None:
    file = occupancy.train(store, "h200", cache, tmp_path, FIT)
    model = OccupancyModel.load(file.read_bytes())
    assert model.card["workloads"] == len(data.counted)
    place = int(data.counted[-1])
    estimate = model.predict(data.samples[place].units, data.unit_us[data.rows.part(place)])
    assert estimate.value == pytest.approx(data.truth[place], rel=0.6)
    assert estimate.low < estimate.value < estimate.high


def test_a_store_without_counters_says_so(tmp_path: Path) -> None:
    write_store(tmp_path, (8,))
    with pytest.raises(DataError, match="No occupancy was counted below"):
        occupancy.read_occupancy(tmp_path, "h200", tmp_path / "cache")
