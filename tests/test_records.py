"""Records are frozen, carry units, and print without what they do not know."""

import dataclasses
import json

import pytest

from foretell.devices import find_device, parse_slice
from foretell.records import METRICS, Estimate, KernelRun, Measurement, OperatorShare, Prediction, Target, Workload
from foretell.testing import tiny_graph

HEAD = {
    "model": "m",
    "device": "h200",
    "slice": None,
    "runtime": "cuda-graph",
    "mode": "inference",
    "batch_size": 2,
    "dtype": "fp16",
}


def test_estimates() -> None:
    estimate = Estimate(2.0, 1.0, 4.0)
    assert estimate.scaled(10) == Estimate(20.0, 10.0, 40.0)
    assert estimate.inverted(8) == Estimate(4.0, 2.0, 8.0)
    with pytest.raises(dataclasses.FrozenInstanceError):
        estimate.value = 3.0  # type: ignore[misc]


def test_targets_know_what_a_slice_leaves() -> None:
    device = find_device("h200")
    full_device, part = Target(device), Target(device, parse_slice("mig:1g.18gb", device))
    assert full_device.hardware.memory_gib > part.hardware.memory_gib
    assert part.hardware is part.hardware


def test_workloads() -> None:
    workload = Workload(tiny_graph(batch_size=3), Target(find_device("t4")), mode="training")
    assert workload.batch_size == 3
    assert workload.is_training
    assert not dataclasses.replace(workload, mode="decode").is_training


def test_absent_metrics_are_absent() -> None:
    share = OperatorShare("Conv", 3, 1.5, 0.75, "memory")
    prediction = Prediction(
        **HEAD, predictor="roofline", latency_ms=Estimate(2.0, 1.0, 4.0), breakdown=(share,), warnings=("w",)
    )  # type: ignore[arg-type]
    shown = json.loads(json.dumps(prediction.to_dict()))
    assert shown["latency_ms"] == {"value": 2.0, "low": 1.0, "high": 4.0}
    assert not set(METRICS[1:]) & set(shown)
    assert shown["slice"] is None
    assert shown["source"] == "predicted"
    assert shown["breakdown"] == [{"operator": "Conv", "count": 3, "latency_ms": 1.5, "share": 0.75, "bound": "memory"}]
    assert "optimizer" not in shown
    assert dataclasses.replace(prediction, optimizer="sgd").to_dict()["optimizer"] == "sgd"
    assert {f.name for f in dataclasses.fields(Prediction)} >= set(METRICS)
    assert "mig_profile" not in shown
    nothing_fits = dataclasses.replace(prediction, mig_reason="memory: …").to_dict()
    assert nothing_fits["mig_profile"] == {"name": None, "reason": "memory: …"}


def test_a_measurement_has_the_keys_of_a_prediction_and_nothing_that_was_not_measured():
    kernel = KernelRun("gemm", 3.0, "aten::mm", "fc")
    measurement = Measurement(
        "m", "cpu", None, "eager", "training", 4, "fp32", optimizer="sgd", input_shape=(3, 8), kernels=(kernel,),
        latency_ms=Estimate(2.0, 1.0, 3.0), fusion={"nodes": 2}, warnings=("w",), facts={"host": "h"},
    )  # fmt: skip
    shown = measurement.to_dict()
    assert measurement.ok
    assert (shown["source"], shown["status"], shown["optimizer"], shown["input_shape"]) == (
        "measured",
        "ok",
        "sgd",
        "3x8",
    )
    assert shown["latency_ms"] == {"value": 2.0, "low": 1.0, "high": 3.0}
    assert shown["kernels"] == [{"name": "gemm", "duration_us": 3.0, "operator": "aten::mm", "module": "fc"}]
    assert not {"memory_mib", "energy_j", "error"} & set(shown)
    failed = Measurement("m", "cpu", None, "eager", "inference", 4, "fp32", "oom", "too large")
    assert not failed.ok
    assert (failed.to_dict()["error"], "kernels" in failed.to_dict()) == ("too large", False)
