"""Latency under torch.compile: factors on eager times and on traffic, with an interval and what compiling gains."""

import json
import math
from dataclasses import replace

import numpy as np
import pytest

from foretell.devices import find_device, parse_slice
from foretell.errors import InputError, ModelError
from foretell.features.pooled import DistinctUnits
from foretell.predictors.compiled import model as compiled_model
from foretell.predictors.compiled.inductor import is_channels_last
from foretell.predictors.compiled.kernels import COMPILED_COLUMNS
from foretell.predictors.compiled.model import (
    AS_EAGER,
    FUSED,
    ON_A_PART,
    CompiledModel,
    CompiledPredictor,
    find_kernels,
    write,
)
from foretell.predictors.roofline import RooflinePredictor
from foretell.records import Target, Workload
from foretell.testing import tiny_graph

H200 = find_device("h200")
WIDTH = len(COMPILED_COLUMNS)
PARTS = ((0,), (1, 2, 3), (4,))


class Doubling(RooflinePredictor):
    """A predictor whose units take twice their bound."""

    def unit_times_us(self, workload: Workload, units: DistinctUnits) -> np.ndarray:
        del workload
        return units.bound_us * 2


def model(error: float = 0.2, **weights: float) -> CompiledModel:
    return CompiledModel("h200", tuple(weights.get(name, 0.0) for name in COMPILED_COLUMNS), error)


def workload(slice_: str | None = None) -> Workload:
    return Workload(tiny_graph(64, 64), Target(H200, parse_slice(slice_, H200) if slice_ else None, "compiled"))


def predictor(**weights: float) -> CompiledPredictor:
    return CompiledPredictor(Doubling(), model(**weights), lambda _: PARTS)


def test_a_factor_makes_its_kernels_slower_and_no_others():
    plain, slower = (predictor(**weights).predict(workload()) for weights in ({}, {"product": math.log(2)}))
    shares = [{row.operator: row.latency_ms for row in prediction.breakdown} for prediction in (plain, slower)]
    assert set(shares[0]) == {"Conv", "Gemm", FUSED}
    assert shares[1]["Gemm"] == pytest.approx(2 * shares[0]["Gemm"])
    assert shares[1][FUSED] == pytest.approx(shares[0][FUSED])
    assert sum(shares[1].values()) == pytest.approx(slower.latency_ms.value)
    assert sum(row.share for row in slower.breakdown) == pytest.approx(1.0)


def test_a_model_that_lies_channels_last_runs_the_same_kernels_without_copies():
    plain = workload()
    assert is_channels_last(plain.graph)
    laid_out = replace(plain, channels_last=True)
    before, after = (find_kernels(one, Doubling(), lambda _: PARTS) for one in (plain, laid_out))
    assert np.array_equal(before.base_us[before.is_library], after.base_us[after.is_library])
    assert after.base_us.sum() < before.base_us.sum()
    # the roofline's interval is wide for the option; compiling adds nothing to it
    eager, answer = (one.predict(laid_out).latency_ms for one in (Doubling(), predictor()))
    assert answer.high / answer.value == pytest.approx(eager.high / eager.value)


def test_the_interval_is_what_held_out_errors_were():
    eager = Doubling().predict(workload()).latency_ms
    wider = math.log(eager.high / eager.value) + 0.1
    latency = predictor(error=wider).predict(workload()).latency_ms
    assert math.log(latency.high / latency.value) == pytest.approx(wider)
    assert math.log(latency.value / latency.low) == pytest.approx(wider)


def test_it_is_no_surer_than_eager_mode():
    eager, latency = Doubling().predict(workload()).latency_ms, predictor(error=0.01).predict(workload()).latency_ms
    assert latency.high / latency.value == pytest.approx(eager.high / eager.value)


def test_the_eager_latency_is_predicted_too_and_energy_follows_the_time():
    eager, prediction = Doubling().predict(workload()), predictor(launch=1.0).predict(workload())
    assert prediction.eager_latency_ms == eager.latency_ms
    assert prediction.to_dict()["eager_latency_ms"]["value"] == eager.latency_ms.value
    assert "eager_latency_ms" not in eager.to_dict()
    assert prediction.energy_j.value == pytest.approx(eager.power_w.value * prediction.latency_ms.value / 1000)
    assert prediction.throughput_per_s.value == pytest.approx(64 / prediction.latency_ms.value * 1000)
    assert prediction.memory_mib == eager.memory_mib
    assert prediction.runtime == "compiled"
    assert AS_EAGER in prediction.warnings


def test_on_a_slice_the_gain_is_that_of_the_full_device():
    full, part = predictor().predict(workload()), predictor().predict(workload("sms:66"))
    assert part.eager_latency_ms.value > full.eager_latency_ms.value
    gains = [prediction.latency_ms.value / prediction.eager_latency_ms.value for prediction in (full, part)]
    assert gains[0] == pytest.approx(gains[1])
    assert ON_A_PART in part.warnings


def test_a_model_is_written_and_read():
    fitted = model(product=0.25)
    assert CompiledModel.load(write(fitted, {"workloads": 3})) == fitted
    content = json.loads(write(fitted, {}))
    for other in ({**content, "schema": "x"}, {**content, "fitted": {**content["fitted"], "weights": [1.0]}}):
        with pytest.raises(ModelError, match="fit it again"):
            CompiledModel.load(json.dumps(other).encode())
    for damaged in (b"{}", b"\xff", b"[1]"):
        with pytest.raises(ModelError, match="not a fitted model of compiled times"):
            CompiledModel.load(damaged)


def test_unsupported_workloads_are_refused_with_a_reason(monkeypatch):
    monkeypatch.setattr(compiled_model, "shipped", lambda device: model() if device == "h200" else None)
    assert compiled_model.compiled(Doubling(), "h200", lambda _: PARTS).model == model()
    with pytest.raises(InputError, match="not measured on a100"):
        compiled_model.compiled(Doubling(), "a100", lambda _: PARTS)
    with pytest.raises(InputError, match="leave out --predictor"):
        compiled_model.compiled(RooflinePredictor(), "h200", lambda _: PARTS)


def test_the_shipped_model_is_of_these_features():
    fitted_model = compiled_model.shipped("h200")
    assert fitted_model is not None
    assert 0.0 < fitted_model.error < 0.6
    assert compiled_model.shipped("t4") is None
