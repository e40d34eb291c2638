"""From measurements to a predictor that answers by itself, is nearer to the truth, and says what it rests on."""

import json
from pathlib import Path

import pytest

import foretell
from foretell.errors import DataError, InputError, ModelError
from foretell.records import Measurement


def test_a_few_measurements_bring_the_answer_nearer(table: Path, models: list[Path], own_folder: Path) -> None:
    before = foretell.predict(models[0], device="p4", batch_size=32)
    found = foretell.adapt("p4", table)
    after = foretell.predict(models[0], device="p4", batch_size=32)
    assert found.samples == 6
    assert found.kept == str(own_folder / "predictors" / "p4.zip")
    assert found.error_before == pytest.approx(0.5, abs=0.01)
    assert found.error_after < 0.2
    assert after.predictor == "adapted"
    assert after.latency_ms.value == pytest.approx(2 * before.latency_ms.value, rel=0.15)
    assert after.latency_ms.high / after.latency_ms.low < before.latency_ms.high / before.latency_ms.low
    assert any("6 measurements of p4" in note and "p4.zip" in note for note in after.warnings)
    assert not any("uncalibrated" in note for note in after.warnings)
    assert not after.extrapolated
    assert sum(share.latency_ms for share in after.breakdown) == pytest.approx(after.latency_ms.value)


def test_what_was_not_measured_is_extrapolated(table: Path, models: list[Path]) -> None:
    foretell.adapt("p4", table)
    told = foretell.predict(models[0], device="p4", batch_size=32, mode="training")
    assert told.extrapolated
    assert any("nothing was measured in training fp32" in note for note in told.warnings)


def test_a_named_predictor_and_a_file_win_over_the_kept_one(table: Path, models: list[Path], tmp_path: Path) -> None:
    before = foretell.predict(models[0], device="p4", predictor="roofline")
    found = foretell.adapt("p4", table, out=tmp_path / "mine.zip", keep=False)
    assert found.kept is None
    assert foretell.predict(models[0], device="p4").predictor == "transfer"
    assert foretell.predict(models[0], device="p4", predictor=str(tmp_path / "mine.zip")).predictor == "adapted"
    foretell.adapt("p4", table)
    assert foretell.predict(models[0], device="p4", predictor="roofline").latency_ms == before.latency_ms


def test_a_device_of_the_users(table: Path, models: list[Path], tmp_path: Path) -> None:
    device = tmp_path / "my-p4.toml"
    device.write_text('like = "p4"\n')
    foretell.adapt(str(device), table)
    assert foretell.predict(models[0], device=str(device)).predictor == "adapted"
    assert foretell.predict(models[0], device="p4").predictor == "transfer"
    # the predictor corrects what was said about the device as it was described
    device.write_text('like = "p4"\nbandwidth_gb_per_s = 100.0\n')
    with pytest.raises(ModelError, match=r"description or foretell has changed\. Run foretell adapt again"):
        foretell.predict(models[0], device=str(device))


def test_a_file_of_another_device_is_refused(table: Path, models: list[Path], tmp_path: Path) -> None:
    foretell.adapt("p4", table, out=tmp_path / "mine.zip", keep=False)
    with pytest.raises(ModelError, match=r"adapted to p4, not to p100"):
        foretell.predict(models[0], device="p100", predictor=str(tmp_path / "mine.zip"))


def test_memory_and_power_follow_where_they_were_measured(table: Path, models: list[Path]) -> None:
    before = foretell.predict(models[0], device="p4", batch_size=64)
    lines = table.read_text().splitlines()
    told = [foretell.predict(path, device="p4", batch_size=64) for path in models]
    rows = [f"{line},{one.memory_mib.value * 1.5},{one.power_w.value * 0.8}" for line, one in zip(lines[1:], told)]
    table.write_text("\n".join([f"{lines[0]},memory_mib,power_w", *rows]))
    assert foretell.adapt("p4", table).metrics == ("latency_ms", "memory_mib", "power_w")
    after = foretell.predict(models[0], device="p4", batch_size=64)
    assert after.memory_mib.value == pytest.approx(1.5 * before.memory_mib.value, rel=0.15)
    assert after.power_w.value == pytest.approx(0.8 * before.power_w.value, rel=0.15)
    assert after.energy_j.value == pytest.approx(after.power_w.value * after.latency_ms.value / 1000)


def test_measurements_as_records(models: list[Path]) -> None:
    told = foretell.predict(models[0], device="p4").latency_ms
    one = Measurement(str(models[0]), "Tesla P4", None, "eager", "inference", 1, "fp32", latency_ms=told.scaled(1.5))
    assert foretell.adapt("p4", [one]).samples == 1
    with pytest.raises(InputError, match=r"is of Tesla P4, not of t4"):
        foretell.adapt("t4", [one])


@pytest.mark.parametrize("factor", [1e4, 1e-4])
def test_another_unit_is_refused_and_nothing_is_written(table: Path, own_folder: Path, factor: float) -> None:
    lines = table.read_text().splitlines()
    rows = [line.rpartition(",") for line in lines[1:]]
    table.write_text("\n".join([lines[0], *(f"{head},{float(value) * factor}" for head, _, value in rows)]))
    with pytest.raises(DataError, match=r"row 2: latency_ms of .* is it in milliseconds\?"):
        foretell.adapt("p4", table)
    assert not (own_folder / "predictors").exists()


def test_the_record_is_json(table: Path) -> None:
    found = foretell.adapt("p4", table)
    told = json.loads(json.dumps(found.to_dict(), allow_nan=False))
    assert told["predictor"] == "adapted"
    assert {row["units"] for row in told["classes"]} <= {row["units"] for row in found.rows()}
    assert "error after" in repr(found)
