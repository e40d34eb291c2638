import argparse
import json

import numpy as np

from lab.papers.graph_llm import sets, study
from lab.papers.graph_llm.report import few_tables, stage_tables
from lab.tests.papers.graph_llm import tiny


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
    options = argparse.Namespace(steps="encoder,text,fit,baseline,few,ablations", arms="rank-8,short-text", part="0/1")
    study.run(options, place)
    made = {file.relative_to(tmp_path): file.stat().st_mtime_ns for file in tmp_path.rglob("*") if file.is_file()}
    names = {str(file) for file in made}
    assert {"encoder.pt", "text-main.pt", "fit-main.pt", "nnlqp.pt", "fit-rank-8.pt", "fit-short-text.pt"} <= names
    assert {"few/T4-operators-4-0.json", "nnlqp/T4-operators-4-0.json"} <= names
    study.run(options, place)
    assert all((tmp_path / file).stat().st_mtime_ns == when for file, when in made.items())
    pretraining, fits = stage_tables(tmp_path)
    assert set(pretraining.rows) == {"encoder", "text-main"}
    assert set(fits.rows) == {"fit-main", "nnlqp", "fit-rank-8", "fit-short-text"}


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
