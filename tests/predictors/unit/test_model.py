"""Serving: a file is what was fitted or is refused, and a prediction is whole: intervals, shares, doubts."""

import io
import json
import zipfile
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from foretell.devices import find_device, parse_slice
from foretell.errors import ModelError
from foretell.features import extract_units
from foretell.features.pooled import DistinctUnits, pool
from foretell.predictors.roofline import CONTEXT_MIB, RooflinePredictor
from foretell.predictors.unit.fit_model import fit_unit_trees, predict_samples
from foretell.predictors.unit.model import (
    METRICS,
    NEIGHBOURS,
    UnitModel,
    UnitPredictor,
    UnitTreesPredictor,
    nearest,
    shipped,
    tree_rows,
    write,
)
from foretell.records import Prediction, Target, Workload
from foretell.testing import one_node
from small.small_samples import H200, QUICK, architectures, blocks, small_samples, workload

pytest.importorskip("lightgbm")

SLICE_DOUBT = "Fitted to whole devices"
FAR_DOUBT = "Unlike what was measured"


@pytest.fixture(scope="module")
def file() -> bytes:
    samples = small_samples()
    return fit_unit_trees(samples, architectures(samples), QUICK)


@pytest.fixture(scope="module")
def trees(file: bytes) -> UnitModel:
    return UnitModel.load(file)


def parts_of(file: bytes) -> dict[str, bytes]:
    with zipfile.ZipFile(io.BytesIO(file)) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def zipped(parts: dict[str, bytes]) -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        for name, data in parts.items():
            archive.writestr(name, data)
    return file.getvalue()


def doubts(prediction: Prediction, start: str) -> list[str]:
    return [text for text in prediction.warnings if text.startswith(start)]


def test_what_is_written_is_read(file: bytes, trees: UnitModel) -> None:
    parts = parts_of(file)
    models = {name.removesuffix(".onnx"): data for name, data in parts.items() if name.endswith(".onnx")}
    again = write(dict(reversed(models.items())), trees.card, trees.known)
    assert again == file, "the same trees are the same bytes, in whatever order they come"
    predicted = predict_samples(UnitModel.load(again), small_samples()[:6])
    for name, values in predict_samples(trees, small_samples()[:6]).items():
        np.testing.assert_array_equal(predicted[name], values)


@pytest.mark.parametrize("part", ["card.json", "known.npy"])
def test_a_file_without_a_part_is_refused(file: bytes, part: str) -> None:
    parts = parts_of(file)
    del parts[part]
    with pytest.raises(ModelError, match="not a fitted predictor"):
        UnitModel.load(zipped(parts))


@pytest.mark.parametrize("part", ["card.json", "known.npy", "unit.onnx"])
@pytest.mark.parametrize("content", [b"", b"\x00nonsense"])
def test_a_file_with_a_spoilt_part_is_refused(file: bytes, part: str, content: bytes) -> None:
    with pytest.raises(ModelError):
        UnitModel.load(zipped(parts_of(file) | {part: content}))


@pytest.mark.parametrize("data", [b"", b"PK", b"not a zip at all"])
def test_what_is_no_archive_is_refused(data: bytes) -> None:
    with pytest.raises(ModelError, match=f"These {len(data)} bytes are not a fitted predictor"):
        UnitModel.load(data)


def test_a_file_that_is_cut_or_changed_anywhere_is_refused(file: bytes) -> None:
    for length in range(0, len(file), len(file) // 20):
        with pytest.raises(ModelError):
            UnitModel.load(file[:length])
    with zipfile.ZipFile(io.BytesIO(file)) as archive:
        starts = [entry.header_offset + 60 for entry in archive.infolist() if entry.compress_size > 200]
    for start in starts:
        for value in (0x00, 0xFF):
            spoilt = bytearray(file)
            spoilt[start : start + 40] = bytes([value]) * 40
            with pytest.raises(ModelError):
                UnitModel.load(bytes(spoilt))


@pytest.mark.parametrize("schema", ["schema", "pooled_schema"])
def test_trees_of_other_features_are_refused(file: bytes, trees: UnitModel, schema: str) -> None:
    card = json.dumps({**trees.card, schema: "0123456789abcdef"}).encode()
    with pytest.raises(ModelError, match=r"other features.*; fit it again: foretell train"):
        UnitModel.load(zipped(parts_of(file) | {"card.json": card}))


@pytest.mark.parametrize("card", [b"{}", b"[]", b"7"])
def test_a_card_of_something_else_is_refused(file: bytes, card: bytes) -> None:
    with pytest.raises(ModelError):
        UnitModel.load(zipped(parts_of(file) | {"card.json": card}))


def test_a_row_like_no_other_is_far(trees: UnitModel) -> None:
    sample = small_samples()[7]
    row = pool(sample.units, trees.times_us(sample.units), sample.setting)
    near, far = trees.distances(np.stack([row, row * 3 + 10]))
    assert near < 1 < far


def test_distances_hold_in_full_precision(trees: UnitModel) -> None:
    """Trees learn from distances of full precision, and must be served the same."""
    middle, spread = np.array(trees.card["distance"]["middle"]), np.array(trees.card["distance"]["spread"])
    known = trees.known.astype(np.float64)
    wanted = np.linalg.norm(known[:, None] - known[None], axis=2)
    wanted.sort(axis=1)
    found = trees.distances((known * spread + middle).astype(np.float32)) * trees.card["distance"]["far"]
    np.testing.assert_allclose(found, wanted[:, :NEIGHBOURS].mean(axis=1), atol=0.01)


def test_nearest_is_the_mean_over_a_few() -> None:
    known = np.array([[0.0], [1.0], [2.0], [3.0], [4.0], [100.0]], dtype=np.float32)
    assert nearest(np.array([[0.0]], dtype=np.float32), known)[0] == pytest.approx(2.0)
    assert nearest(np.array([[0.0]], dtype=np.float32), known[1:2])[0] == pytest.approx(1.0)


def test_an_operator_nobody_knows_is_a_category_of_its_own() -> None:
    features = np.array([[-1.0, -1.0], [3.0, 2.0]], dtype=np.float32)
    rows = tree_rows(features)
    assert rows[0, 0] > 400
    assert rows[0, 1] == -1
    np.testing.assert_array_equal(rows[1], features[1])
    assert features[0, 0] == -1, "the argument stays as it was"


@pytest.mark.parametrize(("dtype", "mode"), [("fp32", "inference"), ("fp16", "inference"), ("bf16", "training")])
def test_a_prediction_is_whole(trees: UnitModel, dtype: str, mode: str) -> None:
    asked = workload(64, 64, dtype, mode)
    prediction = UnitPredictor(trees).predict(asked)
    assert (prediction.predictor, prediction.batch_size, prediction.mode) == ("unit-trees", 64, mode)
    for metric in (*METRICS, "throughput_per_s", "device_memory_mib"):
        estimate = getattr(prediction, metric)
        assert 0 < estimate.low <= estimate.value <= estimate.high, metric
    latency, power, energy = prediction.latency_ms, prediction.power_w, prediction.energy_j
    assert energy.value == pytest.approx(latency.value * power.value / 1000)
    assert prediction.throughput_per_s.value == pytest.approx(64 * 1000 / latency.value)
    assert prediction.throughput_per_s.low == pytest.approx(64 * 1000 / latency.high)
    assert prediction.device_memory_mib.value == pytest.approx(prediction.memory_mib.value + CONTEXT_MIB.value)
    assert prediction.facts == RooflinePredictor().predict(asked).facts
    assert not doubts(prediction, "uncalibrated")
    assert not doubts(prediction, FAR_DOUBT)
    assert not doubts(prediction, SLICE_DOUBT)


def test_the_whole_is_told_from_pooled_units_and_their_distance(trees: UnitModel) -> None:
    rows: list[np.ndarray] = []

    class Recording:
        """Trees that say nothing new."""

        def predict(self, features: np.ndarray) -> np.ndarray:
            rows.append(features)
            return np.zeros(len(features))

    deaf = UnitModel({name: Recording() for name in trees.models}, trees.card, trees.known)  # type: ignore[misc]
    sample = next(sample for sample in small_samples() if sample.units.counts.max() > 1)
    prediction = deaf.predict(sample.units, sample.setting, sample.roofline_w)
    pooled = pool(sample.units, sample.units.bound_us, sample.setting)
    assert len(rows) == len(trees.models)
    for row in rows[1:]:
        np.testing.assert_array_equal(row, [[*pooled, np.float32(prediction.distance)]])
    assert prediction.distance == trees.distances(pooled[None])[0] > 0
    bound_ms = float((sample.units.bound_us * sample.units.counts).sum()) / 1000
    assert prediction.estimates["latency_ms"].value == pytest.approx(bound_ms)
    assert prediction.estimates["memory_mib"].value == sample.setting.memory_mib
    assert prediction.estimates["power_w"].value == sample.roofline_w
    assert prediction.estimates["energy_j"].value == pytest.approx(sample.roofline_w * bound_ms / 1000)


def test_each_operator_has_the_time_of_its_own_units(trees: UnitModel) -> None:
    asked = workload(graph=blocks(64, 1024))
    units = extract_units(asked)
    times = dict.fromkeys(units.operators, 0.0)
    distinct = DistinctUnits.of(units)
    for operator, time_us in zip(units.operators, trees.times_us(distinct)[distinct.member], strict=True):
        times[operator] += time_us
    found = {row.operator: row for row in UnitPredictor(trees).predict(asked).breakdown}
    assert found["MatMul"].count == found["Relu"].count == 6
    assert found["MatMul"].share == pytest.approx(times["MatMul"] / sum(times.values()))
    assert found["MatMul"].share > 1.2 * found["Relu"].share, "the two must differ, or nothing is shown"


def test_the_breakdown_adds_up_and_names_backward_apart(trees: UnitModel) -> None:
    prediction = UnitPredictor(trees).predict(workload(64, 64, "fp32", "training"))
    shares = prediction.breakdown
    assert sum(row.share for row in shares) == pytest.approx(1.0)
    assert sum(row.latency_ms for row in shares) == pytest.approx(prediction.latency_ms.value)
    assert [row.latency_ms for row in shares] == sorted((row.latency_ms for row in shares), reverse=True)
    assert {"Conv", "Conv (backward)", "optimizer"} <= {row.operator for row in shares}
    assert sum(row.count for row in shares) == 9
    assert {row.bound for row in shares} <= {"compute", "memory", "launch"}


@pytest.mark.parametrize(
    ("graph", "bound"),
    [
        (one_node("MatMul", [(8192, 4096), (4096, 4096)], [(8192, 4096)], weights=[1], dtype="fp16"), "compute"),
        (one_node("Relu", [(1 << 26,)], [(1 << 26,)], dtype="fp16"), "memory"),
        (one_node("Relu", [(8,)], [(8,)], dtype="fp16"), "launch"),
    ],
)
def test_what_limits_an_operator_is_said(trees: UnitModel, graph, bound: str) -> None:
    assert UnitPredictor(trees).predict(Workload(graph, H200, "fp16")).breakdown[0].bound == bound


def test_what_is_unlike_the_measured_is_doubted(trees: UnitModel) -> None:
    wide = one_node("MatMul", [(1 << 16, 8192), (8192, 8192)], [(1 << 16, 8192)], weights=[1], dtype="fp16")
    (doubt,) = doubts(UnitPredictor(trees).predict(Workload(wide, H200, "fp16")), FAR_DOUBT)
    assert "times the usual distance" in doubt


def test_a_slice_is_doubted_and_takes_longer(trees: UnitModel) -> None:
    asked = workload(512, 1024)
    part = replace(asked, target=Target(H200.device, parse_slice("mig:1g.18gb", H200.device)))
    whole, sliced = (UnitPredictor(trees).predict(each) for each in (asked, part))
    assert len(doubts(sliced, SLICE_DOUBT)) == 1
    assert sliced.slice == "mig:1g.18gb"
    assert sliced.latency_ms.value > whole.latency_ms.value


def test_a_graph_without_work_falls_back_to_the_roofline(trees: UnitModel) -> None:
    asked = Workload(one_node("Reshape", [(4,)], [(2, 2)]), H200)
    prediction = UnitPredictor(trees).predict(asked)
    assert prediction == RooflinePredictor().predict(asked)
    assert any("does no work" in text for text in prediction.warnings)


def test_a_file_serves_as_a_predictor(file: bytes, trees: UnitModel, tmp_path: Path) -> None:
    path = tmp_path / "mine.zip"
    path.write_bytes(file)
    asked = workload()
    assert UnitPredictor.from_file(path).predict(asked) == UnitPredictor(trees).predict(asked)


def test_a_file_that_is_absent_is_an_error(tmp_path: Path) -> None:
    for path in (tmp_path / "absent.zip", tmp_path):
        with pytest.raises(
            ModelError, match=r"There is no file .*; give the name of a predictor, or a file that foretell train"
        ):
            UnitPredictor.from_file(path)


def test_a_device_without_trees_is_refused_with_what_to_do() -> None:
    with pytest.raises(ModelError, match=r"No unit-trees is fitted to t4, only to h200\. Use --predictor roofline"):
        shipped("t4", "unit-trees")


@pytest.mark.parametrize("predictor", [UnitPredictor, UnitTreesPredictor])
def test_what_is_shipped_answers_for_the_device_it_was_fitted_to(predictor: type[UnitPredictor]) -> None:
    assert shipped("h200", predictor.name).card["predictor"] == predictor.name
    prediction = predictor().predict(workload(64, 8))
    assert prediction.predictor == predictor.name
    roofline = RooflinePredictor().predict(workload(64, 8))
    assert 0.2 < prediction.latency_ms.value / roofline.latency_ms.value < 5


def test_a_shipped_file_that_was_changed_is_refused(file: bytes, tmp_path: Path, monkeypatch) -> None:
    folder = tmp_path / "trained"
    folder.mkdir()
    entry = {"file": "trees.zip", "sha256": "0" * 64}
    (folder / "index.json").write_text(json.dumps({"h200": {"unit-trees": entry}}))
    (folder / "trees.zip").write_bytes(file)
    monkeypatch.setattr("foretell.predictors.unit.model.TRAINED", folder)
    with pytest.raises(ModelError, match=r"trees.zip is damaged: its checksum does not match\. Install foretell again"):
        shipped.__wrapped__("h200", "unit-trees")
    (folder / "trees.zip").unlink()
    with pytest.raises(ModelError, match=r"lacks trees\.zip: install foretell again, or use --predictor roofline"):
        shipped.__wrapped__("h200", "unit-trees")


def test_trees_of_one_device_do_not_answer_for_another(trees: UnitModel) -> None:
    fitted = UnitModel(trees.models, {**trees.card, "device": "h200"}, trees.known)
    assert UnitPredictor(fitted).predict(workload()).predictor == "unit-trees"
    elsewhere = replace(workload(), target=Target(find_device("t4")))
    with pytest.raises(ModelError, match="fitted to h200, not to t4"):
        UnitPredictor(fitted).predict(elsewhere)
