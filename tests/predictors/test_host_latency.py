"""Eager wall-clock: the larger of two times, never mixed with the device's, narrower on a host that was calibrated."""

from dataclasses import replace

import pytest

from foretell.devices import find_device
from foretell.graph import Graph
from foretell.predictors import host_latency as host
from foretell.predictors.host_latency import REFERENCE, Calls, HostCalibration, count_calls, with_host_latency
from foretell.predictors.roofline import RooflinePredictor
from foretell.records import Estimate, Prediction, Target, Workload
from foretell.testing import one_node, tiny_graph

TINY_MS = Estimate(0.01, 0.009, 0.012)
OWN = HostCalibration("queue", "cpu", "gpu", "2.13", 0.5, 0.6, *host.spread_bounds(0.05), 1.0, "2026-11-15")


def workload(graph: Graph | None = None, device: str = "h200", runtime: str = "eager", **options: str) -> Workload:
    return Workload(graph or tiny_graph(), Target(find_device(device), None, runtime), **options)


def predict(work: Workload, calibration: HostCalibration = REFERENCE) -> Prediction:
    return with_host_latency(RooflinePredictor().predict(work), work, calibration)


def test_calls_of_a_training_step_count_backward_and_every_parameter() -> None:
    forward = count_calls(workload())
    sgd = count_calls(workload(mode="training", optimizer="sgd"))
    adamw = count_calls(workload(mode="training", optimizer="adamw"))
    assert (forward.calls, forward.views, forward.modules, forward.backward_calls) == (4, 1, 4, 0)
    assert (sgd.calls, sgd.parameters, sgd.adamw_parameters, sgd.training_steps) == (4, 2, 0, 1)
    assert sgd.backward_calls > 0
    assert forward.reference_us < sgd.reference_us < adamw.reference_us


def test_autocast_adds_calls_that_cast() -> None:
    plain, cast = (count_calls(workload(mode="training", dtype=dtype)) for dtype in ("fp32", "bf16"))
    assert cast.calls > plain.calls


def test_a_graph_without_modules_is_taken_to_have_about_one_a_call() -> None:
    graph = tiny_graph()
    bare = replace(graph, nodes=tuple(replace(node, module="") for node in graph.nodes))
    assert count_calls(workload(bare)).modules == round(4 * 1.05)


def test_modules_count_those_around_them() -> None:
    graph = tiny_graph()
    nested = replace(graph, nodes=tuple(replace(node, module="body.block.conv") for node in graph.nodes))
    assert count_calls(workload(nested)).modules == 3


@pytest.mark.parametrize(("hidden", "dtype", "steps"), [(64, "fp32", 0), (64, "bf16", 50), (128, "fp16", 50)])
def test_narrow_recurrent_layers_run_in_one_kernel_but_not_in_bf16(hidden: int, dtype: str, steps: int) -> None:
    graph = one_node(
        "LSTM",
        [(50, 2, 16), (1, 4 * hidden, 16), (1, 4 * hidden, hidden)],
        [(50, 1, 2, hidden), (1, 2, hidden)],
        weights=[1, 2],
        dtype=dtype,
        hidden_size=hidden,
    )
    assert count_calls(workload(graph, dtype=dtype)).recurrent_steps == steps


def test_a_small_network_waits_for_the_host_and_a_slow_device_for_itself() -> None:
    launched = host.host_latency(workload(), TINY_MS)
    assert launched.low < launched.value < launched.high
    assert launched.value == pytest.approx((4 * 21.6 + 4.2 + 4 * 12.7 + 62) / 1000)
    slow = host.host_latency(workload(), Estimate(50.0, 45.0, 60.0))
    assert slow.low == 45.0
    assert 50.0 < slow.value < 60.0 < slow.high


def test_the_interval_of_the_reference_holds_the_spread_between_hosts_and_ones_own_is_narrower() -> None:
    assert REFERENCE.low < 1 / 1.34
    assert REFERENCE.high > 1.34  # two machines of one kind differed by a third
    reference, own = (host.host_latency(workload(), TINY_MS, calibration) for calibration in (REFERENCE, OWN))
    assert own.high / own.low < reference.high / reference.low
    assert own.value == pytest.approx(reference.value / 2)


def test_an_uncertain_calibration_widens_the_interval() -> None:
    sure, unsure = host.spread_bounds(0.0), host.spread_bounds(0.3)
    assert unsure[0] < sure[0] < 1 < sure[1] < unsure[1]


def test_training_has_a_slowdown_of_its_own() -> None:
    step = workload(mode="training")
    reference, own = (host.host_latency(step, TINY_MS, calibration) for calibration in (REFERENCE, OWN))
    assert own.value == pytest.approx(reference.value * 0.6)


def test_eager_predictions_have_both_times_and_name_the_host() -> None:
    plain = RooflinePredictor().predict(workload())
    both = predict(workload())
    assert both.latency_ms == plain.latency_ms
    assert both.throughput_per_s == plain.throughput_per_s
    assert both.host_latency_ms is not None
    assert both.latency_ms is not None
    assert both.host_latency_ms.value > both.latency_ms.value
    assert both.warnings[-1] == host.ON_REFERENCE
    assert "'queue'" in predict(workload(), OWN).warnings[-1]


def test_graph_replays_have_no_eager_time_unless_the_host_is_known() -> None:
    assert predict(workload(runtime="cuda-graph")).host_latency_ms is None
    assert predict(workload(runtime="cuda-graph"), OWN).host_latency_ms is not None


def test_a_host_calibrated_without_cuda_claims_nothing() -> None:
    cpu_only = replace(OWN, slowdown=None, training_slowdown=None)
    answer = predict(workload(), cpu_only)
    assert answer.host_latency_ms == predict(workload()).host_latency_ms
    assert answer.warnings[-1] == host.CPU_ONLY
    assert predict(workload(runtime="cuda-graph"), cpu_only).host_latency_ms is None


def test_what_was_measured_and_what_runs_on_a_cpu_stay_as_they_are() -> None:
    measured = replace(RooflinePredictor().predict(workload()), host_latency_ms=TINY_MS)
    assert with_host_latency(measured, workload(), OWN) is measured
    assert predict(workload(device="cpu"), OWN).host_latency_ms is None


def test_every_kind_of_call_takes_time() -> None:
    nothing = Calls(0, 0, 0, 0)
    for name in Calls.__dataclass_fields__:
        assert replace(nothing, **{name: 1}).reference_us > 0 == nothing.reference_us
