"""A GPU that nobody measured: its peaks and its SMs set the time, and the device that was measured is told as it is."""

import gc
from dataclasses import replace

import numpy as np
import pytest

from foretell.devices import find_device, parse_slice
from foretell.errors import DeviceError, InputError
from foretell.features import extract_units
from foretell.features.pooled import DistinctUnits
from foretell.graph import Graph, Tensor
from foretell.predictors import best_predictor, find_predictor
from foretell.predictors.roofline import RooflinePredictor
from foretell.predictors.transfer import TransferPredictor, predictor
from foretell.predictors.transfer.model import shipped_numbers
from foretell.predictors.unit.predictor import shipped
from foretell.records import Target, Workload
from foretell.testing import tiny_onnx
from foretell.workflows.workload import load_graph
from small.small_samples import blocks

H200, A100 = find_device("h200"), find_device("a100")


def workload(device: object = A100, batch: int = 256, part: str = "") -> Workload:
    target = Target(device, parse_slice(part, device) if part else None)  # type: ignore[arg-type]
    return Workload(blocks(batch, 4096), target)


def latency_ms(work: Workload) -> float:
    latency = TransferPredictor().predict(work).latency_ms
    assert latency is not None
    return latency.value


def test_it_answers_where_nothing_is_fitted() -> None:
    assert best_predictor("h200") == "unit-network"
    assert [best_predictor(name) for name in ("l4", "t4", "rtx-4090", "p100")] == ["transfer"] * 4
    assert (best_predictor("cpu"), best_predictor("mi300x")) == ("unit-trees", "roofline")
    with pytest.raises(DeviceError):
        best_predictor("somebody's")
    assert isinstance(find_predictor(None, "a100-sxm-40gb"), TransferPredictor)


def test_on_the_measured_device_units_take_the_times_of_its_network() -> None:
    work = workload(H200)
    units = DistinctUnits.of(extract_units(work))
    expected = shipped("h200", "unit-network").times_us(units)
    times_us = TransferPredictor().unit_times_us(work, units)
    np.testing.assert_allclose(times_us, expected, rtol=0.02)


def test_peaks_and_sms_set_the_time() -> None:
    full_ms = latency_ms(workload())
    half = replace(A100, id="half", bandwidth_gb_per_s=A100.bandwidth_gb_per_s / 2)
    slow = replace(A100, id="slow", boost_clock_mhz=A100.boost_clock_mhz / 2)
    both = replace(half, id="both", boost_clock_mhz=slow.boost_clock_mhz)
    assert full_ms < latency_ms(workload(half)) < 2 * full_ms
    assert full_ms < latency_ms(workload(slow)) < 2 * full_ms
    assert latency_ms(workload(H200)) < full_ms < latency_ms(workload(part="mig:1g.5gb"))
    assert latency_ms(workload(both)) > max(latency_ms(workload(half)), latency_ms(workload(slow)))


def test_memory_is_that_of_the_roofline_and_energy_is_power_times_latency() -> None:
    work = workload()
    predicted, base = TransferPredictor().predict(work), RooflinePredictor().predict(work)
    assert (predicted.predictor, predicted.memory_mib) == ("transfer", base.memory_mib)
    assert predicted.extrapolated
    assert predicted.latency_ms is not None
    assert predicted.energy_j is not None
    assert predicted.power_w is not None
    assert 0.2 * A100.tdp_w < predicted.power_w.value <= predicted.power_w.high <= A100.tdp_w
    assert predicted.energy_j.value == pytest.approx(predicted.power_w.value * predicted.latency_ms.value / 1e3)
    assert "no measurement of a whole model on NVIDIA A100" in predicted.warnings[0]
    assert not any("analytic roofline until" in text for text in predicted.warnings)
    assert sum(row.share for row in predicted.breakdown) == pytest.approx(1.0)
    assert sum(row.latency_ms for row in predicted.breakdown) == pytest.approx(predicted.latency_ms.value)


def width(work: Workload) -> float:
    latency = TransferPredictor().predict(work).latency_ms
    assert latency is not None
    return latency.high / latency.value


def test_intervals_are_wider_for_an_architecture_without_measurements() -> None:
    new = replace(A100, id="new", architecture="Rubin")
    assert 1.1 < width(workload()) < width(workload(new)) < 3.0
    # training was measured on one other GPU alone
    half = replace(shipped_numbers(), device_width=0.1, far_width=0.5)
    by = TransferPredictor(half)
    inference, training = (replace(workload(), mode=mode, optimizer=None) for mode in ("inference", "training"))
    assert by._half_width(inference, np.ones(4)) < by._half_width(training, np.ones(4))
    numbers = shipped_numbers()
    assert 0 < numbers.device_width <= numbers.far_width
    assert {"Ampere", "Ada Lovelace", "Pascal"} <= set(numbers.architectures)


def test_a_card_that_cannot_hold_its_clock_says_so_and_draws_its_limit() -> None:
    heavy = TransferPredictor().predict(workload(find_device("t4"), batch=4096))
    assert heavy.power_w is not None
    assert heavy.power_w.value == pytest.approx(70.0, rel=0.01)
    assert any("cannot hold its boost clock" in text for text in heavy.warnings)
    light = TransferPredictor().predict(workload(find_device("t4"), batch=1))
    assert not any("cannot hold its boost clock" in text for text in light.warnings)
    steady = replace(find_device("t4"), id="steady", base_clock_mhz=1590)
    assert latency_ms(workload(steady, batch=4096)) < 0.8 * latency_ms(workload(find_device("t4"), batch=4096))


def test_streams_do_not_draw_the_limit_where_memory_is_slow() -> None:
    # an A40 has a third of the bandwidth for each watt that an H200 has
    told = [TransferPredictor().predict(workload(device, batch=1)).power_w for device in (find_device("a40"), H200)]
    assert told[0] is not None
    assert told[1] is not None
    assert told[0].value / 300 < 0.8 * told[1].value / 700


@pytest.mark.parametrize("name", ["p100", "v100-sxm2-16gb", "t4", "a100", "l40s", "rtx-4090", "h100-sxm", "b200"])
@pytest.mark.parametrize("batch", [1, 64, 4096])
def test_less_of_anything_is_never_faster(name: str, batch: int) -> None:
    device = find_device(name)
    full_ms = latency_ms(workload(device, batch))
    assert device.boost_clock_mhz
    fields = ("sms", "bandwidth_gb_per_s", "l2_mib", "boost_clock_mhz")
    for field in fields:
        less = replace(device, id="less", **{field: type(getattr(device, field))(getattr(device, field) * 0.7)})
        if field in ("sms", "boost_clock_mhz"):  # peaks follow
            peaks = {
                kind: {k: 0.7 * v for k, v in getattr(device, kind).items()}
                for kind in ("tensor_tflops", "vector_tflops")
            }
            base = None if device.base_clock_mhz is None or field == "sms" else 0.7 * device.base_clock_mhz
            less = replace(less, **peaks, base_clock_mhz=base or device.base_clock_mhz)
        assert latency_ms(workload(less, batch)) >= full_ms * (1 - 1e-4), field
    half_ms = latency_ms(workload(device, batch, part=f"sms:{device.sms // 2}"))
    assert half_ms >= full_ms * (1 - 1e-4)


def test_a_sweep_asks_the_network_once_and_nothing_outlives_its_graph(monkeypatch: pytest.MonkeyPatch) -> None:
    work = workload()
    first = latency_ms(work)
    places = [key for key in predictor._cache if predictor._cache[key][0]() is work.graph]
    assert len(places) == 1
    monkeypatch.setattr(predictor, "shipped", lambda *_: pytest.fail("asked again"))
    assert latency_ms(work) == first
    assert latency_ms(replace(work, target=Target(H200))) < first
    del work
    gc.collect()
    assert places[0] not in predictor._cache


def test_cpus_are_refused() -> None:
    with pytest.raises(InputError, match="cpu is not: use --predictor roofline"):
        TransferPredictor().predict(workload(find_device("cpu")))


def half_width(work: Workload, by: object = None) -> float:
    latency = (by or TransferPredictor()).predict(work).latency_ms  # type: ignore[attr-defined]
    assert latency is not None
    return float(np.log(latency.high / latency.value))


def test_parts_unlike_anything_on_the_measured_device_are_named_and_widen_the_interval() -> None:
    known, new = (Workload(blocks(256, width), Target(A100)) for width in (128, 2**17))
    (note,) = [note for note in TransferPredictor().predict(new).warnings if "unlike anything" in note]
    assert note.startswith("100% of the time is in parts unlike anything measured on an H200, so intervals are wider")
    assert "MatMul (" in note
    assert not [note for note in TransferPredictor().predict(known).warnings if "unlike anything" in note]
    assert half_width(new) > half_width(known) + 0.05
    for work in (known, new):  # the measured device's own doubt is a part of the width
        there = replace(work, target=Target(H200))
        assert half_width(work) > half_width(there, find_predictor(None, "h200"))


def test_a_power_limit_that_was_lowered_slows_what_would_draw_more() -> None:
    card = find_device("rtx-4090")
    free = TransferPredictor().predict(workload(card, 4096))
    before_ms, before_w = free.latency_ms, free.power_w
    assert before_ms is not None
    assert before_w is not None
    earlier_ms = before_ms.value
    for limit_w in (card.tdp_w, 0.7 * before_w.value, 0.5 * before_w.value, 0.25 * before_w.value):
        limited = TransferPredictor().predict(workload(replace(card, tdp_w=limit_w, rated_tdp_w=card.tdp_w), 4096))
        assert limited.latency_ms is not None
        assert limited.power_w is not None
        assert limited.power_w.high <= limit_w + 1e-9
        if limit_w < card.tdp_w:
            assert limited.latency_ms.value > 1.05 * earlier_ms
            assert any(f"At {limit_w:.0f} W" in text for text in limited.warnings)
        earlier_ms = limited.latency_ms.value
    assert any("nothing that low" in text for text in limited.warnings)
    raised = TransferPredictor().predict(workload(replace(card, tdp_w=600.0, rated_tdp_w=card.tdp_w), 4096))
    assert raised.latency_ms == free.latency_ms
    assert raised.power_w == free.power_w


def test_many_are_answered_as_one_by_one_and_the_network_is_asked_once(monkeypatch: pytest.MonkeyPatch) -> None:
    names, batches = ("a100", "t4", "l4", "h100-sxm"), (3, 700)
    works = [workload(find_device(name), batch) for name in names for batch in batches]
    works.append(workload(A100, 3, part="mig:1g.5gb"))
    alone = [TransferPredictor().predict(workload(work.target.device, work.batch_size)) for work in works[:-1]]
    alone.append(TransferPredictor().predict(workload(A100, 3, part="mig:1g.5gb")))
    model = shipped("h200", "unit-network")
    asked: list[int] = []
    real = model.predict_many
    monkeypatch.setattr(model, "predict_many", lambda questions: asked.append(len(questions)) or real(questions))
    together = TransferPredictor().predict_many(works)
    assert asked == [len(works)]
    for one, other in zip(together, alone, strict=True):
        assert (one.device, one.slice, one.batch_size, one.warnings) == (
            other.device, other.slice, other.batch_size, other.warnings,
        )  # fmt: skip
        for metric in ("latency_ms", "power_w", "energy_j", "memory_mib"):
            expected = getattr(other, metric)
            found = getattr(one, metric)
            assert (found.value, found.low, found.high) == pytest.approx(
                (expected.value, expected.low, expected.high), rel=1e-6
            )
        assert [row.operator for row in one.breakdown] == [row.operator for row in other.breakdown]


def test_a_graph_without_units_is_answered_among_others() -> None:
    empty = Workload(Graph.build("empty", [], {"x": Tensor("x", (1,), kind="input")}, ["x"], ["x"]), Target(A100))
    known = workload()
    first, second = TransferPredictor().predict_many([empty, known])
    assert (first.predictor, second.predictor) == ("roofline", "transfer")


def test_a_small_convolution_is_not_faster_on_an_old_gpu() -> None:
    graph = load_graph(tiny_onnx(), batch_size=1)
    times = [
        TransferPredictor().predict(Workload(graph, Target(find_device(name)))).latency_ms
        for name in ("p4", "t4", "p100", "v100-pcie-32gb")
    ]
    newest = find_predictor(None, "h200").predict(Workload(graph, Target(find_device("h200")))).latency_ms
    assert newest is not None
    assert all(time is not None and time.value >= newest.value for time in times)
