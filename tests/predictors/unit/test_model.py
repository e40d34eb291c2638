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
from foretell.features import COLUMNS, Units, extract_units, operator_codes
from foretell.features.pooled import DistinctUnits, pool
from foretell.graph.ir import operators
from foretell.predictors.fitted_files import write_fitted
from foretell.predictors.roofline import CONTEXT_MIB, RooflinePredictor
from foretell.predictors.unit.fit_model import fit_unit_trees, predict_samples
from foretell.predictors.unit.model import (
    METRICS,
    NEIGHBOURS,
    UnitModel,
    UnitPredictor,
    UnitTreesPredictor,
    mean_power_w,
    nearest,
    operator_shares,
    shipped,
    tree_rows,
    write,
)
from foretell.predictors.unit.network import UnitPredictions
from foretell.records import Prediction, Target, Workload
from foretell.testing import one_node
from small.small_samples import H200, QUICK, architectures, blocks, small_samples, workload

pytest.importorskip("lightgbm")

SLICE_DOUBT = "Fitted to whole devices"
FAR_DOUBT = "Every part is like one that was measured"
NEW_DOUBT = "100% of the time is in parts unlike anything measured"


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
    models = {name.removesuffix(".npz"): data for name, data in parts.items() if name.endswith(".npz")}
    again = write(dict(reversed(models.items())), dict(reversed(trees.card.items())), trees.known)
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


@pytest.mark.parametrize("part", ["card.json", "known.npy", "unit.npz"])
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
    expected = np.linalg.norm(known[:, None] - known[None], axis=2)
    expected.sort(axis=1)
    result = trees.distances((known * spread + middle).astype(np.float32)) * trees.card["distance"]["far"]
    np.testing.assert_allclose(result, expected[:, :NEIGHBOURS].mean(axis=1), atol=0.01)


def test_nearest_is_the_mean_over_a_few() -> None:
    known = np.array([[0.0], [1.0], [2.0], [3.0], [4.0], [100.0]], dtype=np.float32)
    assert nearest(np.array([[0.0]], dtype=np.float32), known)[0] == pytest.approx(2.0)
    assert nearest(np.array([[0.0]], dtype=np.float32), known[1:2])[0] == pytest.approx(1.0)


def test_an_operator_nobody_knows_is_a_category_of_its_own() -> None:
    features = np.array([[-1.0, -1.0], [3.0, 2.0], [0.0, 1.0]], dtype=np.float32)
    rows = tree_rows(features)
    np.testing.assert_array_equal(rows[2], features[2])
    assert rows[0, 0] > 400
    assert rows[0, 1] == -1
    np.testing.assert_array_equal(rows[1], features[1])
    assert features[0, 0] == -1, "the argument stays as it was"


@pytest.mark.parametrize(("dtype", "mode"), [("fp32", "inference"), ("fp16", "inference"), ("bf16", "training")])
def test_a_prediction_has_all_fields(trees: UnitModel, dtype: str, mode: str) -> None:
    work = workload(64, 64, dtype, mode)
    prediction = UnitPredictor(trees).predict(work)
    assert (prediction.predictor, prediction.batch_size, prediction.mode) == ("unit-trees", 64, mode)
    for metric in (*METRICS, "throughput_per_s", "device_memory_mib"):
        estimate = getattr(prediction, metric)
        assert 0 < estimate.low <= estimate.value <= estimate.high, metric
    latency, power, energy = prediction.latency_ms, prediction.power_w, prediction.energy_j
    assert energy.value == pytest.approx(latency.value * power.value / 1000)
    assert prediction.throughput_per_s.value == pytest.approx(64 * 1000 / latency.value)
    assert prediction.throughput_per_s.low == pytest.approx(64 * 1000 / latency.high)
    assert prediction.device_memory_mib.value == pytest.approx(prediction.memory_mib.value + CONTEXT_MIB.value)
    assert prediction.facts == RooflinePredictor().predict(work).facts
    assert not doubts(prediction, "uncalibrated")
    assert not doubts(prediction, FAR_DOUBT)
    assert not doubts(prediction, SLICE_DOUBT)


def test_totals_are_predicted_from_pooled_units_and_their_distance(trees: UnitModel) -> None:
    rows: list[np.ndarray] = []

    class Recording:
        """Trees that say nothing new."""

        def predict(self, features: np.ndarray) -> np.ndarray:
            rows.append(features)
            return np.zeros(len(features))

    deaf = UnitModel({name: Recording() for name in trees.models}, trees.card, trees.known, trees.reach)  # type: ignore[misc]
    sample = next(sample for sample in small_samples() if sample.units.counts.max() > 1)
    prediction = deaf.predict(sample.units, sample.setting, sample.roofline_w)
    pooled = pool(sample.units, sample.units.bound_us, sample.setting)
    assert len(rows) == len(trees.models)
    # trees have no members that could differ, and the sample is one of those that were learned from
    for row in rows[1:]:
        np.testing.assert_array_equal(row, [[*pooled, np.float32(prediction.distance), 0.0, 0.0, 0.0]])
    assert prediction.distance == trees.distances(pooled[None])[0] > 0
    bound_ms = float((sample.units.bound_us * sample.units.counts).sum()) / 1000
    assert prediction.estimates["latency_ms"].value == pytest.approx(bound_ms)
    assert prediction.estimates["memory_mib"].value == sample.setting.memory_mib
    assert prediction.estimates["power_w"].value == sample.roofline_w
    assert prediction.estimates["energy_j"].value == pytest.approx(sample.roofline_w * bound_ms / 1000)


def test_each_operator_has_the_time_of_its_own_units(trees: UnitModel) -> None:
    work = workload(graph=blocks(64, 1024))
    units = extract_units(work)
    times = dict.fromkeys(units.operators, 0.0)
    distinct = DistinctUnits.of(units)
    for operator, time_us in zip(units.operators, trees.times_us(distinct)[distinct.member], strict=True):
        times[operator] += time_us
    by_operator = {row.operator: row for row in UnitPredictor(trees).predict(work).breakdown}
    assert by_operator["MatMul"].count == by_operator["Relu"].count == 6
    assert by_operator["MatMul"].share == pytest.approx(times["MatMul"] / sum(times.values()))
    assert by_operator["MatMul"].share > 1.2 * by_operator["Relu"].share, "the two must differ, or nothing is shown"


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
def test_the_breakdown_names_what_limits_an_operator(trees: UnitModel, graph, bound: str) -> None:
    assert UnitPredictor(trees).predict(Workload(graph, H200, "fp16")).breakdown[0].bound == bound


def test_workloads_unlike_the_measured_ones_get_a_warning(trees: UnitModel) -> None:
    wide = one_node("MatMul", [(1 << 16, 8192), (8192, 8192)], [(1 << 16, 8192)], weights=[1], dtype="fp16")
    prediction = UnitPredictor(trees).predict(Workload(wide, H200, "fp16"))
    (doubt,) = doubts(prediction, NEW_DOUBT)
    assert "MatMul (100%; " in doubt
    assert ", measured up to " in doubt
    assert not doubts(prediction, FAR_DOUBT)


def test_a_slice_gets_a_warning_and_takes_longer(trees: UnitModel) -> None:
    work = workload(512, 1024)
    part = replace(work, target=Target(H200.device, parse_slice("mig:1g.18gb", H200.device)))
    on_device, sliced = (UnitPredictor(trees).predict(work_item) for work_item in (work, part))
    assert len(doubts(sliced, SLICE_DOUBT)) == 1
    assert sliced.slice == "mig:1g.18gb"
    assert sliced.latency_ms.value > on_device.latency_ms.value


def test_a_graph_without_work_falls_back_to_the_roofline(trees: UnitModel) -> None:
    work = Workload(one_node("Reshape", [(4,)], [(2, 2)]), H200)
    prediction = UnitPredictor(trees).predict(work)
    assert prediction == RooflinePredictor().predict(work)
    assert any("does no work" in text for text in prediction.warnings)


def test_a_file_serves_as_a_predictor(file: bytes, trees: UnitModel, tmp_path: Path) -> None:
    path = tmp_path / "mine.zip"
    path.write_bytes(file)
    work = workload()
    assert UnitPredictor.from_file(path).predict(work) == UnitPredictor(trees).predict(work)


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
    write_fitted(folder, "index.json", json.dumps({"h200": {"unit-trees": entry}}).encode())
    (folder / "trees.zip").write_bytes(file)
    monkeypatch.setattr("foretell.predictors.unit.model.TRAINED", folder)
    with pytest.raises(ModelError, match=r"trees.zip is damaged: its checksum does not match\. Install foretell again"):
        shipped.__wrapped__("h200", "unit-trees")
    (folder / "trees.zip").unlink()
    with pytest.raises(ModelError, match=r"lacks trees\.zip: install foretell again, or use --predictor roofline"):
        shipped.__wrapped__("h200", "unit-trees")


def test_trees_of_one_device_do_not_answer_for_another(trees: UnitModel) -> None:
    fitted = UnitModel(trees.models, {**trees.card, "device": "h200"}, trees.known, trees.reach)
    assert UnitPredictor(fitted).predict(workload()).predictor == "unit-trees"
    elsewhere = replace(workload(), target=Target(find_device("t4")))
    with pytest.raises(ModelError, match="fitted to h200, not to t4"):
        UnitPredictor(fitted).predict(elsewhere)


def some_units(counts: list[float], columns: dict[str, list[float]] | None = None) -> DistinctUnits:
    """Units of which only what is named is known."""
    features = np.zeros((len(counts), len(COLUMNS)), dtype=np.float32)
    for name, values in (columns or {}).items():
        features[:, COLUMNS.index(name)] = values
    return DistinctUnits(features, np.array(counts), np.ones(len(counts)), np.arange(len(counts)))


def test_mean_power_goes_by_the_time_of_every_repeat() -> None:
    units = some_units([1.0, 3.0])
    assert mean_power_w(units, np.array([2.0, 2.0]), np.array([100.0, 500.0])) == pytest.approx(400.0)
    assert mean_power_w(units, np.array([6.0, 2.0]), np.array([100.0, 500.0])) == pytest.approx(300.0)


@pytest.mark.parametrize(("distance", "count"), [(0.99, 0), (1.0, 0), (1.01, 1), (7.0, 1)])
def test_workloads_that_mix_known_parts_in_a_new_way_get_a_warning(
    trees: UnitModel, monkeypatch: pytest.MonkeyPatch, distance: float, count: int
) -> None:
    monkeypatch.setattr(UnitModel, "distances", lambda self, rows: np.full(len(rows), distance))
    warned = doubts(UnitPredictor(trees).predict(workload()), FAR_DOUBT)
    assert len(warned) == count


@pytest.mark.parametrize(
    ("compute_us", "memory_us", "launch_us", "bound"),
    [
        # kernels reach half of the peak of compute, and less than a third of the bandwidth
        (10.0, 9.0, 0.0, "memory"),
        (10.0, 5.0, 0.0, "compute"),
        (10.0, 9.0, 29.0, "memory"),
        (10.0, 5.0, 19.0, "compute"),
        (10.0, 5.0, 21.0, "launch"),
        (10.0, 9.0, 31.0, "launch"),
    ],
)
def test_what_limits_is_weighed_at_what_kernels_reach(
    compute_us: float, memory_us: float, launch_us: float, bound: str
) -> None:
    features = np.zeros((1, len(COLUMNS)), dtype=np.float32)
    features[0, COLUMNS.index("log_compute_us")] = np.log2(compute_us)
    features[0, COLUMNS.index("log_memory_us")] = np.log2(memory_us)
    units = Units(("Any",), ("forward",), ((0,),), features, np.array([max(compute_us, memory_us) + launch_us]))
    (row,) = operator_shares(units, np.array([1.0]), 1.0)
    assert row.bound == bound


class Fixed:
    """Trees, or a network, that always tell the same."""

    def __init__(self, value: float) -> None:
        self.value = value

    def predict(self, features: np.ndarray) -> np.ndarray:
        return np.full(len(features), self.value)


def fixed_model(trees: UnitModel, **answers: float) -> UnitModel:
    """A model whose trees tell these logarithms; those that are not named tell zero."""
    quantiles = dict.fromkeys(METRICS, 2.0)
    models = {name: Fixed(answers.get(name, 0.0)) for name in trees.models}
    return UnitModel(models, {**trees.card, "quantiles": quantiles}, trees.known, trees.reach)  # type: ignore[arg-type]


def test_corrections_are_logarithms_of_ratios(trees: UnitModel) -> None:
    sample = small_samples()[3]

    def answer(**answers: float) -> dict[str, float]:
        predictions = fixed_model(trees, **answers).predict(sample.units, sample.setting, 200.0)
        return {name: estimate.value for name, estimate in predictions.estimates.items()}

    plain = answer()
    twice = answer(latency_ms=np.log(2), power_w=np.log(0.5))
    ratios = {name: twice[name] / plain[name] for name in METRICS}
    # memory is counted, and nothing corrects it
    assert ratios == pytest.approx({"latency_ms": 2, "memory_mib": 1, "power_w": 0.5, "energy_j": 1.0})
    slower = answer(unit=np.log(4))
    assert slower["latency_ms"] == pytest.approx(4 * plain["latency_ms"])
    assert slower["energy_j"] == pytest.approx(4 * plain["energy_j"])


def test_an_interval_is_as_wide_as_the_expected_error_times_its_quantile(trees: UnitModel) -> None:
    sample = small_samples()[3]

    def width(expected: float) -> tuple[float, float]:
        answers = {f"{name}_error": float(np.log(expected)) for name in METRICS}
        estimate = fixed_model(trees, **answers).predict(sample.units, sample.setting, 200.0).estimates["latency_ms"]
        return estimate.low / estimate.value, estimate.high / estimate.value

    assert width(0.1) == pytest.approx((np.exp(-0.2), np.exp(0.2)))
    assert width(0.5) == pytest.approx((np.exp(-1.0), np.exp(1.0)))
    assert width(50.0) == pytest.approx((1 / 20, 20)), "no wider than a factor of twenty"


class FixedNetwork:
    """A network that tells one ratio and one power for every unit."""

    def predict(self, encoded: object, bound_us: np.ndarray) -> UnitPredictions:
        units = len(bound_us)
        return UnitPredictions(np.full(units, np.log(3.0)), np.linspace(100.0, 300.0, units), np.zeros(units))


def test_a_network_predicts_time_and_power(trees: UnitModel) -> None:
    models = {name: tree for name, tree in fixed_model(trees).models.items() if name not in ("unit", "power_w")}
    card = {**trees.card, "quantiles": dict.fromkeys(METRICS, 1.0)}
    model = UnitModel(models, card, trees.known, trees.reach, FixedNetwork())  # type: ignore[arg-type]
    sample = next(sample for sample in small_samples() if sample.units.counts.max() > 1 and len(sample.units) > 1)
    np.testing.assert_allclose(model.times_us(sample.units), 3 * sample.units.bound_us)
    answer = model.predict(sample.units, sample.setting, 1e9)
    predicted_w = np.linspace(100.0, 300.0, len(sample.units))
    spent_us = sample.units.bound_us * sample.units.counts
    assert answer.estimates["power_w"].value == pytest.approx((spent_us * predicted_w).sum() / spent_us.sum())
    assert answer.estimates["latency_ms"].value == pytest.approx(3 * spent_us.sum() / 1000)


def test_power_is_capped_at_what_the_device_may_draw(trees: UnitModel) -> None:
    tdp_w = H200.device.tdp_w
    modest = UnitPredictor(fixed_model(trees, power_w=-1.0, power_w_error=-3.0)).predict(workload()).power_w
    assert modest is not None
    assert modest.low < modest.value < modest.high < tdp_w
    greedy = UnitPredictor(fixed_model(trees, power_w=9.0, power_w_error=-9.0)).predict(workload()).power_w
    assert greedy is not None
    assert (greedy.low, greedy.value, greedy.high) == (tdp_w, tdp_w, tdp_w)
    wide = UnitPredictor(fixed_model(trees, power_w_error=0.0)).predict(workload()).power_w
    assert wide is not None
    assert wide.low < wide.value < wide.high == tdp_w


def test_distances_are_in_units_of_what_is_usual(trees: UnitModel) -> None:
    scale = {"middle": [1.0, 2.0], "spread": [2.0, 4.0], "far": 5.0}
    known = np.array([[0.0, 0.0]], dtype=np.float32)
    model = UnitModel(trees.models, {**trees.card, "distance": scale}, known, trees.reach)
    distances = model.distances(np.array([[1.0, 2.0], [1.0 + 2 * 3, 2.0 + 4 * 4]], dtype=np.float32))
    assert distances == pytest.approx([0.0, 1.0])  # the second is 3 and 4 spreads away: 5 in all


def test_shares_of_units_are_scaled_to_the_total() -> None:
    names, phases = ("Conv", "Relu", "Conv", "Conv"), ("forward", "forward", "forward", "backward")
    features = np.zeros((4, len(COLUMNS)), dtype=np.float32)
    units = Units(names, phases, ((0,), (1,), (2,), (2,)), features, np.ones(4))
    rows = operator_shares(units, np.array([1.0, 2.0, 2.0, 5.0]), 20.0)
    shares = [(row.operator, row.count, row.latency_ms, row.share) for row in rows]
    assert shares == [("Conv (backward)", 1, 10.0, 0.5), ("Conv", 2, 6.0, 0.3), ("Relu", 1, 4.0, 0.2)]


def test_what_limits_is_summed_over_the_units_of_an_operator() -> None:
    features = np.zeros((2, len(COLUMNS)), dtype=np.float32)
    features[:, COLUMNS.index("log_compute_us")] = np.log2([100.0, 1.0])
    features[:, COLUMNS.index("log_memory_us")] = np.log2([1.0, 10.0])
    units = Units(("A", "A"), ("forward", "forward"), ((0,), (1,)), features, np.array([101.0, 11.0]))
    (row,) = operator_shares(units, np.array([1.0, 9.0]), 1.0)
    assert row.bound == "compute"  # 202 µs against 37, and 2 of launches


def test_a_distant_and_sliced_workload_gets_two_warnings(trees: UnitModel, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(UnitModel, "distances", lambda self, rows: np.full(len(rows), 2.5))
    part = replace(workload(), target=Target(H200.device, parse_slice("mps:50", H200.device)))
    warnings = UnitPredictor(trees).predict(part).warnings
    assert warnings[-2].startswith(FAR_DOUBT)
    assert warnings[-1].startswith(SLICE_DOUBT)


def test_a_card_without_a_device_answers_for_all(trees: UnitModel) -> None:
    anywhere = UnitModel(trees.models, {**trees.card, "device": ""}, trees.known, trees.reach)
    card = {k: v for k, v in trees.card.items() if k != "device"}
    nameless = UnitModel(trees.models, card, trees.known, trees.reach)
    elsewhere = replace(workload(), target=Target(find_device("t4")))
    for model in (anywhere, nameless):
        assert UnitPredictor(model).predict(elsewhere).device == "t4"
        distinct = DistinctUnits.of(extract_units(elsewhere))
        np.testing.assert_array_equal(UnitPredictor(model).unit_times_us(elsewhere, distinct), model.times_us(distinct))


def test_nearest_counts_no_more_than_there_are_and_never_below_zero() -> None:
    known = np.array([[3.0, 4.0]] * 2, dtype=np.float32)
    assert nearest(np.array([[0.0, 0.0], [3.0, 4.0]], dtype=np.float32), known) == pytest.approx([5.0, 0.0])
    large = np.full((6, 3), 1e4, dtype=np.float32) + np.arange(6, dtype=np.float32)[:, None] * 1e-3
    assert np.isfinite(nearest(large, large)).all()
    assert NEIGHBOURS == 5


@pytest.mark.parametrize("predictor", [UnitPredictor, UnitTreesPredictor])
def test_an_operator_newer_than_the_fit_is_predicted_like_others_of_its_kind(
    predictor: type[UnitPredictor], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(operators.OPERATORS, "Newest", operators.OPERATORS["Gelu"])
    monkeypatch.setitem(operator_codes._CODES, "Newest", len(operator_codes.CODED))
    shape = (64, 1024, 1024)
    newest, gelu = (predictor().predict(Workload(one_node(op, [shape], [shape]), H200)) for op in ("Newest", "Gelu"))
    assert newest.coverage == 1.0
    assert newest.latency_ms.value == pytest.approx(gelu.latency_ms.value, rel=0.5)
