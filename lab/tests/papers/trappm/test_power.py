from dataclasses import replace

import numpy as np
import pytest

from foretell.datasets.splits import TEST, TRAIN, VALIDATION
from lab.papers.dippm.sets import Labelled
from lab.papers.trappm import power
from small.tiny_workloads import tiny_samples

pytest.importorskip("torch")


def labelled(spec="timm:resnet18", mode="training"):
    return [Labelled(f"w{n}", spec, "f", mode, graph, truth) for n, (graph, truth) in enumerate(tiny_samples(6))]


def test_members_are_averaged_and_differ():
    rows = labelled()
    parts = {TRAIN: rows[:4], VALIDATION: rows[4:], TEST: rows}
    network = replace(power.recipe(4, 2), batch=4)
    one, last = power.told(parts, network, 1, "cpu")
    two, _ = power.told(parts, network, 2, "cpu")
    assert len(last) == 1
    assert one.shape == two.shape == (6,)
    assert not np.allclose(one, two)


def test_power_alone_is_learned_and_chooses_the_epoch():
    network = power.recipe(8, 3)
    assert (network.targets, network.chosen_by, network.readout) == (("power_w",), "power_w", "bound")


def test_errors_are_told_of_all_and_of_the_families():
    rows = [*labelled(), *labelled("synthetic:mlp?width=8"), *labelled("timm:convnext_tiny", "inference")]
    truth = np.array([row.truth["power_w"] for row in rows])
    found = power.judged(rows, truth * np.repeat([1.1, 1.3, 0.8], 6))
    assert found["all"] == (18, pytest.approx(0.2))
    assert found["training steps"] == (12, pytest.approx(0.2))
    assert found["their families"] == (6, pytest.approx(0.1))
    assert found["inference of the families"] == (6, pytest.approx(0.2))
