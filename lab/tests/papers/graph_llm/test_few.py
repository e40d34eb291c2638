import numpy as np
import pytest
import torch

from lab.papers.graph_llm import few, stages
from lab.papers.graph_llm.few import Recipe
from lab.papers.graph_llm.scores import scores
from lab.papers.graph_llm.stages import Arm
from lab.tests.papers.graph_llm import tiny

ARM = Arm("main", pretrained=False, adapted=False)


@pytest.fixture
def place(tmp_path):
    tiny.write_model(tmp_path / "model")
    return tiny.workplace(tmp_path, few_steps=100, few_batch=6)


def begin(place, count=6):
    made = stages.make_network(place, ARM, ())
    start = {name: value.clone() for name, value in made[0].learned().items()}
    return made, start, few.show(place, made[0], tiny.rows(count))


def test_few_samples_teach_a_platform(place):
    made, start, shown = begin(place)
    before = few.say_scores(made, shown)
    told, curve = few.fit_few(place, made, start, Recipe("fast", rate=2e-2), shown, shown, 0)
    found = scores(told, np.array([row.ms for row in shown.rows]))
    assert found["within_10"] > before["within_10"]
    assert found["off"] < 0.5 * before["off"]
    assert found["no_number"] == 0
    assert curve[0]["step"] == 0
    assert few.best_step(curve) > 0


@pytest.mark.parametrize("has_lora", [True, False])
def test_the_encoder_and_its_statistics_stay_and_what_learns_moves(place, has_lora):
    made, start, shown = begin(place)
    few.fit_few(place, made, start, Recipe("fast", has_lora, rate=2e-2), shown, shown, 0)
    for name, value in made[0].learned().items():
        moves = name.startswith("projector") or (has_lora and name.endswith((".up", ".down")))
        assert torch.equal(value, start[name]) != moves, name


def test_where_going_on_does_harm_no_step_is_made(place, monkeypatch):
    made, start, shown = begin(place)
    monkeypatch.setattr(few, "best_step", lambda _: 0)
    before = few.say(made, shown)
    told, _ = few.fit_few(place, made, start, Recipe("fast", rate=2e-2), shown, shown, 0)
    assert np.array_equal(told, before, equal_nan=True)


def test_the_last_fit_has_all_samples_and_the_quarter_judges_alone(place, monkeypatch):
    made, start, shown = begin(place, 8)
    seen = []
    plain = few.go_on
    monkeypatch.setattr(few, "go_on", lambda *rest: seen.append([row.group for row in rest[3].rows]) or plain(*rest))
    monkeypatch.setattr(few, "best_step", lambda _: 2)
    few.fit_few(place, made, start, Recipe("plain"), shown, shown, 0)
    learning, held = few.quarters(shown.rows, 0)
    assert seen == [[shown.rows[row].group for row in learning], [row.group for row in shown.rows]]
    assert len(held) == 2
    assert not {shown.rows[row].group for row in held} & set(seen[0])


def test_many_samples_have_three_epochs(place):
    assert few.most_steps(place, 6) == 100
    assert few.most_steps(place, 600) == 300


def test_what_is_said_of_shown_rows_is_what_is_said_of_their_graphs(place):
    made, _, shown = begin(place)
    assert np.array_equal(few.say(made, shown), stages.answers(place, *made, ARM, shown.rows), equal_nan=True)
