import numpy as np
import pytest
import torch

from lab.papers.graph_llm.fitting import Schedule, fit, last_tenth, pace
from lab.papers.graph_llm.stages import Parts


class Line:
    """A line through points that are drawn."""

    def __init__(self):
        torch.manual_seed(0)
        self.module = torch.nn.Linear(1, 1)

    def loss(self, draw):
        inputs = torch.tensor(draw.normal(size=(8, 1)), dtype=torch.float32)
        return ((self.module(inputs) - 3 * inputs - 1) ** 2).mean()

    def fit(self, steps, checkpoint=None, loss=None, end_s=float("inf")):
        learned = [(self.module.parameters(), 0.1)]
        schedule = Schedule(steps, 0.1, 0.1, 10)
        return fit(learned, Parts(self.module), loss or self.loss, lambda: {"at": 1.0}, schedule, checkpoint, end_s)


def test_a_fit_learns_and_keeps_its_curve():
    line = Line()
    fitted = line.fit(120)
    assert fitted.is_done
    assert [record["step"] for record in fitted.curve] == list(range(10, 121, 10))
    assert fitted.curve[-1]["loss"] < 0.01 * fitted.curve[0]["loss"]
    assert float(line.module.weight.detach()) == pytest.approx(3, abs=0.1)


def test_a_fit_that_was_stopped_ends_where_it_would_have(tmp_path):
    whole, stopped, resumed = Line(), Line(), Line()
    whole.fit(40)
    checkpoint, calls = tmp_path / "line.pt", []

    def stopping(draw):
        calls.append(draw)
        if len(calls) > 17:
            raise KeyboardInterrupt
        return stopped.loss(draw)

    # what was saved is of the last moment at which a clock ended it
    assert not stopped.fit(40, checkpoint, end_s=0.0).is_done
    assert checkpoint.exists()
    with pytest.raises(KeyboardInterrupt):
        stopped.fit(40, checkpoint, stopping)
    assert resumed.fit(40, checkpoint).is_done
    assert torch.allclose(resumed.module.weight, whole.module.weight)


def test_a_fit_that_goes_on_with_other_steps_before_its_rate_falls_is_what_it_would_have_been():
    rates = [[pace(step, steps) for step in range(50)] for steps in (90, 120)]
    assert rates[0][6:] == rates[1][6:] == [1.0] * 44
    falling = [pace(step, 90) for step in range(60, 90)]
    assert falling == sorted(falling, reverse=True)
    assert falling[-1] < 0.05
    assert {pace(step, 90, falls=False) for step in range(5, 90)} == {1.0}


def test_the_last_tenth_says_by_how_much_it_still_fell():
    falling = [{"error": 1.0 - 0.05 * step} for step in range(10)]
    assert last_tenth(falling, "error") == pytest.approx(0.05 / 0.6, abs=1e-4)
    assert last_tenth([{"error": 0.2}] * 10, "error") == 0
    assert np.isnan(last_tenth([{"error": 0.2}], "error"))
