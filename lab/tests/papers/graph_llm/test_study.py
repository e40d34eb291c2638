import argparse
import json
import math
from dataclasses import replace

import numpy as np
import pytest

from lab.papers.graph_llm import sets, stages, study
from lab.papers.graph_llm.report import (
    curve_tables,
    few_tables,
    known_tables,
    recipe_tables,
    stage_tables,
    write_report,
)
from lab.papers.graph_llm.sizes import SIZES
from lab.tests.papers.graph_llm import tiny


def test_a_look_at_which_no_number_was_said_has_no_error(tmp_path):
    record = {"step": 1.0, "loss": 2.0, "error": math.inf, "median": math.inf, "within_10": 0.0, "no_number": 1.0}
    (tmp_path / "curves").mkdir()
    (tmp_path / "curves" / "fit-a.json").write_text(json.dumps({"curve": [record], "spent_s": 1.0}))
    (table,) = curve_tables(tmp_path)
    assert table.rows["1"]["mean error"] is None
    assert "Curve of fit-a" in write_report(tmp_path, {}, "gpu").decode()


def test_every_size_has_a_sentence_on_the_page(tmp_path):
    for size in SIZES:
        assert f"--size {size}" in write_report(tmp_path, {}, size).decode() or size == "gpu"


def test_samples_and_judges_share_no_group():
    rows = [row for row in tiny.rows(30) for _ in range(3)]
    taken, judging = study.drawn(rows, 10, 0, 20)
    assert len(taken) == 10
    assert len(judging) == 20
    assert not {rows[place].group for place in taken} & {rows[place].group for place in judging}
    assert (study.drawn(rows, 10, 1, 20)[0] != taken).any()


def test_the_steps_end_in_tables_and_nothing_is_made_twice(tmp_path, monkeypatch):
    tiny.write_model(tmp_path / "model")
    monkeypatch.setattr(study, "_FEWEST", 2)
    monkeypatch.setattr(study, "SEEDS", range(1))
    new = {task: tiny.rows(8, "h200 fp32" if task == sets.NEW_ARCHITECTURE else "t4 fp32") for task in sets.TASKS}
    sets.write(sets.Rows(tiny.rows(12), new), tmp_path / "rows.npz")
    place = tiny.workplace(
        tmp_path,
        few_steps=1,
        fit_steps=1,
        encoder_steps=1,
        text_steps=1,
        ablation_steps=1,
        regressor_steps=1,
        tuning_steps=1,
    )
    options = argparse.Namespace(
        steps="encoder,text,fit,baseline,known,recipes,few,ablations", arms="rank-8,short-text", part="0/1"
    )
    study.run(options, place)
    made = {file.relative_to(tmp_path): file.stat().st_mtime_ns for file in tmp_path.rglob("*") if file.is_file()}
    names = {str(file) for file in made}
    assert {"encoder.pt", "text-main.pt", "fit-main.pt", "nnlqp.pt", "fit-rank-8.pt", "fit-short-text.pt"} <= names
    assert {"few/T4-operators-4-0.json", "nnlqp/T4-operators-4-0.json"} <= names
    assert {f"recipes/{recipe.name}-T4-operators-0-0.json" for recipe in study.RECIPES} <= names
    few = json.loads((tmp_path / "few/T4-operators-4-0.json").read_bytes())
    assert few["recipe"] == study.chosen_recipe(tmp_path).name
    assert few["steps"] in [record["step"] for record in few["curve"]]
    study.run(options, place)
    assert all((tmp_path / file).stat().st_mtime_ns == when for file, when in made.items())
    pretraining, fits = stage_tables(tmp_path)
    ours, theirs = known_tables(tmp_path)
    assert list(ours.rows) == list(theirs.rows) == ["all", "h200 fp32"]
    assert ours.rows["all"]["rows"] == len(stages.sides(tiny.rows(12))[1])
    (tried,) = recipe_tables(tmp_path)
    assert set(tried.rows) == {recipe.name for recipe in study.RECIPES}
    assert {table.title for table in curve_tables(tmp_path)} >= {"Curve of fit-main", "Curve of nnlqp"}
    assert set(pretraining.rows) == {"encoder", "text-main"}
    assert set(fits.rows) == {"fit-main", "nnlqp", "fit-rank-8", "fit-short-text"}
    # a fit that goes on tells something else: nothing of before may stand beside it
    before = json.loads((tmp_path / "known.json").read_bytes())["told"]
    longer = replace(place, size=replace(place.size, fit_steps=3))
    study.run(argparse.Namespace(**{**vars(options), "steps": "fit"}), longer)
    assert not (tmp_path / "few").exists()
    assert not (tmp_path / "recipes").exists()
    assert set(json.loads((tmp_path / "known.json").read_bytes())["told"]) == set(before) - {study.OURS}
    (tmp_path / "nnlqp.pt").unlink()
    study.run(argparse.Namespace(**{**vars(options), "steps": "known"}), longer)
    after = json.loads((tmp_path / "known.json").read_bytes())["told"]
    assert after[study.NNLQP] == before[study.NNLQP], "told before, by a network that is elsewhere now"
    assert set(after) == set(before)


def test_processes_share_a_step():
    things = list("abcdefgh")
    shares = [study._share(argparse.Namespace(part=f"{own}/3"), things) for own in range(3)]
    assert sorted(thing for share in shares for thing in share) == things
    assert study._share(argparse.Namespace(part="0/1"), things) == things


def test_a_table_has_every_method_on_the_same_rows_and_a_mean_over_seeds():
    def scores(error, within, none=0.0):
        return {"error": error, "median": error, "within_10": within, "no_number": none}

    fitted = {
        f"T4-32-{seed}": {"scores": scores(0.2 + 0.2 * seed, 0.5), "before": scores(np.inf, 0.0, 1.0)}
        for seed in range(2)
    }
    beside = {
        f"T4-32-{seed}": {"task": "T4", "samples": 32, "seed": seed, "scores": {"foretell adapt": scores(0.1, 0.8)}}
        for seed in range(3)
    }
    (table,) = few_tables(fitted, beside)
    assert table.title == "T4, 32 samples (2 seeds)"
    ours, before, adapt = table.rows.values()
    assert np.isclose(ours["mean error"], 0.3)
    assert np.isclose(ours["between seeds"], 0.1)
    assert before["mean error"] is None
    assert before["no number"] == 1
    assert adapt["within 10"] == 0.8
    json.loads(table.to_json())


def test_the_recipe_is_that_of_the_best_held_out_quarters_of_all_tasks(tmp_path):
    assert study.chosen_recipe(tmp_path) is study.RECIPES[0]
    tried = {"lora": [0.3, 0.5], "projector": [0.6, 0.1], "lora-fast": [0.05]}  # the last was stopped by the clock
    for recipe, offs in tried.items():
        for task, off in enumerate(offs):
            record = {"recipe": recipe, "task": task, "curve": [{"step": 0, "off": 0.9}, {"step": 8, "off": off}]}
            study._write_json(tmp_path / "recipes" / f"{recipe}-{task}.json", record)
    assert study.chosen_recipe(tmp_path).name == "projector"


@pytest.mark.parametrize(
    ("flags", "width", "bf16"),
    [([], 1024, True), (["--small"], 128, False), (["--size", "processor", "--no-bf16"], 256, False)],
)
def test_a_size_is_a_name_and_bf16_can_be_said(tmp_path, monkeypatch, flags, width, bf16):
    places = []
    monkeypatch.setattr(study, "run", lambda options, place: places.append(place))
    study.main([str(tmp_path), *flags])
    assert places[0].size.width == width
    assert places[0].size.bf16 == bf16
