import json
from dataclasses import replace

import numpy as np
import pytest
import torch

from lab.papers.graph_llm import stages
from lab.papers.graph_llm.scores import scores
from lab.papers.graph_llm.stages import Arm
from lab.tests.papers.graph_llm import tiny


@pytest.fixture
def place(tmp_path):
    tiny.write_model(tmp_path / "model")
    return tiny.workplace(tmp_path)


def test_every_stage_leaves_its_file_and_the_next_one_starts_from_it(place):
    rows = tiny.rows()
    assert stages.pretrain_encoder(place, rows)
    assert stages.adapt_to_text(place, rows, Arm("main"))
    first, after = (torch.load(place.folder / f"{name}.pt", weights_only=True) for name in ("encoder", "text-main"))
    for name, weight in first["learned"].items():
        assert torch.equal(after["learned"][f"encoder.{name}"], weight), "the encoder is frozen by stage 2"
    network, _ = stages.make_network(place, Arm("main"), ("text-main",))
    assert torch.equal(network.projector[0].weight, after["learned"]["projector.0.weight"])
    assert stages.fit_known(place, rows, Arm("main"), "fit-main", 3)
    fitted = torch.load(place.folder / "fit-main.pt", weights_only=True)
    kept = json.loads((place.folder / "curves/fit-main.json").read_bytes())
    assert kept["is_done"]
    assert {"step", "loss", "error", "within_10", "no_number"} <= set(kept["curve"][-1])
    moved = [not torch.equal(fitted["learned"][f"encoder.{name}"], weight) for name, weight in first["learned"].items()]
    assert any(moved), "the encoder learns in stage 3"


def test_a_random_encoder_takes_nothing_from_stage_1(place):
    stages.pretrain_encoder(place, tiny.rows())
    stages.adapt_to_text(place, tiny.rows(), Arm("main"))
    network, _ = stages.make_network(place, Arm("main", pretrained=False), ("text-main",))
    known = torch.load(place.folder / "encoder.pt", weights_only=True)["learned"]
    assert not torch.equal(network.encoder.layers[0].mlp[0].weight, known["layers.0.mlp.0.weight"])


def test_known_rows_change_the_statistics_of_batch_norms(place):
    arm = Arm("main", pretrained=False, adapted=False)
    network, _ = stages.make_network(place, arm, ())
    before = [value.clone() for name, value in network.state_dict().items() if "running" in name]
    stages.fit_known(place, tiny.rows(), arm, "fit-main", 2)
    learned = torch.load(place.folder / "fit-main.pt", weights_only=True)["learned"]
    after = [value for name, value in learned.items() if "running" in name]
    assert not any(torch.equal(one, other) for one, other in zip(before, after, strict=True))


def test_a_batch_has_rows_of_several_platforms(place):
    network, language = stages.make_network(place, Arm("main", pretrained=False, adapted=False), ())
    rows = [row for name in ("h200 fp32", "t4 fp32", "cpu fp32") for row in tiny.rows(6, name)]
    asked = []
    network.loss = lambda questions, described, answers: asked.append(questions)
    loss_of = stages.loss_on_rows(place, network, language, Arm("main"), rows, 4)
    for seed in range(8):
        loss_of(np.random.default_rng(seed))
    assert all(len(questions) == 4 and len(set(map(tuple, questions))) == 2 for questions in asked)
    assert len({tuple(question) for questions in asked for question in questions}) == 3


def test_variants_that_judge_are_none_of_the_known_graphs():
    graphs = [row.graph for row in tiny.rows()]
    found = stages._variants(graphs, 3, 1)
    assert len(found) == 3
    assert not {id(graph) for graph in found} & {id(graph) for graph in graphs}


def test_a_fit_that_the_clock_ended_leaves_its_curve_and_a_checkpoint(place):
    stopped = replace(place, end_s=0.0)
    assert not stages.fit_known(stopped, tiny.rows(), Arm("main", adapted=False, pretrained=False), "fit-main", 9)
    assert not json.loads((place.folder / "curves/fit-main.json").read_bytes())["is_done"]
    assert place.checkpoint("fit-main").exists()


@pytest.mark.parametrize("kind", ["text", "json"])
def test_descriptions_need_no_encoder(place, kind):
    arm = Arm(kind, kind=kind, adapted=False, pretrained=False)
    assert stages.fit_known(place, tiny.rows(), arm, f"fit-{kind}", 2)


def test_no_number_is_a_miss_and_has_no_error():
    found = scores(np.array([1.05, np.nan, 2.0]), np.array([1.0, 1.0, 1.0]))
    assert found["error"] == pytest.approx(0.525)
    assert found["within_10"] == pytest.approx(1 / 3)
    assert found["no_number"] == pytest.approx(1 / 3)
    assert scores(np.array([np.nan]), np.array([1.0]))["within_10"] == 0


def test_groups_are_on_one_side():
    rows = [row for row in tiny.rows(20) for _ in range(2)]
    teaching, aside = stages.sides(rows)
    assert len(teaching) + len(aside) == len(rows)
    assert not {rows[place].group for place in teaching} & {rows[place].group for place in aside}


def test_a_finished_fit_goes_on_with_the_steps_it_lacks(place):
    arm, rows = Arm("main", adapted=False, pretrained=False), tiny.rows()
    stages.fit_known(place, rows, arm, "fit-main", 3)
    before = torch.load(place.folder / "fit-main.pt", weights_only=True)["learned"]
    assert not stages.fit_known(replace(place, end_s=0.0), rows, arm, "fit-main", 7)
    assert stages.curve_of(place, "fit-main")[-1]["step"] == 3, "what is interrupted changes nothing"
    assert stages.fit_known(place, rows, arm, "fit-main", 7)
    steps = [record["step"] for record in stages.curve_of(place, "fit-main")]
    assert steps == [1, 2, 3, 4, 5, 6, 7]
    after = torch.load(place.folder / "fit-main.pt", weights_only=True)["learned"]
    near = [float((after[name] - before[name]).abs().max()) for name in before if "projector" in name]
    assert 0 < max(near) < 4 * 2e-3, "four steps of Adam away from where it was, not from a new beginning"
