import numpy as np
import pytest

from lab.papers.graph_networks.recipes import RECIPES
from small.tiny_workloads import tiny_recipe, tiny_samples

torch = pytest.importorskip("torch")

from lab.papers.graph_networks.steps import padded
from lab.papers.graph_networks.training import Encoder, fit
from lab.papers.graph_networks.weights import initial_encoder


@pytest.mark.parametrize("name", RECIPES)
def test_padded_steps_learn_what_plain_steps_learn(name):
    samples = tiny_samples(7)  # the last batch is not full
    recipe = tiny_recipe(name, epochs=3, dropout=0.0, batch=3)
    encoder = Encoder(initial_encoder(recipe, 0))
    plain, fixed = (fit(samples, samples, recipe, encoder=encoder, captured=captured) for captured in (False, True))
    for one, other in zip(plain.history, fixed.history, strict=True):
        assert other["loss"] == pytest.approx(one["loss"], rel=1e-3)
    for key, value in plain.weights.items():
        np.testing.assert_allclose(fixed.weights[key], value, rtol=1e-3, atol=1e-4)


def test_sizes_are_few_and_never_too_small():
    sizes = [padded(count) for count in range(1, 5000)]
    assert all(size >= count for count, size in enumerate(sizes, start=1))
    assert sizes == sorted(sizes)
    assert len(set(sizes)) < 25
