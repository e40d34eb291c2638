import numpy as np
import pytest

pytest.importorskip("torch")
pytest.importorskip("lightgbm")

from lab.papers.dippm.sets import Labelled
from lab.papers.graph_networks.recipes import Recipe
from lab.papers.llm_network import judge, line, recipe_of
from lab.papers.llm_trees import MODEL_FEATURES, Forward
from small.tiny_workloads import tiny_recipe, tiny_samples


@pytest.fixture
def rows():
    samples = tiny_samples(8)
    labelled = [Labelled(f"w{i}", f"hf:net?size={i}", "f", "inference", *samples[i % 8]) for i in range(40)]
    forwards = [
        Forward(
            dict.fromkeys(MODEL_FEATURES, float(i)),
            {"throughput": 1000 / row.truth["latency_ms"], "memory": row.truth["memory_mib"]},
            f"f{i % 6}", row.workload_id,
        )
        for i, row in enumerate(labelled)
    ]  # fmt: skip
    return labelled, forwards


def test_both_judge_every_row_once_and_folds_are_kept(rows, tmp_path):
    labelled, forwards = rows
    recipe: Recipe = tiny_recipe("nnlqp", epochs=2)
    file = tmp_path / "folds.npz"
    nothing = judge(labelled, forwards, recipe, file, by_family=False, seconds=-1.0)
    assert np.isnan(nothing["network ms"]).all()
    assert not file.exists()
    found = judge(labelled, forwards, recipe, file, by_family=False, seconds=1e9)
    assert all(np.isfinite(values).all() for values in found.values())
    again = judge(labelled, forwards, recipe, file, by_family=False, seconds=-1.0)
    np.testing.assert_array_equal(again["network ms"], found["network ms"])
    assert "40 of 40 rows" in line("rows at random", labelled, found)


def test_a_narrow_copy_says_so():
    recipe = recipe_of(64, 10)
    assert (recipe.width, recipe.epochs, recipe.embedding) == (64, 10, "none")
