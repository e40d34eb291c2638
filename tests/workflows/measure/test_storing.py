import pytest

from foretell.profiling.single import Request
from foretell.workflows.measure.storing import runtime_name, store_single

pytest.importorskip("duckdb")
pytest.importorskip("pyarrow")

from foretell.datasets import open_store

LENET = "synthetic:lenet?scale=1"
WORKLOAD = {
    "spec": LENET, "batch_size": 4, "input_shape": [1, 28, 28], "dtype": "fp32", "mode": "inference", "optimizer": "",
    "family": "synthetic-lenet",
}  # fmt: skip
KERNELS = {
    "name": ["gemm"], "duration_us": [1.0], "grid": [[]], "block": [[]], "registers": [0], "shared_bytes": [0],
    "occupancy_pct": [0.0], "op_index": [0], "op": ["aten::mm"], "leaf_op": ["aten::mm"], "module": ["fc"],
}  # fmt: skip
RESULT = {
    "status": "ok", "error": None, "workload": WORKLOAD, "kernels": KERNELS, "values": {"latency_ms": 1.5},
    "facts": {"host": "h", "device_name": "cpu"},
}  # fmt: skip


def test_a_measurement_and_its_kernels_are_stored(tmp_path):
    store_single(tmp_path, LENET, Request(LENET), RESULT)
    store_single(tmp_path, LENET, Request(LENET), RESULT | {"status": "oom", "values": {}, "kernels": None})
    store = open_store(tmp_path)
    rows = store.query("SELECT spec, status, latency_ms, part, runtime FROM measurements ORDER BY status").to_pylist()
    assert [(row["status"], row["latency_ms"]) for row in rows] == [("ok", 1.5), ("oom", None)]
    assert {(row["spec"], row["part"], row["runtime"]) for row in rows} == {(LENET, "profile", "cpu")}
    assert store.query("SELECT module FROM kernels").column(0).to_pylist() == ["fc"]


def test_a_file_has_the_name_of_its_content(tmp_path):
    workload = WORKLOAD | {"spec": "net.py:build"}
    store_single(tmp_path, "file:net.py.build?sha256=1", Request("net.py:build"), RESULT | {"workload": workload})
    stored = open_store(tmp_path).query("SELECT spec, zoo, name FROM measurements").to_pylist()
    assert stored == [{"spec": "file:net.py.build?sha256=1", "zoo": "file", "name": "net.py.build"}]


def test_what_has_no_workload_is_not_stored(tmp_path):
    assert store_single(tmp_path / "s", LENET, Request(LENET), RESULT | {"workload": None}) == {}
    assert not (tmp_path / "s").exists()


def test_runtimes_are_named_as_campaigns_name_them():
    assert runtime_name(Request(LENET)) == "cpu"
    assert runtime_name(Request(LENET, runtime="compiled")) == "compiled"
    assert runtime_name(Request(LENET, "cuda", runtime="eager")) == "eager"
