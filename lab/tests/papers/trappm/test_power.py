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
    assert found["all"] == (18, pytest.approx(0.2), pytest.approx(0.2))
    assert found["training steps"] == (12, pytest.approx(0.2), pytest.approx(0.2))
    assert found["their families"] == (6, pytest.approx(0.1), pytest.approx(0.1))
    assert found["inference of the families"] == (6, pytest.approx(0.2), pytest.approx(0.2))


def test_what_was_not_told_or_measured_is_not_judged_and_a_grid_is_told_apart():
    rows = labelled("timm:vgg11", "inference")
    rows[0] = replace(rows[0], truth={**rows[0].truth, "energy_j": float("nan")})
    truth = np.array([row.truth["energy_j"] for row in rows])
    told = truth * [1.0, 1.1, 1.1, 1.3, 1.3, np.nan]
    found = power.judged(rows, told, "energy_j", {"w1", "w2"})
    assert found["all"] == (4, pytest.approx(0.2), pytest.approx(0.2))
    assert found["inference of the grid"] == (2, pytest.approx(0.1), pytest.approx(0.1))


def arms(folder, *kept):
    arrays = {}
    for number, (arm, subset, seed, latency, watts) in enumerate(kept):
        facts = {"arm": arm, "subset": subset, "split": "random", "seed": seed}
        arrays |= {f"{number}/facts": np.array(json.dumps(facts)), f"{number}/ids": np.array(["w1", "w2"]),
                   f"{number}/latency_ms": np.array(latency), f"{number}/power_w": np.array(watts)}  # fmt: skip
    np.savez(folder / "arms.npz", **arrays)
    return folder / "arms.npz"


def test_what_arms_of_the_same_split_tell_is_averaged(tmp_path):
    file = arms(
        tmp_path, ("a", "families", 1, [1.0, 2.0], [100.0, 400.0]), ("b", "families", 1, [4.0, 8.0], [100.0, 100.0]),
        ("a", "families", 0, [9.0, 9.0], [9.0, 9.0]), ("c", "families", 1, [9.0, 9.0], [9.0, 9.0]),
        ("a", "training steps, 25 % of the labels", 1, [9.0, 9.0], [9.0, 9.0]),
    )  # fmt: skip
    told = power.told_by([file], ["a", "b"], 1)
    assert told["latency_ms"] == pytest.approx({"w1": 2.0, "w2": 4.0})
    assert told["power_w"] == pytest.approx({"w1": 100.0, "w2": 200.0})
    with pytest.raises(DataError, match="seed 2"):
        power.told_by([file], ["a", "b"], 2)


def test_latency_is_measured_where_it_teaches_and_told_where_it_is_judged(tmp_path):
    rows = labelled()
    told = {"latency_ms": {"w1": 7.0}, "power_w": {"w1": 400.0}}
    parts = power.timed({TRAIN: rows, VALIDATION: rows[:2], TEST: rows}, told)
    assert [len(parts[side]) for side in (TRAIN, VALIDATION, TEST)] == [6, 2, 1], "what is not told is not judged"
    known = parts[TRAIN][1].graph.whole_of(("bound_ms", "latency_ms"))
    assert known.tolist() == pytest.approx([rows[1].graph.bound_ms, rows[1].truth["latency_ms"]])
    assert parts[TEST][0].graph.whole_of(("latency_ms",))[0] == 7.0
    assert power.with_others([*parts[TEST], rows[2]], np.array([100.0, 300.0]), told).tolist() == [200.0, 300.0]
    network = replace(power.recipe(4, 2, timed=True), batch=4)
    watts, _ = power.told(parts, network, 1, "cpu")
    slower = {**parts, TEST: [replace(row, graph=row.graph.with_time(700.0)) for row in parts[TEST]]}
    assert power.told(slower, network, 1, "cpu")[0] != pytest.approx(watts), "the network reads it"
