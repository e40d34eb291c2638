"""Networks of timm's tables are described by graphs of the store: each run as it ran, each graph once."""

from pathlib import Path

import pandas as pd
import pytest

from foretell.graph import Graph, Node, Tensor
from foretell.training.examples.graphs import GraphKey
from lab.transfer import networks
from lab.transfer.networks import Run, workloads


def small() -> Graph:
    tensors = {
        "x": Tensor("x", (1, 3, 8, 8), kind="input", batch_axis=0),
        "w": Tensor("w", (4, 3, 3, 3), kind="parameter"),
        "y": Tensor("y", (1, 4, 8, 8), batch_axis=0),
    }
    node = Node("y", "Conv", ("x", "w"), ("y",), {"kernel_shape": (3, 3), "strides": (1, 1), "pads": (1, 1, 1, 1)})
    return Graph.build("small", [node], tensors, ["x"], ["y"])


def test_runs_share_a_graph_and_have_their_own_settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    key = GraphKey("timm:small", (3, 8, 8), "inference")
    monkeypatch.setattr(networks, "stored_keys", lambda _: {key})
    monkeypatch.setattr(networks, "read_graphs", lambda _, keys: [(each, "", small()) for each in keys])
    rows = [("a", "small.in1k", 4, 2.0), ("b", "small.in1k", 4, 3.0), ("b", "unknown", 4, 1.0)]
    table = pd.DataFrame(rows, columns=["run", "model", "infer_batch_size", "infer_step_time"])
    table["infer_img_size"] = 8
    table.to_parquet(tmp_path / "table.parquet")
    runs = [Run("rtx-3090", "table", "a"), Run("rtx-4090", "table", "b", channels_last=True)]
    first, second = workloads(tmp_path, tmp_path, runs)
    assert [(run.run, spec, measured) for run, spec, _, measured in (first, second)] == [
        ("a", "timm:small", 2.0),
        ("b", "timm:small", 3.0),
    ]
    works = first[2], second[2]
    assert [work.batch_size for work in works] == [4, 4]
    assert [work.channels_last for work in works] == [False, True]
    assert [work.target.device.id for work in works] == ["rtx-3090", "rtx-4090"]
    assert works[0].graph is works[1].graph
    assert {tensor.dtype for tensor in works[0].graph.tensors.values()} == {"fp16"}


def test_autocast_keeps_what_it_does_not_cast(tmp_path: Path) -> None:
    del tmp_path
    graph = networks._graph(small(), Run("rtx-3090", "table", "a", "training"))
    assert {tensor.dtype for tensor in graph.tensors.values()} == {"fp32"}


def test_softmax_reads_half_precision_without_a_cast_before_it() -> None:
    tensors = {
        "x": Tensor("x", (1, 8, 8), kind="input", batch_axis=0),
        "w": Tensor("w", (8, 8), kind="parameter"),
        **{name: Tensor(name, (1, 8, 8), batch_axis=0) for name in ("h", "p", "y")},
    }
    nodes = [Node("h", "MatMul", ("x", "w"), ("h",)), Node("p", "Softmax", ("h",), ("p",), {"axis": -1}),
             Node("y", "MatMul", ("p", "w"), ("y",))]  # fmt: skip
    ran = networks._graph(
        Graph.build("attention", nodes, tensors, ["x"], ["y"]), Run("rtx-3090", "t", "a", as_it_ran=True)
    )
    ran.validate()
    softmax = next(node for node in ran.nodes if node.op == "Softmax")
    assert [ran.tensors[name].dtype for name in (*softmax.inputs, *softmax.outputs)] == ["fp16", "fp32"]
    # of the input, of the weight, and of what the second product reads
    assert [node.op for node in ran.nodes] == ["Cast", "Cast", "MatMul", "Softmax", "Cast", "MatMul"]
