from collections import Counter

import pytest

from foretell.devices import find_device
from foretell.devices.cpu_runs import CpuRun
from foretell.records import Target
from foretell.training.examples.graphs import collect_graphs, measured_keys, write_graphs
from foretell.training.examples.link import link_store, write_links
from foretell.training.examples.workloads import divided_nodes, measured_rows, read_examples
from small.small_store import write_table
from training.examples.test_link import SPEC

pytest.importorskip("torch")
pytest.importorskip("pyarrow")

H200 = Target(find_device("h200"))
KINDS = (
    ("fp32", "inference", ""),
    ("fp16", "inference", ""),
    ("fp32", "training", "sgd"),
    ("bf16", "training", "adamw"),
)
BACK = "autograd::engine::evaluate_function: "


@pytest.fixture
def store(tmp_path):
    facts = {"campaign_id": "c", "spec": SPEC, "family": "mlp", "input_shape": "8", "batch_size": 4}
    rows, kernels = [], []
    for number, (dtype, mode, optimizer) in enumerate(KINDS):
        workload = {"workload_id": f"w{number}", "dtype": dtype, "mode": mode, "optimizer": optimizer}
        rows.append({**facts, **workload, "status": "ok", "latency_ms": 1.0})
        calls = [("aten::linear", "0", 5.0), ("aten::relu", "1", 3.0), ("aten::linear", "2", 7.0)]
        if mode == "training":
            calls += [(f"{BACK}AddmmBackward0", "", 11.0), ("aten::_foreach_add_", "", 2.0)]
        kernels += [
            {"campaign_id": "c", "workload_id": f"w{number}", "sequence": index, "op_index": index, "op": op}
            | {"module": module, "duration_us": duration_us, "name_id": 1}
            for index, (op, module, duration_us) in enumerate(calls)
        ]
    rows += [{**rows[0], "status": "oom", "workload_id": "bad"}, {**rows[0], "workload_id": "untraced"}]
    write_table(tmp_path / "one", "measurements", rows)
    write_table(tmp_path / "one", "kernels", kernels)
    collect_graphs(measured_keys(tmp_path), tmp_path / "journal")
    write_graphs(tmp_path / "journal", tmp_path / "graphs")
    links, _ = link_store(tmp_path, tmp_path)
    write_links(links, tmp_path / "graphs")
    return tmp_path


def test_every_good_workload_becomes_an_example(store):
    by_id = {example.row["workload_id"]: example for example in read_examples(store, H200)}
    assert set(by_id) == {"w0", "w1", "w2", "w3", "untraced"} == set(measured_rows(store))
    assert by_id["untraced"].unit_us is None
    assert by_id["w0"].workload.batch_size == 4
    assert by_id["w1"].workload.graph.tensors[by_id["w1"].workload.graph.outputs[0]].dtype == "fp16"


def test_traced_time_goes_to_the_units_it_belongs_to(store):
    by_id = {example.row["workload_id"]: example for example in read_examples(store, H200)}
    plain = by_id["w0"]
    assert dict(zip(plain.units.operators, plain.unit_us.tolist())) == {"Gemm": 7.0, "Relu": 3.0}
    assert plain.unit_us.tolist() == [5.0, 3.0, 7.0]
    for name in ("w2", "w3"):  # autocast adds casts in front of the nodes; their calls stay where they were
        example = by_id[name]
        by_phase = Counter()
        for phase, spent in zip(example.units.phases, example.unit_us.tolist()):
            by_phase[phase] += spent
        assert by_phase == {"forward": 15.0, "backward": 11.0, "optimizer": 2.0}


def test_other_runs_of_a_workload_teach_nothing_about_one_thread(store):
    """A store with two threads and ONNX Runtime beside one thread: each run has its own rows and traces."""
    two = {"campaign_id": "two", "runtime": "cpu", "threads": 2, "measured_at": "2026-11-18T10:00:00+00:00"}
    before = {example.row["workload_id"]: example for example in read_examples(store, H200)}
    row = {**before["w0"].row, **two, "latency_ms": 0.5, "status": "ok"}
    write_table(store / "0-two", "measurements", [row, {**row, "workload_id": "new"}])
    calls = [("aten::linear", "0", 50.0), ("aten::relu", "1", 30.0), ("aten::linear", "2", 70.0)]
    kernels = [
        {"campaign_id": "two", "workload_id": "w0", "sequence": number, "op_index": number, "op": op}
        | {"module": module, "duration_us": time_us, "name_id": 1}
        for number, (op, module, time_us) in enumerate(calls)
    ]
    write_table(store / "0-two", "kernels", kernels)
    after = {example.row["workload_id"]: example for example in read_examples(store, H200)}
    assert set(after) == set(before)
    assert after["w0"].row["latency_ms"] == 1.0
    assert after["w0"].unit_us.tolist() == before["w0"].unit_us.tolist()
    run = CpuRun("eager", 2)
    examples = {example.row["workload_id"]: example for example in read_examples(store, H200, run=run)}
    assert set(examples) == {"w0", "new"}
    assert examples["w0"].row["latency_ms"] == 0.5
    assert examples["w0"].unit_us.tolist() == [50.0, 30.0, 70.0]
    assert examples["new"].unit_us is None
    assert set(measured_rows(store, run, {"2026-11-18"})) == {"w0", "new"}
    assert not measured_rows(store, run, {"2026-11-17"})
    assert not measured_rows(store, CpuRun("onnxruntime", 2))


def test_products_of_one_einsum_have_no_traced_time_of_their_own():
    import torch

    from foretell.frontends.torch.export import graph_from_program
    from foretell.frontends.torch.program import TorchProgram

    class Contraction(torch.nn.Module):
        def forward(self, x):
            y = torch.einsum("bij,bjk,bkl->bil", x, x, x)
            return torch.einsum("bij,bjk->bik", y, x) * 2

    program = TorchProgram("contraction", Contraction(), (torch.ones(11, 4, 4, device="meta"),))
    graph = graph_from_program(program, batch_size=11)
    divided = [graph.nodes[position].op for position in sorted(divided_nodes(graph))]
    assert divided == ["Einsum", "Einsum"]
    assert [node.op for node in graph.nodes].count("Einsum") == 3
