"""A GPU that nobody measured: its peaks and its SMs set the time, and the device that was measured is told as it is."""

import gc
from dataclasses import replace

import numpy as np
import pytest

from foretell.devices import find_device, parse_slice
from foretell.errors import DeviceError, InputError
from foretell.features import extract_units
from foretell.features.pooled import DistinctUnits
from foretell.predictors import best_predictor, find_predictor, transfer
from foretell.predictors.roofline import RooflinePredictor
from foretell.predictors.transfer import LATENCY_HIGH, LATENCY_LOW, TransferPredictor
from foretell.predictors.unit.predictor import shipped
from foretell.records import Target, Workload
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
    assert [best_predictor(name) for name in ("l4", "t4", "rtx-4090")] == ["transfer"] * 3
    assert [best_predictor(name) for name in ("p100", "cpu", "mi300x")] == ["roofline"] * 3
    with pytest.raises(DeviceError):
        best_predictor("somebody's")
    assert isinstance(find_predictor(None, "a100-sxm-40gb"), TransferPredictor)


def test_on_the_measured_device_units_take_the_times_of_its_network() -> None:
    work = workload(H200)
    units = DistinctUnits.of(extract_units(work))
    expected = shipped("h200", "unit-network").times_us(units)
    times_us = TransferPredictor().unit_times_us(work, units)
    assert (times_us >= expected * (1 - 1e-9)).all()  # not below what the peaks allow
    np.testing.assert_allclose(times_us, expected, rtol=0.15)


def test_peaks_and_sms_set_the_time() -> None:
    full_ms = latency_ms(workload())
    half = replace(A100, id="half", bandwidth_gb_per_s=A100.bandwidth_gb_per_s / 2)
    slow = replace(A100, id="slow", boost_clock_mhz=A100.boost_clock_mhz / 2)
    both = replace(half, id="both", boost_clock_mhz=slow.boost_clock_mhz)
    assert full_ms < latency_ms(workload(half)) < 2 * full_ms
    assert full_ms < latency_ms(workload(slow)) < 2 * full_ms
    assert latency_ms(workload(H200)) < full_ms < latency_ms(workload(part="mig:1g.5gb"))
    assert latency_ms(workload(both)) > max(latency_ms(workload(half)), latency_ms(workload(slow)))


def test_memory_and_power_are_those_of_the_roofline() -> None:
    work = workload()
    predicted, base = TransferPredictor().predict(work), RooflinePredictor().predict(work)
    assert (predicted.predictor, predicted.memory_mib, predicted.power_w) == ("transfer", base.memory_mib, base.power_w)
    assert predicted.extrapolated
    assert predicted.latency_ms is not None
    assert predicted.energy_j is not None
    assert predicted.power_w is not None
    low_ms = max(LATENCY_LOW * predicted.latency_ms.value, predicted.facts["least_latency_ms"])
    assert predicted.latency_ms.low == pytest.approx(low_ms)
    assert predicted.latency_ms.high == pytest.approx(LATENCY_HIGH * predicted.latency_ms.value)
    assert predicted.energy_j.value == pytest.approx(predicted.power_w.value * predicted.latency_ms.value / 1e3)
    assert "no measurement of NVIDIA A100" in predicted.warnings[0]
    assert not any("analytic roofline until" in text for text in predicted.warnings)
    assert sum(row.share for row in predicted.breakdown) == pytest.approx(1.0)
    assert sum(row.latency_ms for row in predicted.breakdown) == pytest.approx(predicted.latency_ms.value)


def test_a_sweep_asks_the_network_once_and_nothing_outlives_its_graph(monkeypatch: pytest.MonkeyPatch) -> None:
    work = workload()
    first = latency_ms(work)
    places = [key for key in transfer._cache if transfer._cache[key][0]() is work.graph]
    assert len(places) == 1
    monkeypatch.setattr(transfer, "shipped", lambda *_: pytest.fail("asked again"))
    assert latency_ms(work) == first
    assert latency_ms(replace(work, target=Target(H200))) < first
    del work
    gc.collect()
    assert places[0] not in transfer._cache


def test_cpus_are_refused() -> None:
    with pytest.raises(InputError, match="cpu is not: use --predictor roofline"):
        TransferPredictor().predict(workload(find_device("cpu")))
