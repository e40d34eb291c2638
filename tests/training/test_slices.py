"""Slices are read, judged on architectures that were not seen, and fitted."""

from pathlib import Path

import numpy as np
import pytest

from foretell.errors import DataError, ModelError
from foretell.predictors.roofline import RooflinePredictor
from foretell.predictors.slices.model import SliceModel
from foretell.training import slices
from foretell.training.examples.samples import read_samples
from foretell.training.examples.workloads import measured_rows
from small.small_store import write_store, write_table

pytest.importorskip("pyarrow")
pytest.importorskip("lightgbm")

WIDTHS = (8, 16, 32, 64, 128, 256)
SHARE = 0.6  # of every workload's time that follows the SMs
SMS = {"mps": ((10.0, 12), (50.0, 66), (100.0, 132)), "green-context": ((12.12, 16), (100.0, 132))}


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Slices of the workloads that infer; one crashed, one is measured twice, one was never measured whole."""
    folder = write_store(tmp_path_factory.mktemp("store"), WIDTHS)
    rows = []
    for name, row in measured_rows(folder).items():
        if row["mode"] == "inference":
            facts = {"campaign_id": "c", "workload_id": name, "spec": row["spec"], "family": row["family"]}
            for method, parts in SMS.items():
                for percent, sms in parts:
                    latency_ms = row["latency_ms"] * (1 + SHARE * (132 / sms - 1))
                    own = {"method": method, "percent": percent, "sm_count": sms, "latency_ms": latency_ms}
                    # 100 W as soon as anything runs; 300 W more on the whole device
                    power_w = 100 + 300 * row["latency_ms"] / latency_ms
                    rows.append({**facts, **own, "power_w": power_w, "status": "ok"})
    again = {**rows[0], "campaign_id": "d", "latency_ms": 99.0}
    crashed = {**rows[1], "campaign_id": "e", "sm_count": None, "latency_ms": None, "status": "crash"}
    write_table(folder / "two", "slices", [*rows, again, crashed, {**rows[0], "workload_id": "unknown"}])
    return folder


@pytest.fixture(scope="module")
def cache(store: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A cache with networks that tell that every unit takes twice its bound, and others of another store."""
    folder = tmp_path_factory.mktemp("cache")
    units = sum(len(sample.units) for sample in read_samples(store, "h200", folder))
    for name, rows in (("networks-h200-0", units), ("networks-h200-1", 5)):
        (folder / name).mkdir()
        log_ratio, spread = np.full(rows, np.log(2.0), np.float32), np.zeros(rows, np.float32)
        fit = {"log_ratio": log_ratio, "spread": spread, "network": np.zeros(1, np.uint8)}
        np.savez(folder / name / "all-0.npz", **fit)
    return folder


@pytest.fixture(scope="module")
def slice_set(store: Path, cache: Path) -> slices.SliceSet:
    return slices.read_slices(store, "h200", cache)


def test_good_slices_of_workloads_with_a_full_device_measurement_are_read(slice_set):
    assert len(slice_set.samples) == len(WIDTHS) * 6
    assert len(slice_set.measured) == len(slice_set.samples) * 5
    assert slice_set.measured.latency_ms.max() < 99
    assert slice_set.measured.green.sum() == len(slice_set.samples) * 2
    assert set(slice_set.percent.tolist()) == {10.0, 50.0, 100.0, 12.12}
    assert {(part.kind, part.sms) for part in slice_set.slices} == {
        ("mps", 12), ("mps", 66), ("mps", 132), ("sms", 16), ("sms", 132),
    }  # fmt: skip
    full_ms = slice_set.measured.latency_ms[slice_set.measured.sms == 132]
    assert full_ms == pytest.approx(slice_set.measured_ms[slice_set.measured.sms == 132])


def test_full_device_times_come_from_networks_that_have_not_seen_the_workload(slice_set):
    assert slice_set.whole_device.source == slices.HELD_OUT
    for sample, unit_us in zip(slice_set.samples, slice_set.whole_device.unit_us, strict=True):
        assert unit_us == pytest.approx(2 * sample.units.bound_us, rel=1e-5)
    assert slice_set.predicted_ms == pytest.approx(slice_set.measured_ms, rel=0.1)


def test_without_networks_the_shipped_predictor_gives_full_device_times(store, cache, tmp_path, monkeypatch):
    class Shipped:
        def times_us(self, units):
            return 3 * units.bound_us

    monkeypatch.setattr(slices, "shipped_units", lambda *_: Shipped())
    monkeypatch.setattr(slices, "predict_samples", lambda _, samples: {"latency_ms": np.full(len(samples), 7.0)})
    for file in cache.glob("samples-*"):
        (tmp_path / file.name).write_bytes(file.read_bytes())
    predicted = slices.read_slices(store, "h200", tmp_path).whole_device
    assert predicted.source == slices.SEEN
    assert set(predicted.latency_ms) == {7.0}
    assert predicted.unit_us[0][0] > 0


def test_held_out_ratios_are_near_the_truth_and_tables_say_so(slice_set, tmp_path):
    ratios = slices.judge(slice_set)
    assert slice_set.measured_ms * ratios == pytest.approx(slice_set.measured.latency_ms, rel=0.1)
    bounds = np.full(len(ratios), 2.0)
    overall, mps, green, family = slices.compare(slice_set, ratios, bounds)
    assert set(overall.rows) == {slices.SLICES, slices.BOUNDS, slices.EVENLY, slices.WHOLE_DEVICE}
    assert overall.rows[slices.SLICES]["mape"] < 0.1 < overall.rows[slices.EVENLY]["mape"]
    assert slices.HELD_OUT in overall.title
    assert list(mps.rows) == ["10", "50", "100", "all"]
    assert mps.rows["all"]["count"] == len(slice_set.samples) * 3
    assert green.rows["100"]["ratio"] < 0.02
    assert set(family.rows) == {"tiny1", "tiny2"}
    text = slices.write_report([overall, mps, green, family], tmp_path).read_text()
    assert text.startswith("# Latency and power on a part of a GPU")
    assert "| percent | count | ratio % | mape % |" in text


def test_scaling_by_bounds_alone_is_compared(store, cache, slice_set, monkeypatch):
    ratios = slices.scale_bounds(slice_set, store, RooflinePredictor())
    assert np.isfinite(ratios).all()
    assert ratios[slice_set.measured.sms == 132] == pytest.approx(1.0)
    assert (ratios[slice_set.measured.sms == 12] >= ratios[slice_set.measured.sms == 66] - 1e-9).all()
    assert slices.BOUNDS in slices.evaluate(store, "h200", cache)[0].rows

    def refuse(*_):
        raise ModelError("It was fitted to other features.")

    monkeypatch.setattr(slices, "scale_bounds", refuse)
    messages = []
    assert slices.BOUNDS not in slices.evaluate(store, "h200", cache, messages.append)[0].rows
    assert any("other features" in line for line in messages)


def test_a_fit_is_written_with_its_errors(store, cache, tmp_path):
    file = slices.train(store, "h200", cache, tmp_path)
    assert file.name == "slices-h200.json"
    model = SliceModel.load(file.read_bytes())
    assert [share for share, _ in model.errors] == [0.1, 0.5, 1.0]
    assert all(0 <= error < 0.2 for _, error in model.errors)


def test_a_store_without_slices_or_full_device_measurements_is_an_error(store, cache, tmp_path):
    with pytest.raises(DataError, match="No slice was measured"):
        slices.read_slices(tmp_path, "h200", cache)
    stray = {"campaign_id": "c", "workload_id": "stray", "method": "mps", "percent": 10.0, "sm_count": 12}
    folder = write_store(tmp_path / "stray", (8,))
    write_table(folder / "two", "slices", [{**stray, "latency_ms": 1.0, "status": "ok"}])
    with pytest.raises(DataError, match="measured on the whole h200"):
        slices.read_slices(folder, "h200", tmp_path / "cache")


def test_slices_of_one_architecture_cannot_be_judged(slice_set):
    spec = slice_set.samples[0].spec
    own = np.flatnonzero([slice_set.samples[place].spec == spec for place in slice_set.measured.sample])
    few = slices.SliceSet(
        "h200", slice_set.samples, slice_set.measured.of(own), slice_set.percent[own], slice_set.whole_device
    )
    with pytest.raises(DataError, match="more architectures"):
        slices.judge(few)


def test_power_on_slices_is_judged_and_its_floor_is_fitted(store):
    measured = slices.MeasuredPower.read(store, "h200")
    assert measured.fit_floor_w() == 100.0
    assert set(measured.percent) == {10.0, 50.0, 100.0, 12.12}
    np.testing.assert_allclose(measured.predicted_w(100.0), measured.power_w, rtol=1e-9)
    table = measured.judge()
    assert table is not None
    assert table.rows["all"]["power"] == pytest.approx(0.0, abs=1e-9)
    assert table.rows["10"]["whole device: power"] > 0.5


def test_without_a_measured_power_there_is_no_floor_and_no_table(tmp_path):
    write_table(tmp_path, "slices", [{"campaign_id": "c", "workload_id": "w", "method": "mps", "percent": 10.0,
                                      "sm_count": 12, "latency_ms": 1.0, "status": "ok"}])  # fmt: skip
    measured = slices.MeasuredPower.read(tmp_path, "h200")
    assert (measured.fit_floor_w(), measured.judge()) == (0.0, None)
