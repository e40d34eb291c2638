import os
import pickle
import time

import pytest

from foretell.processes.device_lock import DeviceLock
from foretell.profiling.runtimes.cpu import CpuRuntime
from lab.papers.dippm import grid
from lab.papers.dippm.grid import MOST, SETTINGS, groups_of, models, planned_names, settings
from lab.papers.dippm.sets import FAMILIES, family_of

pytest.importorskip("torch")

NAMES = [f"resnet{depth}" for depth in range(10, 60)] + ["vit_tiny_patch14_224", "vgg11", "levit_128"]


def test_models_are_spread_over_a_family_and_others_are_left_out():
    chosen = models(NAMES)
    assert sum(name.startswith("resnet") for name in chosen) == MOST
    assert {"vit_tiny_patch14_224", "vgg11"} <= set(chosen)
    assert "levit_128" not in chosen
    assert {family_of(f"timm:{name}") for name in chosen} <= set(FAMILIES)


def test_settings_are_distinct_few_enough_and_the_same_again():
    rows = settings("resnet50")
    assert len(rows) == len({(row["batch_size"], *row["input_shape"]) for row in rows}) == SETTINGS
    assert rows == settings("resnet50")
    assert all(row["batch_size"] * row["input_shape"][1] ** 2 <= 64 * 224**2 for row in rows)


def test_what_is_built_for_one_resolution_says_so_in_its_spec():
    assert {row["spec"] for row in settings("vit_tiny_patch14_224")} == {
        f"timm:vit_tiny_patch14_224?img_size={side}" for side in (224, 252, 280)
    }


def test_the_list_of_models_has_all_families():
    names = planned_names()
    families = [family_of(f"timm:{name}") for name in names]
    assert len(names) == len(set(names))
    assert set(families) == set(FAMILIES)
    assert max(families.count(family) for family in FAMILIES) == MOST


def test_groups_have_each_setting_of_a_model_once():
    groups = groups_of("vit_tiny_patch14_224")
    own = [workload for _, group in groups for workload in group]
    assert {spec for spec, _ in groups} == {row["spec"] for row in settings("vit_tiny_patch14_224")}
    assert len({workload.id for workload in own}) == len(own) == len(settings("vit_tiny_patch14_224"))


def test_a_share_of_the_settings_has_energy_and_can_be_measured_alone():
    plan = grid.energetic(grid.INFERENCE, 0.2)
    every = [w for _, own in groups_of("resnet50") for w in own]
    chosen = [w for _, own in pickle.loads(pickle.dumps(plan)).groups("resnet50") for w in own]
    assert chosen == [w for w in every if grid.has_energy(w, 0.2)]
    assert 0 < len(chosen) < len(every) / 2
    assert list(plan.names()) == planned_names()
    assert all(own for _, own in grid.energetic(grid.INFERENCE, 0.02).groups("resnet50"))


def test_a_line_that_was_cut_short_is_left_out(tmp_path):
    file = tmp_path / "rows.jsonl"
    assert grid.read_rows(file) == []
    grid.append_row(file, {"spec": "timm:a"})
    grid.append_row(file, {"spec": "timm:b"})
    file.write_bytes(file.read_bytes()[:-5])
    assert grid.read_rows(file) == [{"spec": "timm:a"}]


def test_a_message_becomes_a_row(tmp_path, monkeypatch):
    alarms = []
    monkeypatch.setattr(grid.signal, "alarm", alarms.append)
    (_, own), *_ = groups_of("vgg11")
    recorder, file = grid.Recorder(tmp_path / "rows.jsonl", own), tmp_path / "rows.jsonl"
    ok = {"latency_ms": 2.0, "memory_mib": 3.0, "power_w": None, "tries": 1}
    for number, message in enumerate([
        {"event": "begin"},
        {"event": "record", "status": "ok", "values": ok},
        {"event": "record", "status": "oom", "values": {"error": "no room"}},
        {"event": "fallback", "error": "cannot be captured"},
    ]):  # fmt: skip
        recorder.send(message | {"id": own[number].id})
    measured, large, uncaptured = grid.read_rows(file)
    assert alarms == [grid._LONGEST_S]
    assert (measured["latency_ms"], measured["memory_mib"]) == (2.0, 3.0)
    assert grid.workload_of_row(measured) == own[1]
    assert "power_w" not in measured
    assert large["error"] == "oom: no room"
    assert uncaptured["error"] == "fallback: cannot be captured"
    assert grid.measured(file) == 1


def test_a_name_is_claimed_once(tmp_path):
    first, second = grid.claims(tmp_path, "abc"), grid.claims(tmp_path, "abc")
    assert [next(first), next(second), next(first)] == [(0, "a"), (1, "b"), (2, "c")]
    assert list(second) == []


def test_every_model_has_its_turn():
    left, turns = 420.0, []
    for models_left in range(105, 0, -1):
        turns.append(grid.turn_s(left, models_left, 14))
        left -= turns[-1] / 14  # as if the others ran beside it
    assert left > 0
    assert min(turns) > 420 * 14 / 105 / 2


@pytest.fixture
def small(monkeypatch):
    """A plan of one tiny model with two settings, on a CPU."""
    spec = "synthetic:mlp?act=relu&widths=64-128-10"
    rows = [{"spec": spec, "batch_size": batch, "input_shape": [64], "dtype": "fp32"} for batch in (1, 2)]
    own = [grid.workload_of_row(row) for row in rows]
    monkeypatch.setattr(grid, "make_runtime", lambda lock: CpuRuntime(lock, grid.MEASURING))
    return grid.Plan(lambda: ["mlp"], lambda name: [(spec, own)])


def test_a_model_is_measured_in_a_copy_and_not_again(tmp_path, small):
    out, lock = tmp_path / "rows.jsonl", DeviceLock(tmp_path, 0)
    lock.open()
    stop = time.monotonic() + 600
    assert grid.measured_in_copy("mlp", out, lock, stop, 0.0, small)
    rows = grid.read_rows(out)
    assert [grid.workload_of_row(row) for row in rows] == small.groups("mlp")[0][1]
    assert all(row["latency_ms"] > 0 for row in rows)
    assert grid.measured_in_copy("mlp", out, lock, stop, 0.0, small)
    assert grid.read_rows(out) == rows


def test_a_copy_that_ends_leaves_a_row(tmp_path, monkeypatch):
    out, lock = tmp_path / "rows.jsonl", DeviceLock(tmp_path, 0)
    lock.open()
    monkeypatch.setattr(grid, "measure_model", lambda *_: os._exit(5))
    assert not grid.measured_in_copy("vgg11", out, lock, 0.0, 0.0)
    assert grid.read_rows(out) == [{"spec": "timm:vgg11", "error": "exit code 5"}]
