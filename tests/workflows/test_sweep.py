"""One model everywhere: the same answers as one by one, and a table that can be read again."""

import csv
from pathlib import Path

import pytest

from foretell.devices import all_devices, find_device
from foretell.errors import DeviceError, InputError
from foretell.testing import tiny_onnx
from foretell.workflows.predict import predict
from foretell.workflows.sweep import MAX_POINTS, sweep, write_points


def test_every_point_is_what_predict_says() -> None:
    points = list(
        sweep(
            tiny_onnx(), devices=["h200", "a100"], batch_sizes=[1, 8], dtypes=["fp32", "fp16"], slices=[None, "mps:50"]
        )
    )
    assert len(points) == 2 * 2 * 2 * 2
    for point in points:
        prediction = point.prediction
        alone = predict(
            tiny_onnx(),
            device=prediction.device,
            batch_size=prediction.batch_size,
            dtype=prediction.dtype,
            slice=prediction.slice,
        )
        # networks compute in single precision: where rows lie in memory changes the last digits
        assert prediction.latency_ms.value == pytest.approx(alone.latency_ms.value, rel=1e-5)
        assert prediction.energy_j.value == pytest.approx(alone.energy_j.value, rel=1e-5)
        assert point.fits is True
    assert [point.prediction.device for point in points[::8]] == ["h200", "a100-sxm-40gb"]


def test_training_has_an_optimizer_and_inference_none() -> None:
    (point,) = sweep(tiny_onnx(), batch_sizes=[4], mode="training", dtypes=["bf16"], optimizer="adamw")
    alone = predict(tiny_onnx(), batch_size=4, mode="training", dtype="bf16", optimizer="adamw")
    assert point.prediction.optimizer == "adamw"
    assert point.prediction.latency_ms.value == pytest.approx(alone.latency_ms.value, rel=1e-5)
    with pytest.raises(InputError, match="needs --mode training"):
        sweep(tiny_onnx(), optimizer="adamw")


def test_all_means_every_gpu_and_what_is_too_large_does_not_fit() -> None:
    points = list(sweep(tiny_onnx(), devices=["all"], batch_sizes=[1]))
    assert len(points) == sum(not device.is_cpu for device in all_devices())
    huge = list(sweep(tiny_onnx(), devices=[find_device("p4"), "h200"], batch_sizes=[2**19], predictor="roofline"))
    assert [point.fits for point in huge] == [False, True]


def test_impossible_options_are_refused_before_anything_is_read() -> None:
    def go(**options: object) -> None:
        sweep("no-such-file.onnx", **options)  # type: ignore[arg-type]

    with pytest.raises(InputError, match="batch size is 0"):
        go(batch_sizes=[0])
    with pytest.raises(InputError, match="Got 0 predictions"):
        go(dtypes=[])
    with pytest.raises(InputError, match=f"between 1 and {MAX_POINTS:,}"):
        go(batch_sizes=list(range(1, MAX_POINTS + 2)))
    with pytest.raises(InputError, match="Unknown mode 'trainin'"):
        go(mode="trainin")
    with pytest.raises(DeviceError, match="Did you mean 'h200'"):
        go(devices=["h2000"])


def test_a_table_has_a_row_a_point_and_leaves_out_what_is_not_known(tmp_path: Path) -> None:
    points = list(sweep(tiny_onnx(), batch_sizes=[1, 2]))
    write_points(points, tmp_path / "points.csv")
    rows = list(csv.DictReader((tmp_path / "points.csv").read_text(encoding="utf-8").splitlines()))
    assert [row["batch_size"] for row in rows] == ["1", "2"]
    assert points[1].prediction.latency_ms is not None
    assert float(rows[1]["latency_ms"]) == points[1].prediction.latency_ms.value
    assert float(rows[0]["latency_ms_low"]) < float(rows[0]["latency_ms_high"])
    assert rows[0]["slice"] == ""
    with pytest.raises(InputError, match=r"use the suffix \.csv or \.parquet"):
        write_points(points, tmp_path / "points.xlsx")
    with pytest.raises(InputError, match="Cannot write"):
        write_points(points, tmp_path / "points.csv" / "inside.csv")


def test_a_table_may_be_parquet(tmp_path: Path) -> None:
    parquet = pytest.importorskip("pyarrow.parquet")
    points = list(sweep(tiny_onnx(), batch_sizes=[1, 2]))
    write_points(points, tmp_path / "points.parquet")
    assert parquet.read_table(tmp_path / "points.parquet").to_pylist() == [point.to_row() for point in points]


def test_occupancy_is_in_the_table_and_its_saturation_in_a_sentence() -> None:
    points = sweep(tiny_onnx(), devices=["h200", "l4"], batch_sizes=[1, 256])
    assert [row["occupancy"] is None for row in points.rows()] == [False, False, True, True]
    (line,) = [text for name, text in points.lines() if name == "batch"]
    assert line.startswith("On h200 at fp32 occupancy")
