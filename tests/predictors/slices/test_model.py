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
from foretell.predictors.slices.features import SLICE_COLUMNS, fits_cache, launches_of, traffic_shares
from foretell.predictors.slices.model import SlicedPredictor, SliceModel, on_slices, shares_with, write
from foretell.predictors.transfer import TransferPredictor
from foretell.records import Estimate, OperatorShare, Prediction, Target, Workload
from small.small_samples import blocks

H200 = find_device("h200")
WIDTH = len(SLICE_COLUMNS)
FLOOR_W = 100.0


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
    return SliceModel("h200", base, tuple(weights), (0.0,) * WIDTH, (1.0,) * WIDTH, cost_us, errors, FLOOR_W)


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
    assert sliced.predict(on("mps:100")).latency_ms.value == full.value


def test_a_share_of_the_time_follows_the_sms():
    """Half of every unit does, so that half as many SMs take one and a half times as long."""
    halves = SlicedPredictor(Doubling(), model(product=0.0, cost_us=0.0))
    full = Doubling().predict(on(None)).latency_ms.value
    assert halves.predict(on("sms:66")).latency_ms.value == pytest.approx(1.5 * full)
    assert halves.predict(on("mps:50")).latency_ms.value == pytest.approx(1.5 * full)
    free = SlicedPredictor(Doubling(), model(base=-15.0, product=0.0, cost_us=0.0))
    assert free.predict(on("sms:16")).latency_ms.value == pytest.approx(full, rel=1e-4)


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
    full = Doubling().predict(on(None))
    slowdown = prediction.latency_ms.value / full.latency_ms.value
    assert prediction.power_w.value == pytest.approx(FLOOR_W + (full.power_w.value - FLOOR_W) / slowdown)
    assert prediction.power_w.low < prediction.power_w.value < prediction.power_w.high
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


def test_a_full_device_is_left_to_the_predictor():
    assert SlicedPredictor(Doubling(), model()).predict(on(None)) == Doubling().predict(on(None))


def test_the_cost_of_mps_with_all_sms_is_in_the_interval_and_in_a_warning():
    sliced, full = SlicedPredictor(Doubling(), model(cost_us=2.0)), Doubling().predict(on(None))
    prediction = sliced.predict(on("mps:100"))
    launches = launches_of(extract_units(on(None)).features).sum()
    assert prediction.latency_ms.high == pytest.approx(full.latency_ms.high + 2e-3 * launches)
    assert (prediction.latency_ms.value, prediction.latency_ms.low) == (full.latency_ms.value, full.latency_ms.low)
    share = 2e-3 * launches / full.latency_ms.value
    assert prediction.warnings == (f"MPS itself may cost about {share:.0%} here: measured, but not part of the value.",)
    assert sliced.predict(on("mps:90")).latency_ms.value > 1.02 * full.latency_ms.value
    cheap = SlicedPredictor(Doubling(), model(cost_us=1e-4)).predict(on("mps:100"))
    assert (cheap.warnings, cheap.latency_ms) == ((), full.latency_ms)


def test_a_mig_instance_is_slower_by_its_sms_or_its_bandwidth_and_marked_as_extrapolated():
    sliced, full = SlicedPredictor(Doubling(), model(cost_us=0.0)), Doubling().predict(on(None))
    small, large = (sliced.predict(on(f"mig:{name}")) for name in ("1g.18gb", "4g.71gb"))
    assert small.latency_ms.value > large.latency_ms.value > full.latency_ms.value
    assert small.extrapolated
    assert any("MIG was not measured" in warning for warning in small.warnings)
    assert small.latency_ms.high / small.latency_ms.value > np.exp(0.3)
    assert small.power_w.value < large.power_w.value < full.power_w.value
    # no unit notices the SMs: only the share of its time that is traffic grows, with the bandwidth that is missing
    part = parse_slice("mig:1g.18gb", H200)
    units = DistinctUnits.of(extract_units(on(None)))
    free, whole_us = model(base=-20.0, product=0.0, cost_us=0.0), units.bound_us * 2
    ratio = free.unit_times_us(units.features, whole_us, part, H200.sms) / whole_us
    expected = 1 + traffic_shares(units.features, whole_us) * (1 / part.bandwidth_fraction - 1)
    np.testing.assert_allclose(ratio, expected, rtol=1e-5)
    assert (traffic_shares(units.features, whole_us) <= 1).all()
    assert ratio.max() > 1.2
    # what fits into the instance's part of the cache is moved there, twice as fast
    cached = free.unit_times_us(units.features, whole_us, part, H200.sms, l2_mib=1024.0) / whole_us
    expected = 1 + traffic_shares(units.features, whole_us) * (1 / (2 * part.l2_fraction) - 1)
    np.testing.assert_allclose(cached, expected, rtol=1e-5)
    assert not fits_cache(units.features, 0.0).any()


def test_a_device_below_its_floor_draws_the_same_on_a_slice():
    assert model().power_w(Estimate(90.0, 80.0, 300.0), 2.0) == Estimate(90.0, 80.0, 200.0)


def test_a_predictor_without_units_or_a_device_without_a_fit_stays_as_it_is(monkeypatch):
    plain = RooflinePredictor()
    assert on_slices(plain, H200) is plain
    doubling = Doubling()
    assert on_slices(doubling, find_device("cpu")) is doubling
    assert isinstance(on_slices(doubling, find_device("l4")), SlicedPredictor)  # as the measured device is divided
    monkeypatch.setattr(slice_model, "shipped", lambda _: None)
    assert on_slices(doubling, H200) is doubling


def test_other_gpus_are_divided_as_the_measured_one_sm_for_sm():
    fitted, a100 = slice_model.shipped("h200"), find_device("a100")
    assert fitted is not None
    sliced = on_slices(TransferPredictor(), a100)
    growth = {}
    for batch in (1, 8192):
        graph = blocks(batch, 512)
        full = sliced.predict(Workload(graph, Target(a100)))
        parts = [Workload(graph, Target(a100, parse_slice(f"mig:{name}", a100))) for name in ("1g.5gb", "2g.10gb")]
        first, second = (sliced.predict(part) for part in parts)
        assert first.latency_ms.value > second.latency_ms.value > full.latency_ms.value
        assert any("measured on an H200 alone" in note for note in first.warnings)
        assert first.power_w.value <= full.power_w.value
        growth[batch] = first.latency_ms.value / full.latency_ms.value
    # little work leaves most of a large GPU idle: its peaks alone would say 7.7 times for both
    assert growth[1] < 2.5 < 5 < growth[8192] < 8.5
    every = Workload(blocks(64, 512), Target(a100, parse_slice("sms:108", a100)))
    whole = Workload(every.graph, Target(a100))
    assert sliced.predict(every).latency_ms.value == sliced.predict(whole).latency_ms.value


def test_a_device_with_fewer_sms_is_filled_more():
    shares = np.array([0.2, 0.9])
    np.testing.assert_allclose(shares_with(shares, 132, 132), shares)
    assert (shares_with(shares, 132, 40) > shares).all()
    # on 20 of 40 SMs a unit takes as long as on 20 of 132: both ways from the whole H200
    direct = 1 + shares * (132 / 20 - 1)
    by_way_of = (1 + shares * (132 / 40 - 1)) * (1 + shares_with(shares, 132, 40) * (40 / 20 - 1))
    np.testing.assert_allclose(by_way_of, direct)


def test_the_shipped_model_scales_large_work_and_leaves_small_work_alone():
    fitted = slice_model.shipped("h200")
    assert fitted is not None
    assert 0.1 < fitted.mps_launch_us < 1.0
    assert 100 < fitted.floor_w < 150
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
