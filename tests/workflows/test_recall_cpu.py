"""What ``profile --device cpu --store`` stored is what ``predict --device cpu --store`` answers."""

from dataclasses import replace
from pathlib import Path

import pytest

from foretell.devices import find_device
from foretell.predictors.roofline import RooflinePredictor
from foretell.profiling.single import Request
from foretell.profiling.workload import Workload as MeasuredWorkload
from foretell.records import Target, Workload
from foretell.testing import tiny_graph
from foretell.workflows.measure.storing import store_single
from foretell.workflows.recall import recall

pytest.importorskip("pyarrow")
SPEC, SHAPE = "timm:tiny", (3, 16, 16)
CPU = Workload(tiny_graph(4), Target(find_device("cpu"), None, "eager"))


def stored(folder: Path, *, graph: bool, runtime: str = "eager") -> Path:
    values = {"latency_ms": 304.0, "latency_cv": 0.02, "latency_source": "cpu-timer"}
    facts = {"device_name": "cpu", "host_cpu": "a CPU"}
    measured = MeasuredWorkload(SPEC, 4, SHAPE, "fp32").to_json()
    result = {"status": "ok", "error": None, "workload": measured, "values": values, "facts": facts, "kernels": None}
    request = Request(SPEC, batch_size=4, runtime=runtime)
    store_single(folder, SPEC, request, result, tiny_graph(4) if graph else None)
    return folder


def recalled(store: Path, model: object = None):
    return recall(RooflinePredictor().predict(CPU), CPU, tiny_graph(4), store, model)


def test_a_stored_graph_is_known_again_whatever_the_model_is_called(tmp_path: Path) -> None:
    found = recalled(stored(tmp_path / "store", graph=True))
    assert found.source == "measured"
    assert found.latency_ms.value == 304.0
    assert found.latency_ms.low == pytest.approx(304 * (1 - 1.645 * 0.02))
    assert found.energy_j.value == pytest.approx(found.power_w.value * 0.304), "it follows from the measured time"


def test_without_a_graph_the_name_and_the_input_decide(tmp_path: Path) -> None:
    store = stored(tmp_path / "store", graph=False)
    assert recalled(store, SPEC).latency_ms.value == 304.0
    assert recalled(store, "timm:other").source == "predicted"
    assert recalled(store).source == "predicted"


def test_another_runtime_is_another_measurement(tmp_path: Path) -> None:
    assert recalled(stored(tmp_path / "store", graph=True, runtime="compiled")).source == "predicted"


def test_each_run_recalls_its_own_measurement(tmp_path: Path) -> None:
    store = stored(tmp_path / "store", graph=True, runtime="onnxruntime")
    assert recalled(store).source == "predicted"
    for threads, source in ((1, "measured"), (2, "predicted")):
        asked = replace(CPU, target=Target(find_device("cpu"), None, "onnxruntime", threads))
        assert recall(RooflinePredictor().predict(asked), asked, tiny_graph(4), store).source == source
