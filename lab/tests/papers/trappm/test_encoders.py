import json
from dataclasses import replace

import numpy as np
import pytest

from foretell.datasets.splits import TEST, TRAIN
from lab.papers.dippm import fits
from lab.papers.dippm.sets import Labelled, split_rows
from lab.papers.graph_networks.recipes import find_recipe
from lab.papers.trappm import encoders
from lab.papers.trappm.encoders import ENCODERS, EncoderArm, Plan, StepArm, base_graphs, narrowed, step_arms
from lab.papers.trappm.taught import is_taught, read_taught
from small.tiny_workloads import tiny_recipe, tiny_samples

pytest.importorskip("torch")

from lab.papers.graph_networks import training

FIT = training.fit


@pytest.fixture
def rows(monkeypatch):
    samples = tiny_samples(8)
    rows = [
        Labelled(f"w{number}", f"synthetic:net?width={number % 12}", "f", "training", *samples[number % 8])
        for number in range(48)
    ]
    monkeypatch.setattr(fits, "_rows", rows)
    monkeypatch.setattr(encoders, "find_recipe", lambda _name: tiny_recipe("trappm"))
    monkeypatch.setattr(encoders, "HELD_ASIDE", 4)
    return rows


def test_an_encoder_is_written_and_an_arm_reads_it(rows, tmp_path):
    arm = EncoderArm(0, last_relu=False, dropout=0.0)
    line = encoders.pretrain_arm(arm, tmp_path, end=float("inf"), steps=4, count=20)
    assert "6 steps" in line, "three epochs of two batches"
    with np.load(tmp_path / "encoders" / f"{arm.key}.npz") as stored:
        assert json.loads(str(stored["facts"]))["graphs"] == 20
    for name, embedding in (("pre-trained", "frozen"), ("none", "zeros"), ("tuned", "trained")):
        step = StepArm(name, embedding, 0.5, "random", 0, arm.key)
        assert "epochs" in encoders.fit_step_arm(step, tmp_path, float("inf"), 2)
    random = StepArm("random", "frozen", 1.0, "random", 0, None)
    encoders.fit_step_arm(random, tmp_path, float("inf"), 2)
    with np.load(tmp_path / "arms" / f"{random.key}.npz") as stored:
        assert len(stored["ids"]) == len(split_rows(rows, "random", 0)[TEST])


def test_a_masked_encoder_is_read_by_an_arm_without_its_decoder(rows, tmp_path):
    arm = EncoderArm(0, last_relu=False, dropout=0.0, masked=True)
    encoders.pretrain_arm(arm, tmp_path, end=float("inf"), steps=4, count=20)
    encoder = encoders.read_encoder(tmp_path, arm.key)
    assert not any("decoder" in name for name in encoder.weights)
    step = StepArm("masked features", "frozen", 1.0, "random", 0, arm.key)
    assert "epochs" in encoders.fit_step_arm(step, tmp_path, float("inf"), 2)


def test_a_whole_encoder_is_interrupted_and_goes_on(rows, tmp_path):
    arm, plan = EncoderArm(0, last_relu=True, dropout=0.5), Plan(device="cpu", whole=True)
    line = encoders.pretrain_arm(arm, tmp_path, 0.0, 4, 20, plan)
    assert "interrupted after 1 epochs of 3" in line
    assert not (tmp_path / "encoders").exists()
    assert "6 steps" in encoders.pretrain_arm(arm, tmp_path, float("inf"), 4, 20, plan)


def test_an_encoder_of_fewer_steps_goes_on_from_its_weights(rows, tmp_path):
    arm, plan = EncoderArm(0, last_relu=False, dropout=0.0), Plan(device="cpu", whole=True)
    encoders.pretrain_arm(arm, tmp_path, float("inf"), 4, 20, plan)
    before = encoders.read_encoder(tmp_path, arm.key)
    assert encoders._has_all(tmp_path, arm, 6, further=True)
    assert encoders._has_all(tmp_path, arm, 7, further=False)
    assert not encoders._has_all(tmp_path, arm, 7, further=True)
    assert "interrupted after 1 epochs of 3" in encoders.pretrain_arm(arm, tmp_path, 0.0, 7, 20, plan)
    assert "12 steps" in encoders.pretrain_arm(arm, tmp_path, float("inf"), 7, 20, plan)
    after = encoders.read_encoder(tmp_path, arm.key)
    assert [entry["epoch"] for entry in after.history] == [1, 2, 3, 4, 5, 6]
    assert [entry["loss"] for entry in after.history[:3]] == [entry["loss"] for entry in before.history]
    own = [name for name in after.weights if ".0.own" in name]
    moved = max(float(np.abs(after.weights[name] - before.weights[name]).max()) for name in own)
    assert 0 < moved <= 7 * find_recipe("trappm").encoder_rate, "six steps of Adam, not another beginning"


def test_narrow_copies_keep_the_form():
    trappm = find_recipe("trappm")
    recipe = narrowed(trappm, 32, 64)
    assert (recipe.width, recipe.encoder_widths) == (32, (128, 64, 64, 64))
    assert narrowed(recipe, None, None) == recipe
    assert narrowed(trappm, 32, None).encoder_widths == trappm.encoder_widths


def test_a_narrow_arm_says_its_width_and_has_a_file_of_its_own(rows, tmp_path):
    arm = StepArm("none", "zeros", 1.0, "random", 0, None)
    for plan in (Plan(device="cpu"), Plan(device="cpu", width=4)):
        encoders.fit_step_arm(arm, tmp_path, float("inf"), 1, plan)
    names = {}
    for file in (tmp_path / "arms").glob("*.npz"):
        with np.load(file) as stored:
            names[file.stem] = json.loads(str(stored["facts"]))["arm"]
    assert names == {arm.key: "none", f"{arm.key}-4-wide": "none 4 wide"}


def test_no_graph_of_a_test_architecture_teaches_an_encoder(rows):
    test = {row.spec for row in split_rows(rows, "architecture", 0)[TEST]}
    chosen = base_graphs(rows, TRAIN, 0)
    assert test
    assert not test & {row.spec for row in chosen}
    assert len({(row.spec, row.graph.output_shapes.tobytes()) for row in chosen}) == len(chosen)


def test_arms_have_files_of_their_own_and_encoders_that_are_made():
    arms = step_arms()
    assert len({arm.key for arm in arms}) == len(arms)
    assert {arm.encoder for arm in arms if arm.encoder} <= {arm.key for arm in ENCODERS} | {encoders.TAUGHT}
    # a teacher has seen all architectures, and at random one encoder serves all seeds
    assert {arm.split for arm in arms if arm.taught} == {"random"}
    assert {arm.encoder for arm in arms if arm.name == "pre-trained" and arm.split == "random"} == {"linear-0-0"}
    assert {arm.name for arm in arms} >= {"pre-trained", "tuned", "random", "none"}


def test_steps_become_epochs():
    recipe = EncoderArm(0, last_relu=True, dropout=0.5).recipe(25_000, 100_000, Plan())
    assert recipe.encoder_epochs == 64
    assert (recipe.last_relu, recipe.encoder_dropout) == (True, 0.5)
    assert replace(recipe, encoder_epochs=1).batch == 16


def test_an_arm_starts_from_what_its_teacher_learned_of_inference(rows, tmp_path, monkeypatch):
    monkeypatch.setattr(fits, "_rows", [*rows, *(replace(row, mode="inference") for row in rows)])
    plan = Plan(device="cpu", by_bound=True)
    assert not is_taught(tmp_path)
    line = encoders.teach_arm(encoders.Teacher(), tmp_path, float("inf"), 3, plan)
    assert line.startswith("3 epochs over 45 workloads")
    teacher = read_taught(tmp_path)
    assert (teacher.recipe.nodes, teacher.recipe.readout) == ("bounded", "bound")
    starts = []
    monkeypatch.setattr(training, "fit", lambda *args, **others: starts.append(others["start"]) or FIT(*args, **others))
    for taught in (True, False):
        arm = StepArm(f"taught {taught}", "zeros", 1.0, "random", 0, None, taught=taught)
        assert "1 of 1 epochs" in encoders.fit_step_arm(arm, tmp_path, float("inf"), 1, plan=plan)
    assert starts[1] is None
    for name, weight in teacher.weights.items():
        np.testing.assert_array_equal(starts[0].weights[name], weight)


def test_an_interrupted_teacher_goes_on(rows, tmp_path, monkeypatch):
    monkeypatch.setattr(fits, "_rows", [replace(row, mode="inference") for row in rows])
    plan = Plan(device="cpu", whole=True)
    assert "interrupted after 1 epochs of 3" in encoders.teach_arm(encoders.Teacher(), tmp_path, 0.0, 3, plan)
    assert not is_taught(tmp_path)
    assert "3 epochs" in encoders.teach_arm(encoders.Teacher(), tmp_path, float("inf"), 3, plan)
    assert is_taught(tmp_path)
