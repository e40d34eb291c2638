"""Latency on a part of a device: never faster than on more of it, and all of it is the whole."""

import json
from dataclasses import replace

import numpy as np
import pytest

from foretell.devices import find_device, parse_slice
from foretell.errors import ModelError
from foretell.features import extract_units
from foretell.features.pooled import DistinctUnits
from foretell.predictors.explain import explain
from foretell.predictors.roofline import RooflinePredictor
from foretell.predictors.slices import model as slice_model
from foretell.predictors.slices.features import SLICE_COLUMNS
from foretell.predictors.slices.model import SlicedPredictor, SliceModel, on_slices, write
from foretell.records import OperatorShare, Prediction, Target, Workload
from small.small_samples import blocks

H200 = find_device("h200")
WIDTH = len(SLICE_COLUMNS)


class Doubling(RooflinePredictor):
    """A predictor whose units take twice their bound."""

    def predict(self, workload: Workload) -> Prediction:
        doubt = ("On a slice this is a guess.",) if workload.target.slice else ()
        rows = (OperatorShare("Relu", 6, 1.0, 0.9, "memory"), OperatorShare("MatMul", 6, 1.0, 0.1, "launch"))
        return replace(super().predict(workload), warnings=doubt, breakdown=rows)

    def unit_times_us(self, work: Workload, units: DistinctUnits) -> np.ndarray:
        del work
        return units.bound_us * 2


def model(base: float = 0.0, product: float = 2.0, cost_us: float = 0.5, errors=((0.1, 0.3), (1.0, 0.1))) -> SliceModel:
    weights = [product if name == "product" else 0.0 for name in SLICE_COLUMNS]
    return SliceModel("h200", base, tuple(weights), (0.0,) * WIDTH, (1.0,) * WIDTH, cost_us, errors)


def on(slice_: str | None, batch: int = 64) -> Workload:
    return Workload(blocks(batch, 512), Target(H200, parse_slice(slice_, H200) if slice_ else None))


def test_more_sms_are_never_slower_and_all_sms_equal_the_full_device():
    sliced, plain = SlicedPredictor(Doubling(), model()), Doubling()
    full = plain.predict(on(None)).latency_ms
    for kind, parts in (("sms", range(4, 133, 8)), ("mps", range(10, 101, 10))):
        times = [sliced.predict(on(f"{kind}:{part}")).latency_ms.value for part in parts]
        assert times == sorted(times, reverse=True)
        assert times[0] > 2 * times[-1]
    assert sliced.predict(on("sms:132")).latency_ms == full
    assert sliced.predict(on("mps:100")).latency_ms.value > full.value, "MPS costs something itself"


def test_a_share_of_the_time_follows_the_sms():
    """Half of every unit does, so that half as many SMs take one and a half times as long."""
    halves = SlicedPredictor(Doubling(), model(product=0.0, cost_us=0.0))
    full = Doubling().predict(on(None)).latency_ms.value
    assert halves.predict(on("sms:66")).latency_ms.value == pytest.approx(1.5 * full)
    assert halves.predict(on("mps:50")).latency_ms.value == pytest.approx(1.5 * full)
    free = SlicedPredictor(Doubling(), model(base=-15.0, product=0.0, cost_us=0.0))
    assert free.predict(on("sms:8")).latency_ms.value == pytest.approx(full, rel=1e-4)


def test_intervals_are_wider_on_small_slices():
    sliced = SlicedPredictor(Doubling(), model())
    small, large = (sliced.predict(on(part)).latency_ms for part in ("sms:14", "sms:126"))
    assert small.low < small.value < small.high
    assert small.high / small.value > large.high / large.value > 1
    assert SlicedPredictor(Doubling(), model(errors=())).model.width(0.5) == 0.0
    assert model().width(0.55) == pytest.approx(0.2)


def test_metrics_that_depend_on_the_latency_follow_it():
    sliced = SlicedPredictor(Doubling(), model())
    prediction, guessed = sliced.predict(on("mps:20")), Doubling().predict(on("mps:20"))
    assert prediction.slice == "mps:20"
    assert prediction.warnings == ()
    assert guessed.warnings
    assert prediction.throughput_per_s.value == pytest.approx(64 / prediction.latency_ms.value * 1000)
    assert prediction.power_w == guessed.power_w
    assert prediction.memory_mib == guessed.memory_mib
    assert prediction.energy_j.value == pytest.approx(prediction.power_w.value * prediction.latency_ms.value / 1000)
    assert [row.operator for row in prediction.breakdown] == ["MatMul", "Relu"]
    assert sum(row.latency_ms for row in prediction.breakdown) == pytest.approx(prediction.latency_ms.value)


def test_units_are_timed_on_the_slice():
    sliced = SlicedPredictor(Doubling(), model(cost_us=0.0))
    work = on("sms:13")
    distinct = DistinctUnits.of(extract_units(work))
    times, alone = sliced.unit_times_us(work, distinct), Doubling().unit_times_us(on(None), distinct)
    assert len(times) == len(distinct)
    assert (times > 0).all()
    assert times[np.argmax(distinct.bound_us)] != alone[np.argmax(distinct.bound_us)]
    rows = explain(work, sliced, 5.0)
    assert sum(row.latency_ms for row in rows) == pytest.approx(5.0)
    on_device = DistinctUnits.of(extract_units(on(None)))
    assert (sliced.unit_times_us(on(None), on_device) == Doubling().unit_times_us(on(None), on_device)).all()


@pytest.mark.parametrize("part", [None, "mig:1g.18gb"])
def test_full_devices_and_mig_are_left_to_the_predictor(part):
    assert SlicedPredictor(Doubling(), model()).predict(on(part)) == Doubling().predict(on(part))


def test_a_predictor_without_units_or_a_device_without_a_fit_stays_as_it_is(monkeypatch):
    plain = RooflinePredictor()
    assert on_slices(plain, "h200") is plain
    doubling = Doubling()
    assert on_slices(doubling, "l4") is doubling
    monkeypatch.setattr(slice_model, "shipped", lambda _: model())
    assert isinstance(on_slices(doubling, "h200"), SlicedPredictor)


def test_the_shipped_model_scales_large_work_and_leaves_small_work_alone():
    fitted = slice_model.shipped("h200")
    assert fitted is not None
    assert 0.1 < fitted.mps_launch_us < 1.0
    sliced = SlicedPredictor(Doubling(), fitted)
    growth = []
    for batch in (1, 8192):
        full = sliced.predict(on(None, batch)).latency_ms.value
        growth.append(sliced.predict(on("mps:10", batch)).latency_ms.value / full)
    assert growth[0] < 2.5 < 5 < growth[1] < 11.5


def test_what_is_written_is_read():
    written = write(model(), {"workloads": 3})
    assert SliceModel.load(written) == model()
    assert json.loads(written)["workloads"] == 3


def test_what_is_damaged_or_of_other_features_is_refused():
    with pytest.raises(ModelError, match="not a fitted model of slices"):
        SliceModel.load(b"{}")
    with pytest.raises(ModelError, match="not a fitted model of slices"):
        SliceModel.load(b"\xff\x00")
    other = json.loads(write(model(), {}))
    with pytest.raises(ModelError, match="fit it again"):
        SliceModel.load(json.dumps({**other, "schema": "another"}).encode())
    other["fitted"]["weights"] = [1.0]
    with pytest.raises(ModelError, match="fit it again"):
        SliceModel.load(json.dumps(other).encode())
