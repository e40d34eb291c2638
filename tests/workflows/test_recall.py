"""What a store has measured is the answer, for the same computation on the same device, and for nothing else."""

from dataclasses import replace
from pathlib import Path

import pytest

from foretell.devices import find_device, parse_slice
from foretell.predictors.roofline import RooflinePredictor
from foretell.records import Target, Workload
from foretell.testing import tiny_graph
from foretell.workflows.recall import recall
from small.small_samples import H200, workload
from small.small_store import write_store

pytest.importorskip("pyarrow")


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_store(tmp_path_factory.mktemp("store"), (8, 16, 64))


def recalled(work: Workload, store: Path, width: int = 64):
    graph = tiny_graph(work.batch_size, width)
    return recall(RooflinePredictor().predict(work), work, graph, store)


@pytest.mark.parametrize(("batch", "dtype", "mode"), [(16, "fp16", "inference"), (32, "bf16", "training")])
def test_a_known_workload_is_measured(store: Path, batch: int, dtype: str, mode: str) -> None:
    work = workload(64, batch, dtype, mode)
    predicted, measured = RooflinePredictor().predict(work), recalled(work, store)
    assert measured.source == "measured"
    assert measured.memory_mib.value == pytest.approx(predicted.memory_mib.value * 1.1)
    assert measured.power_w.value == pytest.approx(predicted.power_w.value * 0.9)
    assert measured.latency_ms.value != predicted.latency_ms.value
    assert (
        measured.latency_ms.low
        < measured.latency_ms.value
        < measured.latency_ms.high
        < 1.03 * measured.latency_ms.value
    )
    assert measured.throughput_per_s.value == pytest.approx(batch * 1000 / measured.latency_ms.value)
    assert measured.device_memory_mib == predicted.device_memory_mib, "what was not measured stays predicted"


def test_energy_stays_power_times_latency_where_only_the_latency_was_measured(
    store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("foretell.workflows.recall.RECALLED", ("latency_ms",))
    work = workload(64, 16, "fp16")
    predicted, measured = RooflinePredictor().predict(work), recalled(work, store, 64)
    assert measured.latency_ms != predicted.latency_ms
    assert measured.power_w == predicted.power_w
    assert measured.energy_j.value == pytest.approx(measured.power_w.value * measured.latency_ms.value / 1000)


@pytest.mark.parametrize(
    "other",
    [
        workload(64, 17, "fp16"),
        workload(64, 16, "bf16"),
        workload(24, 16, "fp16"),
        replace(workload(64, 16, "fp16"), channels_last=True),
        replace(workload(64, 16, "fp16"), target=Target(find_device("a100"))),
        replace(workload(64, 16, "fp16"), target=Target(H200.device, None, "eager")),
        replace(
            workload(64, 16, "fp16"), target=Target(find_device("h200"), parse_slice("mps:30", find_device("h200")))
        ),
    ],
    ids=["batch", "precision", "model", "layout", "device", "runtime", "slice"],
)
def test_what_differs_in_anything_stays_predicted(store: Path, other: Workload) -> None:
    width = 24 if other.graph.parameter_count == tiny_graph(1, 24).parameter_count else 64
    assert recalled(other, store, width) == RooflinePredictor().predict(other)


def test_another_graph_with_as_many_parameters_is_another_model(store: Path) -> None:
    work = workload(64, 16, "fp16")
    graph = tiny_graph(16, 64)
    nodes = tuple(replace(node, op="Sigmoid") if node.op == "Relu" else node for node in graph.nodes)
    assert nodes != graph.nodes
    predicted = RooflinePredictor().predict(work)
    assert recall(predicted, work, replace(graph, nodes=nodes), store) == predicted
