import json
from dataclasses import replace

import numpy as np
import pytest

from foretell.datasets.splits import TEST, TRAIN, VALIDATION
from foretell.errors import DataError
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


def test_what_was_not_told_or_measured_is_not_judged_and_a_grid_is_told_apart():
    rows = labelled("timm:vgg11", "inference")
    rows[0] = replace(rows[0], truth={**rows[0].truth, "energy_j": float("nan")})
    truth = np.array([row.truth["energy_j"] for row in rows])
    told = truth * [1.0, 1.1, 1.1, 1.3, 1.3, np.nan]
    found = power.judged(rows, told, "energy_j", {"w1", "w2"})
    assert found["all"] == (4, pytest.approx(0.2))
    assert found["inference of the grid"] == (2, pytest.approx(0.1))


def test_latency_is_that_of_the_arm_of_the_same_split(tmp_path):
    arrays = {}
    for seed in (0, 1):
        facts = {"arm": "a", "split": "random", "seed": seed}
        arrays |= {f"a-{seed}/facts": np.array(json.dumps(facts)), f"a-{seed}/ids": np.array(["w1", "w2"]),
                   f"a-{seed}/latency_ms": np.array([1.0, 2.0 + seed])}  # fmt: skip
    np.savez(tmp_path / "arms.npz", **arrays)
    assert power.times_of(tmp_path / "arms.npz", "a", 1) == {"w1": 1.0, "w2": 3.0}
    with pytest.raises(DataError, match="seed 2"):
        power.times_of(tmp_path / "arms.npz", "a", 2)
