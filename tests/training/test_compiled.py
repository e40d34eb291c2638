"""Compiled workloads are read with their graphs, judged on architectures that were not seen, and fitted."""

import shutil
from pathlib import Path

import numpy as np
import pytest

from foretell.devices import find_device
from foretell.errors import DataError, InputError
from foretell.graph.ir.serde import to_document
from foretell.predictors.compiled.model import CompiledModel
from foretell.predictors.roofline import RooflinePredictor
from foretell.testing import tiny_graph, tiny_onnx
from foretell.training import compiled
from foretell.workflows.predict import predict
from small.small_samples import workload
from small.small_store import write_table

pytest.importorskip("pyarrow")

WIDTHS = (8, 16, 24, 32, 48, 64, 96, 128, 192, 256)


class Doubling(RooflinePredictor):
    """A predictor whose units take twice their bound."""

    def unit_times_us(self, workload, units):
        del workload
        return units.bound_us * 2


def rows_of(widths: tuple[int, ...]) -> list[dict[str, object]]:
    """Compiled, a workload takes six tenths of what it takes by the roofline, and at batch 1 one and a half times."""
    rows = []
    for width in widths:
        for batch in (1, 64, 256):
            eager_ms = RooflinePredictor().predict(workload(width, batch)).latency_ms.value
            facts = {"campaign_id": "c", "workload_id": f"{width}-{batch}", "spec": f"synthetic:tiny?width={width}"}
            facts |= {"family": f"tiny{width % 3}", "mode": "inference", "dtype": "fp32", "batch_size": batch}
            facts |= {"input_shape": "3x16x16", "eager_ms": eager_ms, "status": "ok"}
            rows.append({**facts, "compiled_ms": eager_ms * (1.5 if batch == 1 else 0.6)})
    return rows


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three rows an architecture; one is measured twice, one failed; traces of some, one of which is another run."""
    folder = tmp_path_factory.mktemp("store")
    rows = rows_of(WIDTHS)
    again = {**rows[0], "campaign_id": "d", "compiled_ms": 99.0}
    failed = {**rows[1], "campaign_id": "e", "workload_id": "failed", "compiled_ms": None, "status": "run_error"}
    write_table(folder / "one", "compiled", [*rows, again, failed])
    kernels = []
    for number, row in enumerate(rows[:6]):
        for place, (name, share) in enumerate((("triton_poi_fused_relu_0", 0.25), ("sm90_gemm", 0.75))):
            duration_us = row["compiled_ms"] * 1000 * share * (3.0 if number == 5 else 1.02)
            own = {"campaign_id": "c", "workload_id": row["workload_id"], "sequence": place, "name": name}
            kernels.append({**own, "duration_us": duration_us})
    write_table(folder / "one", "compiled_kernels", kernels)
    write_table(folder / "graphs", "graphs", [graph_row(width) for width in WIDTHS])
    return folder


def graph_row(width: int) -> dict[str, object]:
    graph, spec = tiny_graph(1, width), f"synthetic:tiny?width={width}"
    facts = {"spec": spec, "input_shape": "3x16x16", "mode": "inference", "campaign_id": "", "graph_hash": graph.hash}
    return {**facts, "document": to_document(graph)}


@pytest.fixture(scope="module")
def compiled_set(store: Path, tmp_path_factory: pytest.TempPathFactory) -> compiled.CompiledSet:
    return compiled.read_compiled(store, "h200", tmp_path_factory.mktemp("cache"), Doubling())


def test_good_rows_are_read_with_their_traces(compiled_set):
    assert len(compiled_set.rows) == 3 * len(WIDTHS)
    assert compiled_set.compiled_ms.max() < 99
    assert not compiled_set.seen.any(), "nothing of them was measured in eager mode alone"
    by_id = {row["workload_id"]: own for row, own in zip(compiled_set.rows, compiled_set.measured, strict=True)}
    traced = by_id["8-64"]
    assert traced.library_us == pytest.approx(0.75 * traced.latency_us)
    assert traced.generated_us == pytest.approx(0.25 * traced.latency_us)
    assert np.isnan(by_id["16-256"].library_us), "its trace took three times as long"
    assert np.isnan(by_id["256-1"].library_us)


def test_held_out_latencies_and_signs_beat_baselines(compiled_set, tmp_path):
    judged = compiled.judge(compiled_set)
    tables = compiled.compare(compiled_set, judged)
    rows_of_table = tables[0].rows
    assert set(rows_of_table) == {compiled.MODEL, compiled.MEAN, compiled.EAGER}
    assert rows_of_table[compiled.MODEL]["mape"] < rows_of_table[compiled.EAGER]["mape"]
    assert rows_of_table[compiled.EAGER]["sign"] == pytest.approx(1 / 3), "as it is, nothing ever gets faster"
    assert rows_of_table[compiled.MODEL]["count"] == 3 * len(WIDTHS)
    assert "10 architectures" in tables[0].title
    assert set(tables[-1].rows) == {"tiny0", "tiny1", "tiny2"}
    text = compiled.write_report(tables, tmp_path).read_text()
    assert text.startswith("# Latency under torch.compile")
    assert "### By family, worst first" in text


def test_the_sign_compares_both_predictions(compiled_set):
    faster = compiled.is_sign_right(compiled_set, compiled_set.predicted_eager_ms * 0.9)
    batches = np.array([row["batch_size"] for row in compiled_set.rows])
    assert faster.tolist() == (batches > 1).tolist()


def test_a_fit_is_written_with_its_errors(store, tmp_path, monkeypatch):
    monkeypatch.setattr(compiled, "find_predictor", lambda *_: Doubling())
    file = compiled.train(store, "h200", tmp_path / "cache", tmp_path)
    assert file.name == "compiled-h200.json"
    assert CompiledModel.load(file.read_bytes()).error > 0
    assert compiled.evaluate(store, "h200", tmp_path / "cache")[0].rows[compiled.MODEL]["mape"] > 0


def test_graphs_that_the_store_lacks_are_made_once(store, tmp_path, monkeypatch):
    shutil.copytree(store / "one", tmp_path / "store" / "one")
    calls = []

    def make(keys, folder, **_):
        calls.append(len(keys))
        write_table(folder, "graphs", [graph_row(width) for width in WIDTHS[:4]])

    monkeypatch.setattr(compiled, "collect_graphs", make)
    monkeypatch.setattr(compiled, "write_graphs", lambda *_: None)
    few = compiled.read_compiled(tmp_path / "store", "h200", tmp_path / "cache", Doubling())
    assert calls == [len(WIDTHS)]
    assert len(few.rows) == 12


def test_stores_without_usable_rows_are_errors(compiled_set, store, tmp_path):
    with pytest.raises(DataError, match="No compiled workload was measured"):
        compiled.read_compiled(tmp_path, "h200", tmp_path, Doubling())
    with pytest.raises(InputError, match="No predictor of units"):
        compiled.read_compiled(store, "h200", tmp_path, RooflinePredictor())
    one = compiled.CompiledSet(
        "h200",
        compiled_set.rows[:3],
        compiled_set.measured[:3],
        compiled_set.predicted_eager_ms[:3],
        compiled_set.seen[:3],
    )
    with pytest.raises(DataError, match="to one fold"):
        compiled.judge(one)


def test_a_prediction_says_what_compiling_gains():
    prediction = predict(tiny_onnx(), device="h200", runtime="compiled", batch_size=64)
    assert prediction.runtime == "compiled"
    assert prediction.latency_ms.low < prediction.latency_ms.value < prediction.latency_ms.high
    eager = predict(tiny_onnx(), device="h200", batch_size=64)
    assert prediction.eager_latency_ms.value == pytest.approx(eager.latency_ms.value, rel=1e-5)
    assert prediction.host_latency_ms is None


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"device": "a100"}, "not measured on a100"), ({"mode": "training"}, "not in training"),
        ({"explain": True}, "--explain is for eager mode only"), ({"predictor": "roofline"}, "leave out --predictor"),
        ({"store": "data"}, "--store is for eager mode only"),
    ],
)  # fmt: skip
def test_what_is_not_known_of_compiled_models_is_refused(options, message):
    with pytest.raises(InputError, match=message):
        predict(tiny_onnx(), **{"device": "h200", "runtime": "compiled", **options})


def test_a_processor_is_refused():
    with pytest.raises(InputError, match="measured on GPUs"):
        compiled.check_compile_request("inference", find_device("cpu"), {})
