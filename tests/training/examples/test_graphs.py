from dataclasses import replace

import pytest

from foretell.errors import ModelError
from foretell.profiling.zoos.zoo import Built, image_inputs
from foretell.training.examples import graphs
from foretell.training.examples.graphs import (
    GraphKey,
    collect_graphs,
    make_graph,
    measured_keys,
    read_graphs,
    stored_keys,
    without_origins,
    write_graphs,
)
from small.small_store import write_table

pytest.importorskip("torch")
pytest.importorskip("pyarrow")

LENET = GraphKey("synthetic:lenet?act=relu&scale=1", (1, 28, 28), "inference")
MLP = GraphKey("synthetic:mlp?act=relu&widths=8-16-4", (8,), "inference")
TINY = "hidden_size=32&intermediate_size=64&max_position_embeddings=64&num_attention_heads=2&num_hidden_layers=2"
LLAMA = f"hf:llama?{TINY}&num_key_value_heads=1&vocab_size=100"
BERT = f"hf:bert?{TINY}&vocab_size=100"


def test_a_graph_has_the_batch_it_is_kept_at_and_scales_to_any():
    graph = make_graph(LENET)
    assert graph.batch_size == graphs.GRAPH_BATCH
    assert graph.tensors[graph.inputs[0]].shape == (1, 1, 28, 28)
    assert graph.with_batch(5).tensors[graph.inputs[0]].shape == (5, 1, 28, 28)
    assert graph.operator_counts["Conv"] == 2


def test_training_reads_the_model_in_training_mode():
    inference, training = (make_graph(GraphKey(BERT, (16,), mode)) for mode in ("inference", "training"))
    assert "DropoutMask" not in inference.operator_counts
    assert training.operator_counts["DropoutMask"] >= 2


@pytest.mark.parametrize(("mode", "tokens"), [("prefill", 12), ("decode", 1)])
def test_language_models_are_read_as_they_are_measured(mode, tokens):
    graph = make_graph(GraphKey(LLAMA, (12,), mode))
    assert graph.operator_counts["Attention"] == 2
    assert graph.tensors["input_ids"].shape == (1, tokens)
    cached = [name for name in graph.inputs if name.startswith("past_")]
    assert len(cached) == (4 if mode == "decode" else 0)
    assert all(graph.tensors[name].shape[-2] == 12 for name in cached)


def test_a_model_that_cannot_be_built_is_a_model_error():
    with pytest.raises(ModelError, match="without weights"):
        make_graph(GraphKey("hf:bert?hidden_size=30&num_attention_heads=4&vocab_size=9", (8,), "inference"))


def test_a_constructor_that_reads_values_back_leaves_nothing_on_the_host(monkeypatch):
    import torch

    from foretell.profiling.zoos import registry as zoo

    class Reads(torch.nn.Sequential):
        def __init__(self):
            super().__init__(torch.nn.Conv2d(1, int(torch.linspace(1, 4, 2).tolist()[-1]), 3), torch.nn.BatchNorm2d(4))

    monkeypatch.setattr(zoo, "build", lambda _: Built(Reads(), image_inputs))
    assert make_graph(LENET).operator_counts == {"Conv": 1, "BatchNormalization": 1}


def test_origins_of_single_nodes_fall_away_without_changing_the_graph():
    graph = make_graph(LENET)
    small = without_origins(graph)
    assert small.hash == graph.hash
    assert {node.origin for node in graph.nodes} != {""}
    assert {node.origin for node in small.nodes} == {""}


def test_a_sweep_is_continued_and_written_once(tmp_path):
    broken = GraphKey("synthetic:nothing?x=1", (8,), "inference")
    keys = {LENET: "lenet", broken: "x"}
    assert collect_graphs(keys, tmp_path / "journal") == {"ok": 1, "build_error": 1}
    messages = []
    counts = collect_graphs(
        {**keys, MLP: "mlp"}, tmp_path / "journal", on_progress=lambda *facts: messages.append(facts)
    )
    assert counts == {"ok": 1}
    assert [(facts[0], facts[2]) for facts in messages] == [(3, MLP)]
    path = write_graphs(tmp_path / "journal", tmp_path / "data")
    assert path is not None
    assert stored_keys(tmp_path / "data") == {LENET, MLP}
    assert write_graphs(tmp_path / "journal", tmp_path / "data") is None
    assert collect_graphs({LENET: "lenet"}, tmp_path / "other", done=stored_keys(tmp_path / "data")) == {}
    stored_graphs = {
        key: (graph_hash, graph) for key, graph_hash, graph in read_graphs(tmp_path / "data", [LENET, broken])
    }
    assert set(stored_graphs) == {LENET}
    assert stored_graphs[LENET][0] == stored_graphs[LENET][1].hash == make_graph(LENET).hash


def test_a_graph_that_takes_too_long_is_recorded(tmp_path, monkeypatch):
    def hang(_):
        import time

        time.sleep(600)

    monkeypatch.setattr(graphs, "make_graph", hang)
    assert collect_graphs({LENET: ""}, tmp_path, limit_s=1) == {"build_error": 1}


def test_nothing_stored_is_no_error(tmp_path):
    assert stored_keys(tmp_path / "nowhere") == set()
    assert measured_keys(tmp_path) == {}


def test_graphs_of_compiled_models_are_needed_too(tmp_path):
    rows = [
        {"campaign_id": "c", "workload_id": name, "spec": LENET.spec, "family": "lenet", "mode": "inference"}
        | {"input_shape": shape, "status": status}
        for name, shape, status in (("a", "1x28x28", "ok"), ("b", "1x32x32", "run_error"))
    ]
    write_table(tmp_path, "compiled", rows)
    assert measured_keys(tmp_path) == {LENET: "lenet"}


def test_graphs_that_a_compiler_was_given_are_not_taken_for_those_of_the_front_end(tmp_path):
    from foretell.datasets.parquet_files import TableWriter, arrow_table, rename
    from foretell.datasets.schema import TABLES

    table = TABLES["graphs"]
    row = {"spec": LENET.spec, "input_shape": "1x28x28", "mode": "inference", "campaign_id": "fusion", "document": "{}"}
    columns = {name: [row.get(name)] for name in table.columns}
    with TableWriter(tmp_path / ".part", table) as writer:
        writer.write(arrow_table(table, columns))
        rename(writer.finish(), tmp_path / "graphs.parquet")
    assert stored_keys(tmp_path) == set()
    assert list(read_graphs(tmp_path, [LENET])) == []


def test_graphs_of_unwatched_programs_are_renewed(tmp_path, monkeypatch):
    folder, real = tmp_path / "data", graphs.make_graph
    monkeypatch.setattr(graphs, "make_graph", lambda key: replace(real(key), held=None))
    collect_graphs({LENET: "lenet", MLP: "mlp"}, tmp_path / "old")
    write_graphs(tmp_path / "old", folder)
    assert graphs.unwatched_keys(folder) == {LENET, MLP}
    monkeypatch.setattr(graphs, "make_graph", real)
    collect_graphs({LENET: "lenet"}, tmp_path / "new")
    assert write_graphs(tmp_path / "new", folder) is None
    assert write_graphs(tmp_path / "new", folder, renewed=graphs.unwatched_keys(folder)) is not None
    assert stored_keys(folder) == {LENET, MLP}
    assert graphs.unwatched_keys(folder) == {MLP}
    assert len(list(folder.iterdir())) == 2


def test_a_network_that_is_another_one_now_keeps_its_old_graph(tmp_path, monkeypatch):
    folder, real = tmp_path / "data", graphs.make_graph
    monkeypatch.setattr(graphs, "make_graph", lambda key: replace(real(key), held=None))
    collect_graphs({MLP: "mlp"}, tmp_path / "old")
    write_graphs(tmp_path / "old", folder)
    monkeypatch.setattr(graphs, "make_graph", lambda key: real(LENET))
    collect_graphs({MLP: "mlp"}, tmp_path / "new")
    assert write_graphs(tmp_path / "new", folder, renewed={MLP}) is None
    assert graphs.unwatched_keys(folder) == {MLP}
