import pytest

from foretell.datasets.parquet_files import find_files, read_columns
from foretell.training.examples.calls import OPTIMIZER, Call
from foretell.training.examples.graphs import GraphKey, collect_graphs, measured_keys, write_graphs
from foretell.training.examples.link import Trace, link_store, link_traces, read_traces_of, tied_share, write_links
from small.small_store import write_table

pytest.importorskip("torch")
pytest.importorskip("pyarrow")

SPEC = "synthetic:mlp?act=relu&widths=8-16-4"


@pytest.fixture
def store(tmp_path):
    facts = {"campaign_id": "c", "spec": SPEC, "family": "mlp", "input_shape": "8", "mode": "inference", "status": "ok"}
    write_table(tmp_path / "one", "measurements", [{**facts, "workload_id": "w"}, {**facts, "workload_id": "untraced"}])
    calls = [(0, "aten::linear", "0"), (0, "aten::linear", "0"), (1, "aten::relu", "1"), (3, "aten::sort", "9")]
    kernels = [
        {"campaign_id": "c", "workload_id": "w", "sequence": number, "op_index": index, "op": op, "module": module}
        | {"duration_us": 10.0 * (number + 1), "name_id": 1}
        for number, (index, op, module) in enumerate(calls)
    ]
    write_table(tmp_path / "one", "kernels", kernels)
    return tmp_path


def test_kernels_are_added_up_by_call(store):
    (trace,) = read_traces_of(store)
    assert [call.op_index for call in trace.calls] == [0, 1, 3]
    assert trace.durations_us == (30.0, 30.0, 40.0)
    assert (trace.campaign_id, trace.key) == ("c", GraphKey(SPEC, (8,), "inference"))


@pytest.mark.parametrize(
    ("op", "names", "hidden_us", "busy_us"),
    [
        ("aten::conv2d", [1, 2, 2, 2, 2], None, float("nan")),  # a group each, perhaps at once
        ("aten::conv2d", [1, 2, 2, 2, 2], [0.0, 0.0, 6.0, 9.0, 9.5], 25.5),
        ("aten::conv2d", [1, 1, 1, 2, 3], None, 50.0),
        ("ConvolutionBackward0", [1, 1, 1, 1, 1], None, float("nan")),
        ("aten::lstm", [1, 1, 1, 1, 1], None, float("nan")),
        ("aten::linear", [1, 1, 1, 1, 1], None, 50.0),
        ("aten::gru_cell", [1, 1, 2, 2, 3], [0.0] * 5, float("nan")),  # two products and the gates: three nodes
    ],
)
def test_overlapping_kernels_count_only_if_the_trace_shows_them(tmp_path, op, names, hidden_us, busy_us):
    facts = {"campaign_id": "c", "workload_id": "w"}
    measured = {"spec": SPEC, "family": "mlp", "input_shape": "8", "mode": "inference", "status": "ok"}
    write_table(tmp_path, "measurements", [facts | measured])
    hidden = hidden_us or [None] * len(names)
    kernels = [
        facts | {"sequence": number, "op_index": 0, "op": op, "module": "", "duration_us": 10.0, "name_id": name}
        | {"hidden_us": hidden[number]}
        for number, name in enumerate(names)
    ]  # fmt: skip
    write_table(tmp_path, "kernels", kernels)
    (trace,) = read_traces_of(tmp_path)
    assert trace.durations_us == (50.0,)
    assert trace.busy_us == (pytest.approx(busy_us, nan_ok=True),)


def test_the_traces_of_a_store_are_tied_and_written(store):
    keys = measured_keys(store)
    assert len(keys) == 1
    collect_graphs(keys, store / "journal")
    write_graphs(store / "journal", store / "graphs")
    links, summary = link_store(store, store / "graphs")
    assert summary.total_us == {"node": 60.0, "untied": 40.0}
    assert summary.untied == {"aten::sort": 40.0}
    assert links[0].shares()["node"] == 0.6
    write_links(links, store / "graphs")
    write_links(links, store / "graphs")
    (file,) = [file for file in find_files(store) if file.table == "kernel_nodes"]
    rows = read_columns(file, ("workload_id", "op_index", "node", "graph_hash")).to_pylist()
    assert [(row["op_index"], row["node"]) for row in rows[:1] + rows[-1:]] == [(0, links[0].nodes[0]), (3, -1)]
    assert {row["graph_hash"] for row in rows} == {links[0].graph_hash}


def test_a_trace_without_a_graph_counts_against_the_share():
    trace = Trace("w", "c", GraphKey(SPEC, (8,), "training"), "mlp", (Call(0, "aten::linear"),), (5.0,), (5.0,))
    links, summary = link_traces([trace], [])
    assert links == []
    assert summary.total_us == {"no graph": 5.0}
    assert summary.worst_first(1) == [(1.0, "training", SPEC)]


def test_the_optimizer_is_no_node_of_the_model():
    times = {"node": 90.0, "optimizer": 10.0}
    assert tied_share(times) == 0.9
    assert OPTIMIZER < 0
