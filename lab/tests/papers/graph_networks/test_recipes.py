import numpy as np
import pytest

from foretell.errors import UnknownNameError
from lab.papers.graph_networks.arrays import TARGET_COLUMNS, WHOLE_COLUMNS
from lab.papers.graph_networks.recipes import (
    NODE_WIDTHS,
    ONE_HOTS,
    PUBLISHED,
    RECIPES,
    TRUTHS,
    Recipe,
    find_recipe,
    stack,
    whole_matrix,
)
from small.tiny_workloads import tiny_graphs


def test_every_name_of_the_papers_has_a_recipe():
    assert set(RECIPES) == {"dippm", "gcn", "gat", "gin", "mlp", "nnlqp", "trappm", "brp-nas"} == set(PUBLISHED)


@pytest.mark.parametrize("published", [False, True])
@pytest.mark.parametrize("name", RECIPES)
def test_recipes_make_sense(name, published):
    recipe = find_recipe(name, published=published)
    assert recipe.published == published
    assert set(recipe.columns) <= set(WHOLE_COLUMNS)
    assert recipe.columns[-len(TARGET_COLUMNS) :] == TARGET_COLUMNS
    assert set(recipe.targets) <= set(TRUTHS)
    assert not published or len(recipe.units) == len(recipe.targets)
    assert (recipe.block == "none") == (recipe.nodes == "none")
    assert Recipe.from_json(recipe.to_json()) == recipe


def test_the_block_is_swapped_and_nothing_else():
    for name in ("gcn", "gat", "gin"):
        changed = {k for k, v in vars(RECIPES[name]).items() if v != vars(RECIPES["dippm"])[k]}
        assert changed == {"block"}


def test_an_unknown_name_offers_the_closest():
    with pytest.raises(UnknownNameError, match="'dippm'"):
        find_recipe("dipm")


@pytest.mark.parametrize("name", RECIPES)
def test_a_stack_has_no_edges_between_graphs(name):
    graphs = tiny_graphs(5)
    recipe = RECIPES[name]
    stacked = stack(graphs, recipe)
    assert stacked.nodes.shape == (sum(map(len, graphs)), NODE_WIDTHS[recipe.nodes])
    assert ONE_HOTS[recipe.nodes] <= NODE_WIDTHS[recipe.nodes]
    assert (stacked.graph_index[stacked.edges[0]] == stacked.graph_index[stacked.edges[1]]).all()
    assert np.bincount(stacked.graph_index).tolist() == [len(graph) for graph in graphs]
    assert stacked.whole.shape == (5, len(recipe.columns))


def test_published_whole_graphs_are_what_the_papers_code_makes_of_them():
    graphs = tiny_graphs(3)
    dippm = whole_matrix(graphs, find_recipe("dippm", published=True))
    np.testing.assert_allclose(dippm[:, 1], whole_matrix(graphs, RECIPES["dippm"])[:, 1] / 1e9, rtol=1e-6)
    trappm = whole_matrix(graphs, find_recipe("trappm", published=True))
    np.testing.assert_allclose(trappm[:, :6].mean(axis=1), 0, atol=1e-6)
    np.testing.assert_allclose(trappm[:, :6].std(axis=1), 1, rtol=1e-5)
