"""Lines of a journal become tables, for every kind of campaign."""

import errno
import json
import os
from pathlib import Path
from typing import Any

import pytest

from foretell.datasets import journal_tables
from foretell.datasets.journal_tables import write_tables
from foretell.datasets.parquet_store import ParquetStore
from foretell.datasets.schema import name_number
from foretell.errors import DataError

parquet = pytest.importorskip("pyarrow.parquet")

CAMPAIGN = {
    "kind": "campaign", "campaign_id": "c", "device_name": "cpu", "host": "h", "libraries": {"torch": "2", "a": "1"},
    "runtime": "cpu", "workers": 2, "date": "2026-11-15",
}  # fmt: skip
WORK = {
    "campaign_id": "c", "workload_id": "w", "spec": "synthetic:lenet?scale=2", "family": "lenet", "mode": "inference",
    "optimizer": "", "dtype": "fp32", "batch_size": 4, "input_shape": [1, 28, 28], "part": "p", "status": "ok",
    "error": None, "measured_at": "2026-11-15T00:00:00.000+00:00",
}  # fmt: skip
KERNELS = {
    "name": ["gemm", "relu", "gemm"], "duration_us": [3.0, 1.0, 2.5], "grid": [[4, 2, 1], [1], []],
    "block": [[128, 1, 1], [256], []], "registers": [40, 16, 0], "shared_bytes": [512, 0, 0],
    "occupancy_pct": [30.0, 50.0, 0.0], "op_index": [0, 1, 2], "op": ["a", "b", "a"], "leaf_op": ["a", "b", "a"],
    "module": ["0", "1", "2"],
}  # fmt: skip
NODES = {"name": ["x", "y"], "op_type": ["Conv", "Relu"], "group": [0, 0], "kernel": ["k", "k"]}
EDGES = {"source": [0], "target": [1], "fused": [True]}
RECORDS: list[dict[str, Any]] = [
    CAMPAIGN,
    WORK | {"kind": "measurement", "latency_ms": 1.5, "noisy": False, "parameters": 12},
    WORK | {"kind": "measurement", "latency_ms": 9.9},
    WORK | {"kind": "measurements", "workload_id": "other", "status": "oom", "error": "too much"},
    CAMPAIGN | {"campaign_id": "d", "device_name": "cuda"},
    WORK | {"kind": "slices", "method": "mps", "percent": 10, "sm_count": 13.0, "latency_ms": 4.5},
    WORK | {"kind": "slices", "method": "mps", "percent": 20, "sm_count": 26, "latency_ms": 2.5},
    WORK | {"kind": "colocation", "group_id": "g", "method": "mps", "members": 2, "member": 0, "solo_ms": 1.0},
    WORK | {"kind": "colocation", "group_id": "g", "method": "mps", "members": 2, "member": 1, "solo_ms": 1.0},
    WORK | {"kind": "mixes", "mix_id": "m", "method": "mps", "jobs": 1, "job": 0, "solo_ms": 1.0, "end_s": 2.0},
    WORK | {"kind": "occupancy", "kernels": 2, "kernel_ms": 0.1, "occupancy_mean": 50.0},
    WORK | {"kind": "compiled", "eager_ms": 2.0, "compiled_ms": 1.0, "kernels": 3, "graph_breaks": None},
    WORK | {"kind": "fusion_graphs", "fusion_id": "f", "backend": "onnxruntime", "graph_hash": "h1", "nodes": 2},
    {"kind": "note", "text": "from a newer campaign"},
]
TRACES: list[dict[str, Any]] = [
    {"workload_id": "w", "kernels": KERNELS},
    {"workload_id": "w", "kernels": KERNELS},
    {"kind": "kernels", "campaign_id": "d", "workload_id": "v", "kernels": KERNELS},
    {"kind": "occupancy_kernels", "campaign_id": "c", "workload_id": "w",
     "kernels": {name: KERNELS[name] for name in ("name", "duration_us", "occupancy_pct", "grid", "block")}},
    {"kind": "compiled_kernels", "campaign_id": "c", "workload_id": "w",
     "kernels": {"hidden_us": [0.0, 0.5, 0.0]} | {n: KERNELS[n] for n in ("name", "duration_us", "grid", "block")}},
    {"kind": "compiled_kernels", "campaign_id": "c", "workload_id": "w", "kernels": KERNELS},
    {"kind": "compiled_calls", "campaign_id": "c", "workload_id": "w", "call": [0, 1], "library": [False, True],
     "name": ["triton_0", "aten.mm"], "kernels": [1, 2], "duration_us": [0.5, 1.5], "reduced": [1, 1]},
    {"kind": "fusion_nodes", "fusion_id": "f", "nodes": NODES, "edges": EDGES,
     "graph": {"version": 1, "nodes": [1, 2]}},
    {"kind": "kernel_nodes", "workload_id": "w", "graph_hash": "h1", "op_index": [0, 1, 2], "node": [0, -1, 1]},
]  # fmt: skip


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write_tables(tmp_path, RECORDS, TRACES)
    return tmp_path


def read(folder: Path, table: str) -> list[dict[str, Any]]:
    rows_read: list[dict[str, Any]] = parquet.read_table(folder / f"{table}.parquet").to_pylist()
    return rows_read


def test_every_kind_is_written_and_counted(tmp_path: Path) -> None:
    assert write_tables(tmp_path, RECORDS, TRACES) == {
        "campaigns": 2, "measurements": 2, "slices": 2, "colocation": 2, "mixes": 1, "occupancy": 1, "compiled": 1,
        "fusion_graphs": 1, "kernels": 6, "kernel_names": 2, "occupancy_kernels": 3, "compiled_kernels": 3,
        "compiled_calls": 2, "fusion_nodes": 2, "fusion_edges": 1,
        "graphs": 1, "kernel_nodes": 3, "not written: note": 1,
    }  # fmt: skip
    assert {path.suffix for path in tmp_path.iterdir()} == {".parquet"}, "no partial file stays"
    assert len(list(tmp_path.iterdir())) == 17


def test_measurements_have_the_facts_of_their_campaign(folder: Path) -> None:
    ok, oom = read(folder, "measurements")
    assert (ok["latency_ms"], ok["zoo"], ok["name"], ok["input_shape"]) == (1.5, "synthetic", "lenet", "1x28x28")
    assert (ok["device_name"], ok["libraries"], ok["workers"]) == ("cpu", '{"a": "1", "torch": "2"}', 2)
    assert (oom["status"], oom["latency_ms"], oom["memory_mib"]) == ("oom", None, None)


def test_kernels_have_launches_and_names(folder: Path) -> None:
    kernels = read(folder, "kernels")
    assert [row["name_id"] for row in kernels[:3]] == [name_number(name) for name in KERNELS["name"]]
    assert [(row["grid_x"], row["grid_y"], row["block_x"]) for row in kernels[:3]] == [
        (4, 2, 128),
        (1, 0, 256),
        (0, 0, 0),
    ]
    assert [row["campaign_id"] for row in kernels] == ["c"] * 3 + ["d"] * 3, "a trace without one is of the first"
    assert [row["block_x"] for row in read(folder, "occupancy_kernels")] == [128, 256, 0]


def test_compiled_runs_have_both_times_and_their_kernels(folder: Path) -> None:
    [row] = read(folder, "compiled")
    assert (row["eager_ms"], row["compiled_ms"], row["graph_breaks"], row["part"]) == (2.0, 1.0, None, "p")
    kernels = read(folder, "compiled_kernels")
    assert [(kernel["sequence"], kernel["name"], kernel["hidden_us"], kernel["grid_x"]) for kernel in kernels] == [
        (0, "gemm", 0.0, 4), (1, "relu", 0.5, 1), (2, "gemm", 0.0, 0),
    ]  # fmt: skip
    calls = read(folder, "compiled_calls")
    assert [(call["call"], call["library"], call["name"], call["kernels"]) for call in calls] == [
        (0, False, "triton_0", 1), (1, True, "aten.mm", 2),
    ]  # fmt: skip


def test_kernels_of_a_campaign_that_never_wrote_the_row_are_left_out(tmp_path: Path) -> None:
    trace = {"kind": "compiled_kernels", "workload_id": "w", "kernels": KERNELS}
    rows = [CAMPAIGN, WORK | {"kind": "compiled"}]
    assert write_tables(tmp_path, rows, [trace | {"campaign_id": "killed"}, trace | {"campaign_id": "c"}]) == {
        "campaigns": 1, "compiled": 1, "compiled_kernels": 3,
    }  # fmt: skip
    assert {row["campaign_id"] for row in read(tmp_path, "compiled_kernels")} == {"c"}


def test_kernels_that_were_traced_again_belong_to_the_second_campaign(tmp_path: Path) -> None:
    trace = {"kind": "compiled_kernels", "campaign_id": "again", "workload_id": "w", "kernels": KERNELS}
    again = CAMPAIGN | {"campaign_id": "again"}
    rows = [CAMPAIGN, WORK | {"kind": "compiled"}, again, WORK | {"kind": "compiled", "campaign_id": "again"}]
    assert write_tables(tmp_path, rows, [trace])["compiled_kernels"] == 3
    assert {row["campaign_id"] for row in read(tmp_path, "compiled_kernels")} == {"again"}


def test_graphs_and_fusions_belong_together(folder: Path) -> None:
    [graph] = read(folder, "graphs")
    assert (graph["graph_hash"], graph["spec"], graph["nodes"]) == ("h1", WORK["spec"], 2)
    assert json.loads(graph["document"]) == {"version": 1, "nodes": [1, 2]}
    assert [(row["campaign_id"], row["node"], row["kernel"]) for row in read(folder, "fusion_nodes")] == [
        ("c", 0, "k"), ("c", 1, "k"),
    ]  # fmt: skip
    assert [(row["fusion_id"], row["source"], row["fused"]) for row in read(folder, "fusion_edges")] == [("f", 0, True)]
    assert [row["node"] for row in read(folder, "kernel_nodes")] == [0, -1, 1]


def test_the_tables_are_a_store(folder: Path) -> None:
    store = ParquetStore(folder)
    answer = store.query("SELECT kernel, count(*) AS n FROM kernels GROUP BY kernel ORDER BY n").to_pylist()
    assert answer == [{"kernel": "relu", "n": 2}, {"kernel": "gemm", "n": 4}]
    assert store.append("slices", parquet.read_table(folder / "slices.parquet")) == 0


def test_long_traces_are_written_piece_by_piece(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(journal_tables, "ROWS_AT_ONCE", 5)
    traces = [{"workload_id": f"w{i}", "kernels": KERNELS} for i in range(7)]
    assert write_tables(tmp_path, [CAMPAIGN], traces)["kernels"] == 21
    with parquet.ParquetFile(tmp_path / "kernels.parquet") as file:
        assert file.metadata.num_row_groups > 2
    assert len({(row["workload_id"], row["sequence"]) for row in read(tmp_path, "kernels")}) == 21


def test_a_resumed_journal_only_adds(tmp_path: Path) -> None:
    write_tables(tmp_path, RECORDS[:3], TRACES[:1])
    first = read(tmp_path, "measurements"), read(tmp_path, "kernels")
    write_tables(tmp_path, RECORDS, TRACES)
    again = read(tmp_path, "measurements"), read(tmp_path, "kernels")
    assert all(set(map(str, old)) <= set(map(str, new)) for old, new in zip(first, again, strict=True))


def test_a_trace_of_a_killed_campaign_gives_way_to_the_one_with_a_record(tmp_path: Path) -> None:
    killed = [trace | {"campaign_id": "killed"} for trace in TRACES[3:5]]
    killed[1] |= {"nodes": NODES | {"kernel": ["old", "old"]}}
    rows = write_tables(tmp_path, RECORDS, [*killed, *TRACES])
    assert (rows["occupancy_kernels"], rows["fusion_nodes"], rows["fusion_edges"]) == (3, 2, 1)
    assert {row["campaign_id"] for row in read(tmp_path, "occupancy_kernels")} == {"c"}
    assert {row["kernel"] for row in read(tmp_path, "fusion_nodes")} == {"k"}


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (WORK | {"kind": "slices", "method": "mps"}, "lacks percent"),
        (WORK | {"kind": "slices", "method": "mps", "percent": "half"}, "percent 'half'"),
        ({"kind": "kernels", "workload_id": "w", "kernels": None}, "has no kernels"),
        ({"kind": "kernels", "workload_id": "w", "kernels": KERNELS | {"op": ["a"]}}, "1 values of op for 3 rows"),
    ],
)
def test_a_bad_line_is_named_and_older_tables_stay(tmp_path: Path, line: dict[str, Any], message: str) -> None:
    write_tables(tmp_path, RECORDS, TRACES)
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    with pytest.raises(DataError, match=message):
        write_tables(tmp_path, [*RECORDS, line], [line | {"workload_id": "new"}])
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before


def test_a_full_disk_leaves_older_tables(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_tables(tmp_path, RECORDS[:2], [])
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr("foretell.datasets.parquet_files.os.fsync", full)
    with pytest.raises(DataError, match="No space left on device"):
        write_tables(tmp_path, RECORDS, TRACES)
    monkeypatch.undo()
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before


def _cut(folder: Path) -> tuple[list[Any], list[Any]]:
    """Tables of everything, and what is left of the journal."""
    write_tables(folder, RECORDS, TRACES)
    first = next(place for place, line in enumerate(RECORDS) if line["kind"] == "measurement")
    return RECORDS[: first + 1], TRACES[:1]


def test_a_table_is_not_replaced_by_one_with_fewer_rows(tmp_path: Path) -> None:
    records, traces = _cut(tmp_path)
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    with pytest.raises(DataError, match=r"\.parquet has \d rows that the journal lacks.*--allow-fewer"):
        write_tables(tmp_path, records, traces)
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before
    rows = len(read(tmp_path, "measurements"))
    assert write_tables(tmp_path, records, traces, fewer="allow")["measurements"] == rows - 1


def test_rows_that_the_journal_lacks_are_kept(tmp_path: Path) -> None:
    records, traces = _cut(tmp_path)
    before = {path.stem: read(tmp_path, path.stem) for path in tmp_path.iterdir()}
    write_tables(tmp_path, records, traces, fewer="keep")
    for table, rows in before.items():
        assert sorted(map(str, read(tmp_path, table))) == sorted(map(str, rows))
    # the same number of rows, but others: these are lost rows, too
    renamed = [line | {"workload_id": "new"} if line.get("workload_id") else line for line in records]
    with pytest.raises(DataError, match="rows that the journal lacks"):
        write_tables(tmp_path, renamed, [])
    write_tables(tmp_path, renamed, [], fewer="keep")
    assert len(read(tmp_path, "measurements")) == len(before["measurements"]) + 1


def test_a_damaged_table_is_not_replaced(tmp_path: Path) -> None:
    write_tables(tmp_path, RECORDS, TRACES)
    path = tmp_path / "measurements.parquet"
    path.write_bytes(path.read_bytes()[:-20])
    with pytest.raises(DataError, match=r"measurements.parquet is damaged"):
        write_tables(tmp_path, RECORDS, TRACES)
