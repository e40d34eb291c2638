import numpy as np
import pytest
import torch

from foretell.errors import InputError
from foretell.predictors.adapted.units import WIDTH, Work
from lab.adapt.sets import Judged
from lab.papers.graph_llm import baselines
from lab.papers.graph_llm.fitting import write_tensors
from lab.papers.graph_llm.scores import scores
from lab.papers.graph_llm.sets import Row
from lab.tests.papers.graph_llm import tiny


def test_a_new_platform_gets_the_mean_of_the_heads_and_learns_its_factor(tmp_path):
    place = tiny.workplace(tmp_path)
    known = tiny.rows(12, "a") + tiny.rows(12, "b")
    network, fitted = baselines.fit_regressor(place, known, 60)
    assert fitted.is_done
    assert fitted.curve[-1]["loss"] < fitted.curve[0]["loss"]
    weight = network.heads.weight.detach().clone()
    write_tensors(tmp_path / "nnlqp.pt", {"learned": network.state_dict()})
    network.with_platform("a")
    assert len(network.platforms) == 2
    network.with_platform("c")
    assert torch.allclose(network.heads.weight[2], weight.mean(dim=0))
    new = [type(row)("c", row.group, row.graph, 7 * row.ms) for row in tiny.rows(12)]
    truth = np.array([row.ms for row in new[6:]])
    before = scores(baselines.told(place, network, new[6:]), truth)
    after, curve = baselines.tuned(place, known, new, np.arange(6), np.arange(6, 12), 0)
    assert curve[0]["step"] == 0
    assert curve[-1]["step"] == place.size.tuning_steps
    assert scores(after, truth)["error"] < 0.75 * before["error"]


def test_adaptation_is_asked_about_the_rows_that_judge():
    random = np.random.default_rng(0)
    works = tuple(Work(np.eye(1, WIDTH), np.array([random.uniform(10, 100)])) for _ in range(20))
    base = np.array([float(work.spent_us.sum()) for work in works]) / 1e3
    measured = 2 * base
    judged = Judged("x", tuple(map(str, range(20))), works, np.zeros((20, 1)), np.log(measured / base), measured, 0.3)
    places = np.arange(2, 20)  # the first two rows are not in the task
    rows = [Row("x", str(place), tiny.graph(), measured[place]) for place in places]
    found = baselines.adapted(judged, places, rows, np.arange(4), np.arange(4, 18))
    assert found["base"] == pytest.approx(base[6:])
    assert found["one factor"] == pytest.approx(measured[6:])
    assert np.abs(found["foretell adapt"] / measured[6:] - 1).mean() < 0.25
    with pytest.raises(InputError, match="prepare again"):
        baselines.adapted(judged, places, rows[::-1], np.arange(4), np.arange(4, 18))
