import pytest

from foretell.devices.cpu_runs import ONE_THREAD, OTHERS
from foretell.errors import MeasurementError
from foretell.profiling.campaign.done import Trace, done_keys, done_measurements
from foretell.profiling.campaign.journal import TRACES, Journal

arrow = pytest.importorskip("pyarrow")
parquet = pytest.importorskip("pyarrow.parquet")


def test_keys_of_journals_and_of_tables_are_found(tmp_path):
    journal = Journal(tmp_path / "running")
    journal.open()
    journal.append({"kind": "slices", "workload_id": "a", "percent": 10.0})
    journal.append({"kind": "colocation", "workload_id": "b", "percent": 10.0})
    journal.close()
    (tmp_path / "data" / "deeper").mkdir(parents=True)
    table = arrow.table({"workload_id": ["c", "c"], "percent": [20.0, 30.0]})
    parquet.write_table(table, tmp_path / "data" / "deeper" / "slices.parquet")
    keys = done_keys([tmp_path / "running", tmp_path / "data"], "slices", ("workload_id", "percent"))
    assert keys == {("a", 10.0), ("c", 20.0), ("c", 30.0)}


def test_keys_of_the_files_of_a_store_are_found_and_those_of_similar_tables_not(tmp_path):
    for name, key in (("graphs-0123456789abcdef", "a"), ("graphs", "b"), ("fusion_graphs", "c"), ("graphs_old", "d")):
        parquet.write_table(arrow.table({"graph_hash": [key]}), tmp_path / f"{name}.parquet")
    assert done_keys([tmp_path], "graphs", ("graph_hash",)) == {("a",), ("b",)}
    with pytest.raises(MeasurementError, match="no column 'spec'"):
        done_keys([tmp_path], "graphs", ("spec",))


def test_what_cannot_be_read_is_named(tmp_path):
    with pytest.raises(MeasurementError, match="nothing at"):
        done_keys([tmp_path / "absent"], "slices", ("workload_id",))
    (tmp_path / "slices.parquet").write_bytes(b"PAR1 torn")
    with pytest.raises(MeasurementError, match=r"slices\.parquet"):
        done_keys([tmp_path], "slices", ("workload_id",))


def _journal(folder):
    journal = Journal(folder)
    journal.open()
    journal.append({"kind": "campaign", "campaign_id": "c"})
    for name, status in (("a", "ok"), ("b", "oom")):
        line = {"kind": "measurement", "workload_id": name, "status": status, "spec": "timm:resnet18"}
        journal.append(line | {"input_shape": [3, 224, 224]})
    journal.append_trace({"workload_id": "a", "kernels": {}})
    journal.append_trace({"kind": "occupancy_kernels", "workload_id": "b", "kernels": {}})
    journal.close()


def test_measurements_of_a_journal_of_a_folder_and_of_one_file_are_known(tmp_path):
    _journal(tmp_path / "journal")
    rows, traced = done_measurements(tmp_path / "journal")
    assert [(row["workload_id"], row["status"], row["input_shape"]) for row in rows] == [
        ("a", "ok", "3x224x224"),
        ("b", "oom", "3x224x224"),
    ]
    assert traced == {"a"}
    store = tmp_path / "store"
    store.mkdir()
    parquet.write_table(
        arrow.table({"workload_id": ["x"], "status": ["ok"]}), store / "measurements-0123456789.parquet"
    )
    parquet.write_table(arrow.table({"workload_id": ["x", "x", "y"]}), store / "kernels.parquet")
    parquet.write_table(arrow.table({"name_id": [1]}), store / "kernel_names.parquet")
    assert done_measurements(store) == ([{"workload_id": "x", "status": "ok"}], {"x", "y"})
    assert done_measurements(store / "kernels.parquet") == ([], {"x", "y"})


def test_what_another_run_has_measured_is_not_done(tmp_path):
    rows = {"workload_id": ["x", "x", "y"], "status": ["ok"] * 3, "runtime": ["cpu", "cpu", "onnxruntime"]}
    rows |= {"threads": [1, 2, 1], "campaign_id": ["one", "two", "session"]}
    parquet.write_table(arrow.table(rows), tmp_path / "measurements.parquet")
    traces = {"workload_id": ["x", "y"], "campaign_id": ["two", "session"]}
    parquet.write_table(arrow.table(traces), tmp_path / "kernels.parquet")
    done = {
        run: ([row["workload_id"] for row in rows], traced)
        for run in (ONE_THREAD, *OTHERS)
        for rows, traced in (done_measurements(tmp_path, run),)
    }
    assert list(done.values()) == [(["x"], set()), (["x"], {"x"}), (["y"], {"y"}), ([], set())]


def test_damaged_measurements_are_named_and_left_alone(tmp_path):
    torn = tmp_path / "measurements.parquet"
    torn.write_bytes(b"PAR1 not parquet")
    for path in (tmp_path, torn):
        with pytest.raises(MeasurementError, match=r"measurements\.parquet"):
            done_measurements(path)
    assert torn.read_bytes() == b"PAR1 not parquet"
    with pytest.raises(MeasurementError, match="nothing at"):
        done_measurements(tmp_path / "absent")


def test_a_record_whose_trace_is_damaged_is_not_done(tmp_path):
    journal = Journal(tmp_path / "running")
    journal.open()
    ends = []
    for key in "abc":
        journal.append_trace({"kind": "compiled_kernels", "workload_id": key, "kernels": {"name": ["k"]}})
        ends.append((tmp_path / "running" / TRACES).stat().st_size)
        journal.append({"kind": "compiled", "workload_id": key, "status": "ok", "kernels": 1})
    journal.append({"kind": "compiled", "workload_id": "failed", "status": "oom"})
    journal.append({"kind": "compiled", "workload_id": "untraced", "status": "ok", "kernels": None})
    journal.close()
    data = bytearray((tmp_path / "running" / TRACES).read_bytes())
    data[(ends[0] + ends[1]) // 2] ^= 0xFF
    (tmp_path / "running" / TRACES).write_bytes(data)
    journal.open()  # sets the damaged trace aside
    journal.close()

    def done() -> set[str]:
        trace = Trace("compiled_kernels", "kernels")
        return {key for (key,) in done_keys([tmp_path / "running"], "compiled", ("workload_id",), trace=trace)}

    assert done() == {"a", "c", "failed", "untraced"}
    # a table that was made before the damage has the trace
    parquet.write_table(arrow.table({"workload_id": ["b"]}), tmp_path / "running" / "compiled_kernels.parquet")
    assert done() == {"a", "b", "c", "failed", "untraced"}
