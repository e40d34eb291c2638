"""Serving a fitted model: a prediction is whole: intervals, shares, doubts; what is shipped is what was fitted."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from foretell.devices import find_device, parse_slice
from foretell.errors import ModelError
from foretell.features import COLUMNS, Units, extract_units, operator_codes
from foretell.features.pooled import DistinctUnits
from foretell.graph.ir import operators
from foretell.predictors.fitted_files import write_fitted
from foretell.predictors.roofline import CONTEXT_MIB, RooflinePredictor
from foretell.predictors.unit.model import METRICS, UnitModel
from foretell.predictors.unit.predictor import UnitPredictor, UnitTreesPredictor, operator_shares, shipped
from foretell.records import Prediction, Target, Workload
from foretell.testing import one_node
from small.fixed_trees import fixed_model
from small.small_samples import H200, blocks, workload

pytest.importorskip("lightgbm")

SLICE_DOUBT = "Fitted to whole devices"
FAR_DOUBT = "Every part is like one that was measured"
NEW_DOUBT = "100% of the time is in parts unlike anything measured"


def doubts(prediction: Prediction, start: str) -> list[str]:
    return [text for text in prediction.warnings if text.startswith(start)]


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


def test_what_nobody_measured_is_absent_or_counted(trees: UnitModel) -> None:
    named = {
        name: model for name, model in trees.models.items() if not name.startswith(("power_w", "energy_j", "memory"))
    }
    times_alone = UnitModel(named, trees.card, trees.known, trees.reach)
    work = workload(64, 64)
    prediction = UnitPredictor(times_alone).predict(work)
    assert prediction.power_w is None
    assert prediction.energy_j is None
    assert prediction.memory_mib == RooflinePredictor().predict(work).memory_mib
    assert prediction.latency_ms == UnitPredictor(trees).predict(work).latency_ms


def test_a_precision_or_mode_that_nobody_measured_is_left_to_the_roofline(trees: UnitModel) -> None:
    card = {**trees.card, "settings": ["inference fp32"]}
    narrow = UnitPredictor(UnitModel(trees.models, card, trees.known, trees.reach))
    assert narrow.predict(workload(64, 64, "fp32")).predictor == "unit-trees"
    for dtype, mode in (("fp16", "inference"), ("fp32", "training")):
        prediction = narrow.predict(workload(64, 64, dtype, mode))
        assert prediction.predictor == "roofline"
        assert prediction.extrapolated
        assert prediction.warnings[0].startswith(
            f"Nothing was measured in {mode} {dtype} on h200, only in inference fp32"
        )


@pytest.mark.parametrize(
    ("measured", "dtype", "mode", "note"),
    [
        (["inference fp32"], "fp32", "prefill", ""),
        (["inference fp16", "training bf16"], "fp16", "training", "training fp16; training bf16 was"),
        (["inference fp16", "training bf16"], "bf16", "training", ""),
    ],
)
def test_what_was_measured_stands_for_what_has_the_same_kernels(
    trees: UnitModel, measured: list[str], dtype: str, mode: str, note: str
) -> None:
    card = {**trees.card, "settings": measured}
    predictor = UnitPredictor(UnitModel(trees.models, card, trees.known, trees.reach))
    prediction = predictor.predict(workload(64, 64, dtype, mode))
    assert prediction.predictor == "unit-trees"
    assert [text for text in prediction.warnings if "Nothing was measured" in text] == (
        [f"Nothing was measured in {note}, and half precisions are alike."] if note else []
    )


def test_tf32_is_fp32_with_an_option(trees: UnitModel) -> None:
    card = {**trees.card, "settings": ["inference fp32"]}
    predictor = UnitPredictor(UnitModel(trees.models, card, trees.known, trees.reach))
    asked = replace(workload(64, 64, "fp32"), dtype="tf32")
    assert predictor.predict(asked).predictor == "unit-trees"


def test_a_half_precision_that_nobody_measured_in_any_mode_has_no_stand_in(trees: UnitModel) -> None:
    card = {**trees.card, "settings": ["inference bf16"]}
    predictor = UnitPredictor(UnitModel(trees.models, card, trees.known, trees.reach))
    assert predictor.predict(workload(64, 64, "fp16")).predictor == "roofline"


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
    with pytest.raises(ModelError, match=r"No unit-trees is fitted to t4, only to cpu\. Use --predictor"):
        shipped("t4", "unit-trees")


SHIPPED = [(UnitPredictor, "h200"), (UnitTreesPredictor, "cpu")]


@pytest.mark.parametrize(("predictor", "device"), SHIPPED)
def test_what_is_shipped_answers_for_the_device_it_was_fitted_to(predictor: type[UnitPredictor], device: str) -> None:
    assert shipped(device, predictor.name).card["predictor"] == predictor.name
    asked = replace(workload(64, 8), target=Target(find_device(device)), dtype="fp32")
    prediction = predictor().predict(asked)
    assert prediction.predictor == predictor.name
    roofline = RooflinePredictor().predict(asked)
    assert 0.2 < prediction.latency_ms.value / roofline.latency_ms.value < 5


def test_a_shipped_file_that_was_changed_is_refused(file: bytes, tmp_path: Path, monkeypatch) -> None:
    folder = tmp_path / "trained"
    folder.mkdir()
    entry = {"file": "trees.zip", "sha256": "0" * 64}
    write_fitted(folder, "index.json", json.dumps({"h200": {"unit-trees": entry}}).encode())
    (folder / "trees.zip").write_bytes(file)
    monkeypatch.setattr("foretell.predictors.unit.predictor.TRAINED", folder)
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
    bound_us = np.array([max(compute_us, memory_us) + launch_us])
    units = Units(("Any",), ("forward",), ((0,),), features, bound_us, np.arange(1))
    (row,) = operator_shares(units, np.array([1.0]), 1.0)
    assert row.bound == bound


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


def test_shares_of_units_are_scaled_to_the_total() -> None:
    names, phases = ("Conv", "Relu", "Conv", "Conv"), ("forward", "forward", "forward", "backward")
    features = np.zeros((4, len(COLUMNS)), dtype=np.float32)
    units = Units(names, phases, ((0,), (1,), (2,), (2,)), features, np.ones(4), np.arange(4))
    rows = operator_shares(units, np.array([1.0, 2.0, 2.0, 5.0]), 20.0)
    shares = [(row.operator, row.count, row.latency_ms, row.share) for row in rows]
    assert shares == [("Conv (backward)", 1, 10.0, 0.5), ("Conv", 2, 6.0, 0.3), ("Relu", 1, 4.0, 0.2)]


def test_what_limits_is_summed_over_the_units_of_an_operator() -> None:
    features = np.zeros((2, len(COLUMNS)), dtype=np.float32)
    features[:, COLUMNS.index("log_compute_us")] = np.log2([100.0, 1.0])
    features[:, COLUMNS.index("log_memory_us")] = np.log2([1.0, 10.0])
    units = Units(("A", "A"), ("forward", "forward"), ((0,), (1,)), features, np.array([101.0, 11.0]), np.arange(2))
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


@pytest.mark.parametrize(("predictor", "device"), SHIPPED)
def test_an_operator_newer_than_the_fit_is_predicted_like_others_of_its_kind(
    predictor: type[UnitPredictor], device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = Target(find_device(device))
    monkeypatch.setitem(operators.OPERATORS, "Newest", operators.OPERATORS["Gelu"])
    monkeypatch.setitem(operator_codes._CODES, "Newest", len(operator_codes.CODED))
    shape = (64, 1024, 1024)
    newest, gelu = (predictor().predict(Workload(one_node(op, [shape], [shape]), target)) for op in ("Newest", "Gelu"))
    assert newest.coverage == 1.0
    assert newest.latency_ms.value == pytest.approx(gelu.latency_ms.value, rel=0.5)
