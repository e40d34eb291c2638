"""The roofline: answers for every device, never absurd, and says what it does not know."""

from dataclasses import replace

import numpy as np
import pytest

from foretell.devices import all_devices, effective, find_device, parse_slice
from foretell.graph import Graph, Node, graph_costs
from foretell.predictors import PREDICTORS
from foretell.predictors.roofline import (
    BASE_SHARE_OF_TDP,
    BOUNDS,
    COMPUTE_EFFICIENCY,
    COMPUTE_POWER_SLOPE,
    CONTEXT_MIB,
    MEMORY_EFFICIENCY,
    MEMORY_POWER_SLOPE,
    RooflinePredictor,
    Slots,
    least_latency_ms,
    mean_power_w,
    peak_memory_mib,
    reached,
    shares,
    timeline,
    uncalibrated,
)
from foretell.records import Prediction, Target, Workload
from foretell.testing import chain, one_node, tiny_graph
from foretell.units import bytes_from_mib


def one_slot(compute_ms: float, memory_ms: float, launch_ms: float = 0.0) -> Slots:
    return Slots(("any",), *(np.array([time_ms]) for time_ms in (compute_ms, memory_ms, launch_ms)))


def predict(graph: Graph, device: str = "h200", slice: str | None = None, **options: str) -> Prediction:
    place = find_device(device)
    target = Target(place, parse_slice(slice, place) if slice else None, "eager" if place.is_cpu else "cuda-graph")
    return RooflinePredictor().predict(Workload(graph, target, **options))


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
    assert list(timeline(workload).operators) == [
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
    assert (predict(graph, "t4").fits, predict(tiny_graph(), "t4").fits) == ("no", "yes")


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
        return peak_memory_mib(workload)

    assert peak("MatMul", "inference") - peak("Mul", "inference") == pytest.approx(32 + 1)
    assert peak("MatMul", "training") - peak("Mul", "training") == pytest.approx(2 * 32 + 1)  # backward has its own


def test_power_follows_how_much_of_the_peaks_is_in_use() -> None:
    """What a GPU draws at rest, and for each share of a peak its slope, of what is left up to the TDP."""
    hardware = effective(find_device("h200"), None)
    of_compute, of_memory = reached(hardware.device)
    tdp_w = hardware.device.tdp_w
    rest_w = tdp_w * BASE_SHARE_OF_TDP

    def drawn_w(compute_ms: float, memory_ms: float, latency_ms: float) -> float:
        return mean_power_w(one_slot(compute_ms, memory_ms), latency_ms, hardware)

    assert drawn_w(0.0, 0.0, 10.0) == pytest.approx(rest_w)
    a_tenth_of_compute = drawn_w(1.0, 0.0, 10.0) - rest_w
    a_tenth_of_memory = drawn_w(0.0, 1.0, 10.0) - rest_w
    assert a_tenth_of_compute == pytest.approx((tdp_w - rest_w) * COMPUTE_POWER_SLOPE * 0.1 * of_compute)
    assert a_tenth_of_memory == pytest.approx((tdp_w - rest_w) * MEMORY_POWER_SLOPE * 0.1 * of_memory)
    assert drawn_w(1.0, 1.0, 10.0) == pytest.approx(rest_w + a_tenth_of_compute + a_tenth_of_memory)
    assert drawn_w(2.0, 0.0, 10.0) - rest_w == pytest.approx(2 * a_tenth_of_compute)
    assert drawn_w(10.0, 10.0, 10.0) == pytest.approx(tdp_w)
    # the published slopes: all of compute draws 1.9 times what is left, of bandwidth 1.6 times, if the TDP allows it
    assert a_tenth_of_compute == pytest.approx((tdp_w - rest_w) * 0.19 * of_compute)
    assert a_tenth_of_memory == pytest.approx((tdp_w - rest_w) * 0.16 * of_memory)


def test_only_weights_beyond_the_cache_must_be_read() -> None:
    hardware = effective(find_device("h200"), None)
    cached_bytes = bytes_from_mib(hardware.l2_mib)

    def least(width: int) -> float:
        graph = one_node("MatMul", [(1, width), (width, width)], [(1, width)], weights=(1,))
        return least_latency_ms(Slots((), *[np.zeros(0)] * 3), graph, hardware)

    assert least(int((cached_bytes / 4) ** 0.5)) == 0
    width = 8192
    beyond = width * width * 4 - cached_bytes
    assert least(width) == pytest.approx(beyond / (hardware.bandwidth_gb_per_s * 1e9) * 1e3)


def test_a_slice_draws_for_its_own_sms_and_bandwidth() -> None:
    device = find_device("h200")
    rest_w = device.tdp_w * BASE_SHARE_OF_TDP
    part = effective(device, parse_slice("mig:1g.35gb", device))
    fractions = part.sms / device.sms, part.bandwidth_gb_per_s / device.bandwidth_gb_per_s
    assert fractions[0] != pytest.approx(fractions[1])
    for slot, fraction in zip((one_slot(0.1, 0.0), one_slot(0.0, 0.1)), fractions):
        full_w = mean_power_w(slot, 1.0, effective(device, None)) - rest_w
        part_w = mean_power_w(slot, 1.0, part) - rest_w
        assert part_w == pytest.approx(full_w * fraction)


def test_intervals_have_the_published_widths() -> None:
    prediction = predict(big_product(), dtype="fp16")
    latency, memory, power, energy = (
        prediction.latency_ms,
        prediction.memory_mib,
        prediction.power_w,
        prediction.energy_j,
    )
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
    rate = prediction.throughput_per_s
    assert rate is not None
    assert rate.value == pytest.approx(1000 / latency.value)


@pytest.mark.parametrize(
    ("compute_ms", "memory_ms", "launch_ms", "latency_ms", "bound"),
    [
        (3.0, 2.0, 1.0, 4.0, "compute"),
        (2.0, 3.0, 1.0, 4.0, "memory"),
        (3.0, 3.0, 1.0, 4.0, "memory"),
        (2.0, 3.0, 3.0, 6.0, "memory"),
        (1.0, 2.0, 3.0, 5.0, "launch"),
        (0.0, 0.0, 1.0, 1.0, "launch"),
    ],
)
def test_a_unit_takes_the_longer_of_its_two_sides_and_its_launch(
    compute_ms: float, memory_ms: float, launch_ms: float, latency_ms: float, bound: str
) -> None:
    slot = one_slot(compute_ms, memory_ms, launch_ms)
    assert (slot.latency_ms[0], BOUNDS[slot.bounds[0]]) == (latency_ms, bound)


def test_a_unit_is_timed_at_the_share_of_the_peaks_that_kernels_reach() -> None:
    """A product of half precision on tensor cores, and an activation whose arithmetic runs beside them."""
    hardware = effective(find_device("h200"), None)
    nodes = [Node("m", "MatMul", ("x", "w"), ("m",)), Node("t", "Tanh", ("m",), ("y",))]
    shapes = {"x": (512, 1024), "w": (1024, 2048), "m": (512, 2048), "y": (512, 2048)}
    graph = chain(nodes, shapes, ["x"], ["y"]).with_dtype("fp16")
    slots = timeline(Workload(graph, Target(find_device("h200")), "fp16"))
    flops, moved = 2 * 512 * 1024 * 2048, 2 * (512 * 1024 + 1024 * 2048 + 512 * 2048)
    assert slots.compute_ms[0] == pytest.approx(flops / (989.4e12 * COMPUTE_EFFICIENCY) * 1000)
    assert slots.memory_ms[0] == pytest.approx(moved / (hardware.bandwidth_gb_per_s * 1e9 * MEMORY_EFFICIENCY) * 1000)
    assert slots.launch_ms[0] == pytest.approx(hardware.device.launch_overhead_us / 1000)
    vector = hardware.peak_tflops("fp16", tensor_cores=False) * 1e12
    assert slots.compute_ms[1] == pytest.approx(6 * 512 * 2048 / (vector * COMPUTE_EFFICIENCY) * 1000)
    single = graph.with_dtype("fp32")
    slots = timeline(Workload(single, Target(find_device("h200"))))
    assert slots.compute_ms[0] == pytest.approx(flops / (66.9e12 * COMPUTE_EFFICIENCY) * 1000)


def test_whole_numbers_run_at_the_rate_of_single_precision() -> None:
    def compute_ms(dtype: str) -> float:
        graph = one_node("Tanh", [(1 << 20,)], [(1 << 20,)], dtype=dtype)
        (slot_ms,) = timeline(Workload(graph, Target(find_device("h200")))).compute_ms
        return float(slot_ms)

    assert compute_ms("int64") == compute_ms("bool") == compute_ms("fp32")
    assert compute_ms("fp64") > compute_ms("fp32") > compute_ms("fp16")


def test_recurrences_leave_a_gap_for_every_launch() -> None:
    graph = one_node("GRU", [(7, 2, 4), (1, 2, 4), (12, 4), (12, 4)], [(7, 2, 4)], weights=[2, 3])
    (launch_ms,) = timeline(Workload(graph, Target(find_device("h200")))).launch_ms
    assert launch_ms == pytest.approx(7 * find_device("h200").launch_overhead_us / 1000)


def test_what_costs_nothing_is_not_on_the_timeline_and_absent_outputs_are_passed_over() -> None:
    nodes = [
        Node("s", "TopK", ("x",), ("", "i")),
        Node("v", "Reshape", ("i",), ("v",)),
        Node("r", "Relu", ("v",), ("y",)),
    ]
    graph = chain(nodes, {"x": (8,), "i": (8,), "v": (2, 4), "y": (2, 4)}, ["x"], ["y"])
    assert timeline(Workload(graph, Target(find_device("h200")))).operators == ("TopK", "Relu")
    step = Workload(graph, Target(find_device("h200")), mode="training")
    assert timeline(step).operators == ("TopK", "Relu"), "nothing to learn"


def test_training_without_a_name_takes_momentum() -> None:
    graph, target = tiny_graph(), Target(find_device("h200"))
    plain, named, other = (Workload(graph, target, "fp32", "training", name) for name in (None, "sgd", "adamw"))
    times = [timeline(workload).latency_ms.tolist() for workload in (plain, named, other)]
    assert times[0] == times[1] != times[2]
    assert peak_memory_mib(plain) == peak_memory_mib(named)


def test_what_kernels_reach_follows_what_the_peaks_ask_of_an_sm() -> None:
    h200 = find_device("h200")
    assert reached(h200) == (COMPUTE_EFFICIENCY, MEMORY_EFFICIENCY)
    assert reached(find_device("cpu")) == (COMPUTE_EFFICIENCY, MEMORY_EFFICIENCY)
    assert reached(replace(h200, id="mine", boost_clock_mhz=None)) == (COMPUTE_EFFICIENCY, MEMORY_EFFICIENCY)
    same = reached(replace(h200, id="mine"))
    assert same == pytest.approx((COMPUTE_EFFICIENCY, MEMORY_EFFICIENCY))
    more_sms = reached(replace(h200, id="mine", sms=4 * h200.sms))  # each has a quarter to do
    assert more_sms[0] == pytest.approx(1 / (1 / 0.95 + (1 / 0.5 - 1 / 0.95) / 2))
    assert more_sms[1] == pytest.approx(1 / (1 / 0.9 + (1 / 0.3 - 1 / 0.9) / 4))
    assert reached(replace(h200, id="mine", boost_clock_mhz=4 * h200.boost_clock_mhz)) == pytest.approx(more_sms)  # type: ignore[operator]


def test_memory_on_a_cpu_has_no_workspaces() -> None:
    def peak(device: str, op: str = "MatMul", mode: str = "inference") -> float:
        graph = chain([Node("n", op, ("x", "w"), ("y",))], dict.fromkeys("xwy", (16, 16)), ["x"], ["y"])
        return peak_memory_mib(Workload(graph, Target(find_device(device)), "fp32", mode))

    assert peak("cpu") == pytest.approx(3 * 1024 / 2**20)
    assert peak("cpu", mode="training") > peak("cpu")
    assert peak("a100") - peak("a100", "Mul") == pytest.approx(8.125 + 1)
    assert peak("a100", mode="training") - peak("a100", "Mul", "training") == pytest.approx(2 * 8.125 + 1)
    for op in ("Gemm", "FusedMatMul"):
        assert peak("h200", op) == peak("h200")
    summed = one_node("Einsum", [(16, 16), (16, 16)], [(16, 16)], equation="ij,jk->ik")
    assert peak_memory_mib(Workload(summed, Target(find_device("h200")))) > 33
    paired = one_node("Bilinear", [(2, 4), (2, 4), (4, 4, 4)], [(2, 4)])
    assert peak_memory_mib(Workload(paired, Target(find_device("h200")))) > 33


def test_a_context_is_counted_on_gpus_alone() -> None:
    prediction = predict(tiny_graph())
    assert prediction.memory_mib is not None
    assert prediction.device_memory_mib == prediction.memory_mib + CONTEXT_MIB
    assert predict(tiny_graph(), "cpu").device_memory_mib is None


def test_a_prediction_has_the_facts_of_model_and_target() -> None:
    prediction = predict(tiny_graph(batch_size=3), "a100", "mig:3g.20gb", mode="training", optimizer="adamw")
    assert (prediction.model, prediction.device, prediction.slice) == ("tiny", "a100-sxm-40gb", "mig:3g.20gb")
    assert (prediction.runtime, prediction.mode, prediction.batch_size) == ("cuda-graph", "training", 3)
    assert (prediction.dtype, prediction.optimizer, prediction.predictor) == ("fp32", "adamw", "roofline")
    cost = graph_costs(tiny_graph(batch_size=3)).total
    assert prediction.facts == {
        "parameters": cost.parameters, "macs": cost.macs, "flops": cost.flops, "memory_capacity_mib": 19.5 * 1024,
        "least_latency_ms": pytest.approx(prediction.facts["least_latency_ms"]),
    }  # fmt: skip
    rate, latency = prediction.throughput_per_s, prediction.latency_ms
    assert rate is not None
    assert latency is not None
    assert (rate.low, rate.high) == pytest.approx((3000 / latency.high, 3000 / latency.low))


def test_the_interval_decides_whether_a_graph_fits() -> None:
    graph = one_node("Relu", [(1 << 28,)], [(1 << 28,)])  # two tensors of 1 GiB
    need = RooflinePredictor().predict(Workload(graph, Target(find_device("t4")))).device_memory_mib
    assert need is not None
    for memory_mib, fits in ((need.high, "yes"), (need.value, "perhaps"), (need.low, "perhaps"), (need.low - 1, "no")):
        place = replace(find_device("t4"), memory_gib=memory_mib / 1024)
        assert RooflinePredictor().predict(Workload(graph, Target(place))).fits == fits


def test_shares_are_sums_by_operator_and_name_what_bounds_most_of_the_time() -> None:
    compute_ms, memory_ms, launch_ms = (0.0, 0.0, 1.0, 0.75), (1.5, 4.0, 0.0, 0.0), (0.0, 1.0, 0.0, 0.75)
    slots = Slots(("A", "B", "A", "A"), np.array(compute_ms), np.array(memory_ms), np.array(launch_ms))
    first, second = shares(slots)
    assert (first.operator, first.count, first.latency_ms, first.share, first.bound) == ("B", 1, 5.0, 5 / 9, "memory")
    assert (second.operator, second.count, second.latency_ms, second.share) == ("A", 3, 4.0, 4 / 9)
    assert second.bound == "compute"  # 2.5 of 4 ms, though its longest unit is bound by memory
    assert shares(Slots((), *[np.zeros(0)] * 3)) == ()
    (idle,) = shares(one_slot(0.0, 0.0))
    assert (idle.share, idle.latency_ms) == (0.0, 0.0)


def test_an_empty_launch_takes_a_launch() -> None:
    prediction = predict(one_node("Reshape", [(4,)], [(2, 2)]))
    assert prediction.latency_ms is not None
    assert prediction.latency_ms.value == pytest.approx(find_device("h200").launch_overhead_us / 1000)
    assert prediction.power_w is not None
    assert prediction.power_w.value == pytest.approx(find_device("h200").tdp_w * BASE_SHARE_OF_TDP)
    assert prediction.breakdown == ()


def test_an_interval_of_power_ends_at_the_tdp() -> None:
    power_w = predict(big_product(8192), dtype="fp16").power_w
    assert power_w is not None
    assert power_w.high == find_device("h200").tdp_w < 1.4 * power_w.value
    assert power_w.value <= power_w.high


@pytest.mark.parametrize("dtype", ["bf16", "fp16", "fp8", "fp4", "int8"])
def test_every_short_number_has_its_own_rate(dtype: str) -> None:
    device = find_device("b200")
    graph = one_node("MatMul", [(4096, 4096), (4096, 4096)], [(4096, 4096)], weights=[1], dtype=dtype)
    (compute_ms,) = timeline(Workload(graph, Target(device))).compute_ms
    rate = device.peak_tflops(dtype, tensor_cores=True) * 1e12
    assert rate > device.peak_tflops("fp32", tensor_cores=True) * 1e12
    assert compute_ms == pytest.approx(2 * 4096**3 / (rate * reached(device)[0]) * 1000)


@pytest.mark.parametrize("mode", ["inference", "training"])
def test_workspaces_of_convolutions_are_counted_on_gpus(mode: str) -> None:
    """A convolution that copies its input and its weights: what it takes beside them is in the peak of a GPU alone."""
    graph = one_node("Conv", [(8, 64, 64, 64), (16, 64, 3, 3)], [(8, 16, 32, 32)], weights=[1], dtype="fp16")
    on_gpu, on_cpu = (
        peak_memory_mib(Workload(graph, Target(find_device(name)), "fp16", mode)) for name in ("h200", "cpu")
    )
    input_mib = 2 * 8 * 64**3 / 2**20
    assert on_gpu - on_cpu > 0.5 * input_mib
