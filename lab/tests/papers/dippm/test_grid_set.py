import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from foretell.datasets.parquet_files import find_files, table_of
from foretell.errors import DataError, ModelError
from foretell.testing import tiny_graph
from foretell.training.examples.graphs import GraphKey
from lab.papers.dippm import grid_set
from lab.papers.dippm.grid import INFERENCE, groups_of, workload_of_row
from lab.papers.dippm.sets import read_set, subset, write_labelled
from lab.papers.graph_networks.arrays import GraphArrays

pytest.importorskip("torch")
pytest.importorskip("pyarrow")


def row(batch, **values):
    return {"spec": "timm:vgg11", "batch_size": batch, "input_shape": [3, 224, 224], "dtype": "fp32", **values}


def test_a_round_has_every_model_once():
    names = ["vgg11", "resnet50", "vit_tiny_patch16_224"]
    keys = list(grid_set.planned(INFERENCE, names))
    for begin in (0, 3, 6):
        assert len({key.spec.partition("?")[0] for key in keys[begin : begin + 3]}) == 3
    planned = grid_set.planned(INFERENCE, names)
    assert sum(map(len, planned.values())) == sum(len(own) for name in names for _, own in groups_of(name))
    assert all(GraphKey(w.spec, w.input_shape, w.mode) == key for key, own in planned.items() for w in own)


def test_graphs_are_made_once_and_what_fails_is_told(tmp_path, monkeypatch):
    made, lines = [], []

    def make(key):
        made.append(key)
        if "vgg13" in key.spec:
            raise ModelError("no such model")
        return tiny_graph()

    monkeypatch.setattr(grid_set, "make_graph", make)
    good = [workload_of_row(row(batch)) for batch in (1, 2)]
    bad = [replace(good[0], spec="timm:vgg13")]
    wanted = {GraphKey(own[0].spec, own[0].input_shape, own[0].mode): own for own in (bad, good)}
    grid_set.make_graphs(wanted, tmp_path, "h200", lines.append)
    graphs = grid_set.read_parts(tmp_path)
    assert {name: graph.whole_of(("batch",))[0] for name, graph in graphs.items()} == {good[0].id: 1, good[1].id: 2}
    assert any("no such model" in line for line in lines)
    grid_set.make_graphs(wanted, tmp_path, "h200", lines.append)
    assert [key.spec for key in made] == ["timm:vgg13", "timm:vgg11", "timm:vgg13"]
    assert set(grid_set.read_parts(tmp_path)) == set(graphs)


def test_rows_survive_parquet(tmp_path):
    rows = [
        row(2, latency_ms=1.5, latency_cv=0.25, memory_mib=100.5, reserved_mib=128.0, clock_mhz=1980),
        row(1, error="oom: " + "x" * 200),
        row(1, latency_ms=1.0, memory_mib=50.0, power_w=300.0, energy_j=0.5),
        row(2, latency_ms=9.0),
        row(4, error="run_error: no"),
        {"spec": "timm:vgg11", "error": "exit code 5"},
    ]
    file = tmp_path / "families.parquet"
    grid_set.pack_rows(rows, file)
    assert grid_set.measured_rows([file]) == [rows[2], rows[0], rows[4]]


def test_readers_of_a_store_do_not_see_the_rows(tmp_path):
    for grid in grid_set.GRIDS.values():
        assert table_of(Path(grid.rows)) is None
        grid_set.pack_rows([row(1, latency_ms=1.0)], tmp_path / grid.rows)
    assert find_files(tmp_path) == []


def test_rows_that_are_not_there_are_asked_for(tmp_path):
    with pytest.raises(DataError, match=r"lab\.papers\.dippm\.grid"):
        grid_set.measured_rows([tmp_path / "families.parquet"])
    with pytest.raises(DataError, match=r"lab\.papers\.dippm\.grid"):
        grid_set.measured_rows([])


def test_training_steps_survive_parquet(tmp_path):
    step = row(2, latency_ms=1.5, mode="training", optimizer="adamw")
    file = tmp_path / "steps.parquet"
    grid_set.pack_rows([step], file)
    (read,) = grid_set.measured_rows([file])
    assert read == step
    assert (workload_of_row(read).mode, workload_of_row(read).optimizer) == ("training", "adamw")


def test_only_what_the_store_lacks_is_new():
    known = [row(1, latency_ms=1.0), row(2, error="oom: no"), row(4, error="skipped: no time")]
    rows = [
        row(1, latency_ms=1.1),
        row(2, latency_ms=2.0),
        row(4, error="oom: no"),
        row(8, error="oom: no"),
        {"spec": "x"},
    ]
    assert grid_set.new_rows(rows, known) == [rows[1], rows[3]]


def test_a_row_with_energy_is_new_and_stands_for_the_one_without(tmp_path):
    plain, full = row(1, latency_ms=1.0), row(1, latency_ms=1.1, energy_j=0.3, power_w=280.0)
    assert grid_set.new_rows([full], [plain]) == [full]
    assert grid_set.new_rows([plain], [full]) == []
    own = workload_of_row(plain).id
    graph = GraphArrays.__new__(GraphArrays)
    for rows in ([plain, full], [full, plain]):
        (labelled,) = grid_set.join(rows, {own: graph})
        assert (labelled.truth["latency_ms"], labelled.truth["energy_j"]) == (1.1, 0.3)


def test_settings_without_energy_are_measured_again_where_energy_is_asked_for(tmp_path, monkeypatch):
    monkeypatch.setattr(grid_set, "STORE", tmp_path)
    full = row(1, latency_ms=1.0, energy_j=0.3, power_w=300.0)
    rows = [full, row(2, latency_ms=1.0), row(4, error="oom: no")]
    (tmp_path / "a").mkdir()
    grid_set.pack_rows(rows, tmp_path / "a" / grid_set.ROWS)
    for words, kept in ((["--energy"], [1, 4]), ([], [1, 2, 4])):
        monkeypatch.setattr("sys.argv", ["grid_set", "lines", str(tmp_path / "known.jsonl"), *words])
        grid_set.main()
        lines = grid_set.read_rows(tmp_path / "known.jsonl")
        assert sorted(each["batch_size"] for each in lines) == kept


def test_power_of_another_card_is_brought_to_the_newest(tmp_path, monkeypatch):
    monkeypatch.setattr(grid_set, "STORE", tmp_path)
    first = [row(n, latency_ms=1.0, power_w=200.0 + n, energy_j=0.2) for n in range(1, 13)]
    second = [row(n, latency_ms=1.0, power_w=0.9 * (200.0 + n), energy_j=0.18) for n in range(4, 13)]
    step = row(1, latency_ms=3.0, power_w=300.0, energy_j=0.9, mode="training", optimizer="sgd")
    for name, rows in (("2026-11-18-1-a", first), ("2026-11-19-1-b", second)):
        (tmp_path / name).mkdir()
        grid_set.pack_rows(rows, tmp_path / name / grid_set.ROWS)
    grid_set.pack_rows([step], tmp_path / "2026-11-18-1-a" / grid_set.STEP_ROWS)
    lines = []
    rows = grid_set.of_one_card(grid_set.GRIDS["inference"].measured, lines.append)
    assert [each["power_w"] for each in rows[:12]] == pytest.approx([0.9 * (200 + n) for n in range(1, 13)])
    assert [each["power_w"] for each in rows[12:]] == pytest.approx([each["power_w"] for each in second])
    assert rows[0]["energy_j"] == pytest.approx(0.18)
    (scaled,) = grid_set.of_one_card(grid_set.GRIDS["steps"].measured, lines.append)
    assert (scaled["power_w"], scaled["latency_ms"]) == (pytest.approx(270.0), 3.0), "the sitting's steps, too"
    assert "× 0.900, by 9 settings" in lines[0]
    grid_set.pack_rows(second[:3], tmp_path / "2026-11-19-1-b" / grid_set.ROWS)
    rows = grid_set.of_one_card(grid_set.GRIDS["inference"].measured, lines.append)
    assert rows[0]["power_w"] == pytest.approx(201.0)
    assert "left as it is: only 3 settings" in lines[-1]


def test_power_that_is_measured_again_is_kept():
    known = [row(1, latency_ms=1.0, power_w=200.00001, energy_j=0.2)]
    again = row(1, latency_ms=1.0, power_w=180.0, energy_j=0.18)
    assert grid_set.new_rows([again], known) == [again]
    assert grid_set.new_rows([row(1, latency_ms=1.0, power_w=200.0, energy_j=0.2)], known) == []


def test_a_set_without_any_graph_is_refused(tmp_path, monkeypatch):
    lines = tmp_path / "rows.jsonl"
    grid_set.append_row(lines, row(1, latency_ms=1.0))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.argv", ["grid_set", "join", "set.npz", "--rows", str(lines), "--plan", "steps"])
    with pytest.raises(DataError, match="graphs --plan steps"):
        grid_set.main()
    assert not (tmp_path / "set.npz").exists()


def test_sittings_are_read_in_their_order(tmp_path, monkeypatch):
    monkeypatch.setattr(grid_set, "STORE", tmp_path)
    for name in ("2026-11-19-1-steps", "2026-11-18-1-steps"):
        (tmp_path / name).mkdir()
        grid_set.pack_rows([row(1, latency_ms=1.0)], tmp_path / name / grid_set.STEP_ROWS)
    assert [file.parent.name for file in grid_set.GRIDS["steps"].measured] == [
        "2026-11-18-1-steps",
        "2026-11-19-1-steps",
    ]
    assert grid_set.GRIDS["inference"].measured == []


def test_what_was_measured_meets_its_graph_and_becomes_a_set(tmp_path, monkeypatch):
    monkeypatch.setattr(grid_set, "make_graph", lambda key: tiny_graph())
    own = [workload_of_row(row(batch)) for batch in (1, 2)]
    grid_set.make_graphs({GraphKey("timm:vgg11", (3, 224, 224), "inference"): own}, tmp_path, "h200", lambda _: None)
    graphs = grid_set.read_parts(tmp_path)
    rows = [row(1, latency_ms=2.0, memory_mib=7.0), row(2, error="oom: no"), row(8, latency_ms=1.0)]
    labelled = grid_set.join([*rows, rows[0]], graphs)
    write_labelled(labelled, tmp_path / "set.npz")
    (read,) = subset(read_set(tmp_path / "set.npz"), "grid")
    assert (read.workload_id, read.spec, read.family, read.mode) == (own[0].id, "timm:vgg11", "vgg", "inference")
    assert (read.truth["latency_ms"], read.truth["memory_mib"]) == (2.0, 7.0)
    assert math.isnan(read.truth["energy_j"])
    assert math.isnan(read.truth["device_memory_mib"])
    np.testing.assert_array_equal(read.graph.classed_nodes, graphs[own[0].id].classed_nodes)
    again = replace(labelled[0], family="another")
    other = replace(labelled[0], workload_id="another")
    assert grid_set.united(labelled, [again, other]) == [labelled[0], other], "a workload is in it once"
