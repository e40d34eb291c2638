"""The roofline: answers for every device, never absurd, and says what it does not know."""

import pytest

from foretell.devices import all_devices, effective, find_device, parse_slice
from foretell.graph import Cost, Graph, Node, graph_costs
from foretell.predictors import PREDICTORS
from foretell.predictors.roofline import (
    BASE_SHARE_OF_TDP,
    COMPUTE_POWER_SLOPE,
    MEMORY_POWER_SLOPE,
    RooflinePredictor,
    Slot,
    mean_power_w,
    peak_memory_mib,
    reached,
    timeline,
    uncalibrated,
)
from foretell.records import Prediction, Target, Workload
from foretell.testing import chain, one_node, tiny_graph


def predict(graph: Graph, device: str = "h200", slice: str | None = None, **given: str) -> Prediction:
    place = find_device(device)
    target = Target(place, parse_slice(slice, place) if slice else None, "eager" if place.is_cpu else "cuda-graph")
    return RooflinePredictor().predict(Workload(graph, target, **given))


def value(prediction: Prediction, metric: str) -> float:
    estimate = getattr(prediction, metric)
    assert estimate is not None
    assert 0 < estimate.low <= estimate.value <= estimate.high
    return float(estimate.value)


@pytest.mark.parametrize("device", [d.id for d in all_devices()])
@pytest.mark.parametrize("mode", ["inference", "training"])
def test_every_device_has_an_answer(device: str, mode: str) -> None:
    prediction = predict(tiny_graph(batch_size=8), device, mode=mode)
    for metric in ("latency_ms", "throughput_per_s", "memory_mib", "energy_j"):
        value(prediction, metric)
    place = find_device(device)
    assert 0 < value(prediction, "power_w") <= place.tdp_w
    assert prediction.warnings[0] == uncalibrated(place)
    assert prediction.coverage == 1.0
    assert sum(s.share for s in prediction.breakdown) == pytest.approx(1.0)
    assert sum(s.latency_ms for s in prediction.breakdown) == pytest.approx(value(prediction, "latency_ms"))


def big_product(batch: int = 4096, dtype: str = "fp16") -> Graph:
    return one_node("MatMul", [(batch, 4096), (4096, 4096)], [(batch, 4096)], weights=[1], dtype=dtype)


def test_more_work_takes_longer_and_more_device_less() -> None:
    small, large = predict(big_product(1024), dtype="fp16"), predict(big_product(8192), dtype="fp16")
    assert value(small, "latency_ms") < value(large, "latency_ms")
    assert value(small, "memory_mib") < value(large, "memory_mib")
    assert value(predict(big_product(), "t4", dtype="fp16"), "latency_ms") > value(
        predict(big_product(), dtype="fp16"), "latency_ms"
    )
    assert value(predict(big_product(), slice="mps:30", dtype="fp16"), "latency_ms") > value(
        predict(big_product(), dtype="fp16"), "latency_ms"
    )
    assert predict(big_product(), slice="mig:1g.18gb", dtype="fp16").slice == "mig:1g.18gb"


def test_bounds() -> None:
    def bound(graph: Graph) -> str:
        return predict(graph, dtype="fp16").breakdown[0].bound

    assert bound(big_product(8192)) == "compute"
    assert bound(one_node("Relu", [(1 << 26,)], [(1 << 26,)], dtype="fp16")) == "memory"
    assert bound(one_node("Relu", [(8,)], [(8,)], dtype="fp16")) == "launch"


def test_precision_uses_the_tensor_cores() -> None:
    slow, fast = predict(big_product(dtype="fp32"), dtype="fp32"), predict(big_product(dtype="fp16"), dtype="fp16")
    assert value(slow, "latency_ms") > 5 * value(fast, "latency_ms")


def test_time_is_never_below_the_datasheet() -> None:
    """No prediction beats the device's peak rate or its bandwidth."""
    hardware = effective(find_device("h200"), None)
    graph = big_product(8192)
    cost = graph_costs(graph).total
    latency_s = value(predict(graph, dtype="fp16"), "latency_ms") / 1e3
    assert latency_s > cost.flops / (hardware.peak_tflops("fp16", tensor_cores=True) * 1e12)
    assert latency_s > cost.bytes / (hardware.bandwidth_gb_per_s * 1e9)


def test_training_adds_backward_and_the_optimizer() -> None:
    graph = tiny_graph(batch_size=64)
    inference, sgd = predict(graph), predict(graph, mode="training", optimizer="sgd")
    adamw = predict(graph, mode="training", optimizer="adamw")
    assert value(inference, "latency_ms") < value(sgd, "latency_ms") < value(adamw, "latency_ms")
    assert value(inference, "memory_mib") < value(sgd, "memory_mib") < value(adamw, "memory_mib")
    names = {s.operator for s in sgd.breakdown}
    assert {"Conv", "Conv (backward)", "optimizer"} <= names
    cast = predict(graph, mode="training", optimizer="sgd", dtype="bf16")
    assert "Cast" in {s.operator for s in cast.breakdown}


def test_the_timeline_runs_backward_in_reverse() -> None:
    graph = tiny_graph()
    workload = Workload(graph, Target(find_device("a100")), mode="training", optimizer="sgd")
    names = [slot.operator for slot in timeline(workload, graph_costs(graph))]
    assert names == [
        "Conv", "Relu", "GlobalAveragePool", "Gemm",
        "Gemm (backward)", "GlobalAveragePool (backward)", "Relu (backward)", "Conv (backward)", "optimizer",
    ]  # fmt: skip


def test_unknown_operators_lower_the_coverage_and_are_named() -> None:
    nodes = [Node("a", "Relu", ("x",), ("y",)), Node("b", "Mystery", ("y",), ("z",), domain="org.example")]
    prediction = predict(chain(nodes, dict.fromkeys("xyz", (64,)), ["x"], ["z"]))
    assert prediction.coverage == 0.5
    assert any("org.example.Mystery (50.0% of bytes)" in w for w in prediction.warnings)


def test_what_does_not_fit_is_said() -> None:
    graph = one_node("Relu", [(1 << 33,)], [(1 << 33,)])
    assert any("will not fit" in w for w in predict(graph, "t4").warnings)
    assert not any("will not fit" in w for w in predict(tiny_graph(), "t4").warnings)


def test_a_graph_without_work_is_an_empty_launch() -> None:
    prediction = predict(one_node("Reshape", [(4,)], [(2, 2)]))
    assert value(prediction, "latency_ms") > 0
    assert any("does no work" in w for w in prediction.warnings)


def test_the_registry_serves_it() -> None:
    assert PREDICTORS.load("roofline") is RooflinePredictor


def test_matrix_libraries_keep_a_workspace_a_thread() -> None:
    def peak(op: str, mode: str) -> float:
        inputs = {"x": (16, 16), "w": (16, 16), "y": (16, 16)}
        graph = chain([Node("n", op, ("x", "w"), ("y",))], inputs, ["x"], ["y"])
        workload = Workload(graph, Target(find_device("h200")), "fp32", mode, "sgd" if mode == "training" else None)
        return peak_memory_mib(workload, graph_costs(graph))

    assert peak("MatMul", "inference") - peak("Mul", "inference") == pytest.approx(32 + 1)
    assert peak("MatMul", "training") - peak("Mul", "training") == pytest.approx(2 * 32 + 1)  # backward has its own


def test_power_follows_how_much_of_the_peaks_is_in_use() -> None:
    """What a GPU draws at rest, and for each share of a peak its slope, of what is left up to the TDP."""
    hardware = effective(find_device("h200"), None)
    of_compute, of_memory = reached(hardware.device)
    tdp_w = hardware.device.tdp_w
    rest_w = tdp_w * BASE_SHARE_OF_TDP

    def drawn_w(compute_ms: float, memory_ms: float, latency_ms: float) -> float:
        return mean_power_w([Slot("any", Cost(), compute_ms, memory_ms, 0.0)], latency_ms, hardware)

    assert drawn_w(0.0, 0.0, 10.0) == pytest.approx(rest_w)
    a_tenth_of_compute = drawn_w(1.0, 0.0, 10.0) - rest_w
    a_tenth_of_memory = drawn_w(0.0, 1.0, 10.0) - rest_w
    assert a_tenth_of_compute == pytest.approx((tdp_w - rest_w) * COMPUTE_POWER_SLOPE * 0.1 * of_compute)
    assert a_tenth_of_memory == pytest.approx((tdp_w - rest_w) * MEMORY_POWER_SLOPE * 0.1 * of_memory)
    assert drawn_w(1.0, 1.0, 10.0) == pytest.approx(rest_w + a_tenth_of_compute + a_tenth_of_memory)
    assert drawn_w(2.0, 0.0, 10.0) - rest_w == pytest.approx(2 * a_tenth_of_compute)
    assert drawn_w(10.0, 10.0, 10.0) == pytest.approx(tdp_w)


def test_a_slice_draws_for_its_own_sms_only() -> None:
    device = find_device("h200")
    busy = [Slot("any", Cost(), 1.0, 1.0, 0.0)]
    rest_w = device.tdp_w * BASE_SHARE_OF_TDP
    whole_w = mean_power_w(busy, 1.0, effective(device, None)) - rest_w
    part_w = mean_power_w(busy, 1.0, effective(device, parse_slice("sms:33", device))) - rest_w
    assert part_w == pytest.approx(whole_w / 4)


def test_intervals_have_the_published_widths() -> None:
    found = predict(big_product(), dtype="fp16")
    latency, memory, power, energy = found.latency_ms, found.memory_mib, found.power_w, found.energy_j
    assert latency is not None
    assert memory is not None
    assert power is not None
    assert energy is not None
    assert (latency.low, latency.high) == pytest.approx((latency.value / 2, latency.value * 2))
    assert (memory.low, memory.high) == pytest.approx((memory.value * 0.95, memory.value * 1.25))
    assert power.low == pytest.approx(power.value * 0.7)
    assert power.high == pytest.approx(min(power.value * 1.4, find_device("h200").tdp_w))
    assert energy.value == pytest.approx(power.value * latency.value / 1000)
    assert energy.low == pytest.approx(power.low * latency.low / 1000), "the least power for the shortest time"
    assert energy.high == pytest.approx(power.value * 1.4 * latency.high / 1000)
    rate = found.throughput_per_s
    assert rate is not None
    assert rate.value == pytest.approx(1000 / latency.value)
