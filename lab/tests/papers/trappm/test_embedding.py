import xml.etree.ElementTree as ElementTree

import numpy as np
import pytest

pytest.importorskip("torch")

from lab.papers.dippm.sets import Labelled
from lab.papers.trappm.embedding import components, embeddings, picture, purity, static
from lab.papers.trappm.pretraining import random_encoder
from small.tiny_workloads import tiny_recipe, tiny_samples


def test_a_neighbour_of_the_same_architecture_does_not_count():
    points = np.array([[0.0], [0.01], [1.0], [0.9]])
    assert purity(points, ["a", "a", "b", "b"], ["1", "1", "2", "3"]) == 0.5
    assert purity(points, ["a", "a", "b", "b"], ["1", "4", "2", "3"]) == 1.0


def test_embeddings_have_a_row_for_each_graph_whatever_its_size():
    rows = [Labelled(f"w{i}", f"timm:vgg{i}", "f", "inference", *sample) for i, sample in enumerate(tiny_samples(6))]
    recipe = tiny_recipe("trappm")
    weights = random_encoder([row.graph for row in rows], recipe, 0, "cpu").weights
    points = embeddings(rows, recipe, weights)
    assert points.shape == (6, recipe.encoder_widths[-1])
    assert static(rows).shape == (6, 6)
    plane, share = components(points)
    assert plane.shape == (6, 2)
    assert 0 < share <= 1


def test_the_picture_has_every_family_and_is_small():
    points = np.random.default_rng(0).normal(size=(900, 2))
    text = picture(points, [f"family <{i % 4}>" for i in range(900)], "a title")
    assert len(text) < 40_000
    root = ElementTree.fromstring(text)
    assert sum(element.tag.endswith("text") for element in root.iter()) == 1 + 4
