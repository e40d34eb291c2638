import numpy as np
import pytest

from lab.papers.graph_networks.arrays import CLASSED_WIDTH
from lab.papers.graph_networks.recipes import RECIPES, find_recipe
from lab.papers.graph_networks.weights import initial_encoder, initial_weights, is_learned
from small.tiny_workloads import tiny_recipe


@pytest.mark.parametrize("name", RECIPES)
def test_a_seed_gives_the_same_weights_and_another_gives_others(name):
    recipe = tiny_recipe(name)
    first, again, other = (initial_weights(recipe, seed) for seed in (1, 1, 2))
    assert all(np.array_equal(first[key], again[key]) for key in first)
    assert not np.array_equal(first["out.weight"], other["out.weight"])


def test_dippm_has_six_sage_convolutions_of_512_and_three_dense_layers():
    weights = initial_weights(find_recipe("dippm"), 0)
    convolutions = [key for key in weights if key.startswith("block.") and key.endswith(".own.weight")]
    assert len(convolutions) == 6
    assert weights["block.0.0.weight"].shape == (CLASSED_WIDTH, 512)
    assert initial_weights(find_recipe("dippm", published=True), 0)["block.0.0.weight"].shape == (32, 512)
    assert weights["dense.0.weight"].shape == (512 + 5 + 9, 512)
    assert weights["out.weight"].shape == (512, 4)
    assert np.abs(weights["dense.1.weight"]).max() <= 1 / np.sqrt(512)


def test_trappm_reads_1030_columns_beside_the_target_vector():
    recipe = find_recipe("trappm")
    assert initial_weights(recipe, 0)["dense.0.weight"].shape == (1030 + 9, 512)
    encoder = initial_encoder(recipe, 0)
    assert [encoder[f"encoder.{i}.weight"].shape for i in range(4)] == [
        (113, 1024),
        (1024, 512),
        (512, 512),
        (512, 512),
    ]


def test_scales_and_statistics_are_not_learned():
    assert is_learned("out.weight")
    assert is_learned("encoder.0.norm.gain")
    assert not is_learned("encoder.0.norm.variance")
    assert not is_learned("nodes.shift")
    assert not is_learned("readout.scale")
