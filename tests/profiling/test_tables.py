import pytest

from foretell.errors import MeasurementError
from foretell.profiling.journal import Journal
from foretell.profiling.tables import KERNEL_NAMES, KERNELS, MEASUREMENTS, read_done, write_tables
from foretell.profiling.workload import Workload

parquet = pytest.importorskip("pyarrow.parquet")

WORKLOAD = Workload("synthetic:lenet?scale=2", 4, (1, 28, 28), "fp32", family="synthetic-lenet")
KERNEL = {
    "name": ["gemm", "relu", "gemm"], "duration_us": [3.0, 1.0, 2.5], "grid": [[4, 2, 1], [1], []],
    "block": [[128, 1, 1], [256], []], "registers": [40, 16, 0], "shared_bytes": [512, 0, 0],
    "occupancy_pct": [30.0, 50.0, 0.0], "op_index": [0, 1, 2], "op": ["a", "b", "a"], "leaf_op": ["a", "b", "a"],
    "module": ["0", "1", "2"],
}  # fmt: skip


@pytest.fixture
def folder(tmp_path):
    journal = Journal(tmp_path)
    journal.open()
    libraries = {"torch": "2.13"}
    journal.append({"kind": "campaign", "campaign_id": "c", "device_name": "cpu", "host": "h", "libraries": libraries})
    line = {"kind": "measurement", "campaign_id": "c", "workload_id": WORKLOAD.id, "part": "p", "status": "ok"}
    journal.append(line | WORKLOAD.to_json() | {"latency_ms": 1.5, "noisy": False, "parameters": 12})
    journal.append(line | WORKLOAD.to_json() | {"latency_ms": 9.9})
    journal.append(line | WORKLOAD.to_json() | {"workload_id": "other", "status": "oom", "error": "too much"})
    journal.append_trace({"workload_id": WORKLOAD.id, "kernels": KERNEL})
    journal.append_trace({"workload_id": WORKLOAD.id, "kernels": KERNEL})
    journal.close()
    return tmp_path


def test_a_journal_becomes_tables(folder):
    assert write_tables(folder) == {"measurements": 2, "traces": 1, "kernels": 3, "names": 2}
    table = parquet.read_table(folder / MEASUREMENTS)
    assert table.schema.metadata[b"schema_version"] == b"1"
    ok, oom = table.to_pylist()
    assert (ok["latency_ms"], ok["zoo"], ok["name"], ok["input_shape"]) == (1.5, "synthetic", "lenet", "1x28x28")
    assert (ok["device_name"], ok["libraries"]) == ("cpu", '{"torch": "2.13"}')
    assert (oom["status"], oom["latency_ms"], oom["memory_mib"]) == ("oom", None, None)
    kernels = parquet.read_table(folder / KERNELS).to_pylist()
    names = {row["name_id"]: row["name"] for row in parquet.read_table(folder / KERNEL_NAMES).to_pylist()}
    assert [names[row["name_id"]] for row in kernels] == ["gemm", "relu", "gemm"]
    assert [(row["grid_x"], row["grid_y"], row["block_x"]) for row in kernels] == [(4, 2, 128), (1, 0, 256), (0, 0, 0)]
    assert not list(folder.glob("*.part"))


def test_what_is_done_is_known_from_the_journal_the_folder_or_a_table(folder, tmp_path):
    rows, traced = read_done(folder)
    assert {row["workload_id"] for row in rows} == {WORKLOAD.id, "other"}
    assert traced == {WORKLOAD.id}
    write_tables(folder)
    for path in (folder, folder / MEASUREMENTS):
        assert {row["workload_id"] for row in read_done(path)[0]} == {WORKLOAD.id, "other"}
    assert read_done(folder / KERNELS) == ([], {WORKLOAD.id})


def test_broken_tables_are_named_and_left_alone(folder):
    (folder / MEASUREMENTS).write_bytes(b"PAR1 not parquet")
    with pytest.raises(MeasurementError, match=r"measurements\.parquet"):
        read_done(folder / MEASUREMENTS)
    assert (folder / MEASUREMENTS).read_bytes() == b"PAR1 not parquet"
    with pytest.raises(MeasurementError, match="nothing at"):
        read_done(folder / "absent")
