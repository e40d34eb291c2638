import json
import math
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

from foretell.datasets.splits import TEST, TRAIN, VALIDATION
from lab.papers.dippm import fits
from lab.papers.dippm.arms import TABLE_4_STEPS, Arm, arms, measured_targets, narrowed
from lab.papers.dippm.sets import Labelled, family_of, read_set, split_rows, subset, write_set
from small.tiny_workloads import tiny_recipe, tiny_samples

pytest.importorskip("torch")

from lab.papers.graph_networks.loop import NoFiniteError

STOP_AT = fits.stop_at
NAMES = ("timm:vgg11", "timm:vit_tiny_patch16_224", "synthetic:mlp?width=8", "torchvision:densenet121")


def labelled(count=24):
    samples = tiny_samples(8)
    return [
        Labelled(f"w{number}", f"{NAMES[number % 4]}", "f", "inference", *samples[number % 8])
        for number in range(count)
    ]


def test_a_set_survives_its_file(tmp_path):
    rows = labelled(6)
    samples = [
        SimpleNamespace(captured=row.workload_id != "w5", setting=SimpleNamespace(mode=row.mode), **vars(row))
        for row in rows
    ]
    write_set(samples, {row.workload_id: row.graph for row in rows}, tmp_path / "set.npz")
    read = read_set(tmp_path / "set.npz")
    assert [row.workload_id for row in read] == ["w0", "w1", "w2", "w3", "w4"], "what was not replayed is left out"
    for old, new in zip(rows, read):
        assert (old.spec, old.family, old.mode) == (new.spec, new.family, new.mode)
        assert new.truth == {name: pytest.approx(value) for name, value in old.truth.items()}
        np.testing.assert_array_equal(old.graph.classed_nodes, new.graph.classed_nodes)


def test_an_arm_leaves_predictions_of_its_test_side_and_a_curve(tmp_path, monkeypatch):
    monkeypatch.setattr(fits, "_rows", labelled())
    arm = Arm("dippm", "inference", "random", 0, tiny_recipe("dippm", epochs=4), 60)
    line = fits.fit_arm(arm, tmp_path, end=float("inf"), captured=False)
    assert "4 of 4 epochs" in line
    fits.collect(tmp_path)
    with np.load(tmp_path / "dippm-arms.npz") as stored:
        facts = json.loads(str(stored[f"{arm.key}/facts"]))
        ids = stored[f"{arm.key}/ids"].tolist()
        assert stored[f"{arm.key}/latency_ms"].shape == (len(ids),)
    assert ids == [row.workload_id for row in split_rows(labelled(), "random", 0)[TEST]]
    assert [point["epoch"] for point in facts["curve"]] == [1, 2, 3, 4]
    assert facts["steps"] == 4 * -(-facts["graphs"] // 4)
    assert not list((tmp_path / "checkpoints").iterdir())


def test_energy_is_power_times_latency_where_power_was_learned(tmp_path, monkeypatch):
    monkeypatch.setattr(fits, "_rows", labelled())
    recipe = tiny_recipe("dippm", epochs=1, targets=("latency_ms", "power_w"))
    fits.fit_arm(Arm("dippm", "inference", "random", 0, recipe, 60), tmp_path, end=float("inf"), captured=False)
    fits.collect(tmp_path)
    with np.load(tmp_path / "dippm-arms.npz") as stored:
        told = {name.rpartition("/")[2]: stored[name] for name in stored.files if not name.endswith(("facts", "ids"))}
    np.testing.assert_allclose(told["energy_j"], told["latency_ms"] * told["power_w"] / 1000, rtol=1e-6)


def test_an_arm_without_time_is_left_for_later(tmp_path, monkeypatch):
    monkeypatch.setattr(fits, "_rows", labelled())
    arm = Arm("dippm", "inference", "random", 0, tiny_recipe("dippm"), 60)
    assert fits.fit_arm(arm, tmp_path, end=0.0, captured=False) == "no time left"
    assert not (tmp_path / "arms").exists()


def test_a_whole_arm_is_interrupted_and_goes_on(tmp_path, monkeypatch):
    monkeypatch.setattr(fits, "_rows", labelled())
    arm = Arm("dippm", "inference", "random", 0, tiny_recipe("dippm", epochs=4), 60)
    with monkeypatch.context() as early:
        early.setattr(fits, "stop_at", lambda _end: stop_in_the_past)
        line = fits.fit_arm(arm, tmp_path, end=float("inf"), captured=False, whole=True)
    assert line == "interrupted after 1 epochs of 4; the next sitting goes on"
    assert not (tmp_path / "arms").exists()
    assert "4 of 4 epochs" in fits.fit_arm(arm, tmp_path, end=float("inf"), captured=False, whole=True)


def stop_in_the_past(epoch, record):
    STOP_AT(0.0)(epoch, record)


def test_narrow_copies_say_their_width():
    narrow = [narrowed(arm, 64) for arm in arms("best")]
    assert len({arm.key for arm in narrow}) == len(narrow)
    assert {arm.recipe.width for arm in narrow} == {64}
    assert all("64-wide" in arm.key for arm in narrow)
    (mlp, *_) = arms("thesis-mlp")
    assert (mlp.recipe.published, mlp.recipe.loss, mlp.recipe.block, mlp.subset) == (True, "mse", "none", "training")


def test_a_fit_without_a_finite_error_is_tried_in_plainer_ways():
    tried = []

    def fit_by(captured, narrow):
        tried.append((captured, narrow))
        if narrow is not False:
            raise NoFiniteError("none")
        return "fitted"

    assert fits.first_finite(fit_by, True, None) == ("fitted", False, False)
    assert tried == [(True, None), (False, None), (False, False)]
    with pytest.raises(NoFiniteError):
        fits.first_finite(lambda *_: fit_by(True, True), True, None)


def test_a_target_that_few_workloads_have_has_no_unit_either():
    truths = [{"latency_ms": 1.0, "memory_mib": 2.0, "energy_j": math.nan}] * 100
    for arm in (*arms("best"), *arms("published")):
        recipe = measured_targets(arm.recipe, truths)
        assert recipe.targets == ("latency_ms", "memory_mib")
        assert len(recipe.units) == (2 if recipe.published else 0)
        if recipe.published:
            assert recipe.units == (arm.recipe.units[0], arm.recipe.units[2])


def test_a_target_of_a_few_workloads_is_not_fitted():
    (arm, *_) = arms("best")
    few = [dict.fromkeys(arm.recipe.targets, 1.0)] * 4 + [{"latency_ms": 1.0}] * 96
    assert measured_targets(arm.recipe, few).targets == ("latency_ms",)
    assert measured_targets(arm.recipe, few[:4]) == arm.recipe
    assert measured_targets(arm.recipe, few[:1] * 100 + few[-1:] * 9_900) == arm.recipe, "a hundred are enough"


def test_steps_become_epochs_and_every_arm_has_a_file_of_its_own():
    planned = [arm for part in fits.PARTS for arm in arms(part)]
    assert len({arm.key for arm in planned}) == len(planned)
    arm = next(arm for arm in planned if arm.steps)
    assert arm.sized(7_356).epochs == 10, "the paper's ten epochs"
    assert arm.sized(100).epochs == round(TABLE_4_STEPS / 100)
    assert replace(arm, steps=None).sized(100) == arm.recipe


def test_families_and_sides_are_those_of_the_paper():
    rows = labelled()
    assert {family_of(row.spec) for row in subset(rows, "families")} == {"vgg", "vit", "densenet"}
    assert {row.spec for row in subset(rows, "vision")} == set(NAMES) - {"synthetic:mlp?width=8"}
    sides = split_rows([replace(row, spec="wild:net") for row in rows], "random", 0)
    assert len(sides[TRAIN]) == len(rows), "wild networks only train"
    assert not sides[TEST] + sides[VALIDATION]
    assert family_of("timm:resnest50d") is None


def test_a_long_curve_is_thinned_between_its_ends():
    curve = fits.thin([{"score": float(epoch)} for epoch in range(1000)])
    assert len(curve) == 250
    assert (curve[0]["epoch"], curve[-1]["epoch"]) == (1, 1000)


def test_the_families_are_split_by_chance_and_all_inference_by_architecture():
    planned = arms("best")
    assert {arm.name for arm in planned} >= {"dippm", "dippm by bound", "gcn", "gat", "gin", "mlp", "dippm mse"}
    assert {arm.split for arm in planned if arm.subset == "inference" and "power" not in arm.name} == {"architecture"}
    assert {arm.split for arm in planned if arm.subset == "families"} == {"random", "architecture"}
    for arm in planned:
        assert arm.recipe.patience >= arm.recipe.epochs, "a cosine has to end"
        assert ("by bound" in arm.name) == (arm.recipe.readout == "bound")
        assert ("power" in arm.name) == ("power_w" in arm.recipe.targets) == ("energy_j" not in arm.recipe.targets)
