import numpy as np
import pytest

from foretell.errors import InputError
from lab.papers.graph_networks.arrays import CLASSED_ONE_HOT
from lab.papers.graph_networks.recipes import BY_BOUND, stack
from lab.papers.graph_networks.scales import log_bounds, log_truths, sample_scales
from small.tiny_workloads import tiny_recipe, tiny_samples


def test_scaled_inputs_of_the_training_side_are_standard():
    samples, recipe = tiny_samples(), tiny_recipe("dippm")
    scales = sample_scales(samples, recipe)
    inputs = stack([graph for graph, _ in samples], recipe)
    for name, rows, first in (("nodes", inputs.nodes, CLASSED_ONE_HOT), ("whole", inputs.whole, 0)):
        values = np.where(scales[f"{name}.logged"] > 0, np.log2(1 + rows), rows)
        values = ((values - scales[f"{name}.shift"]) * scales[f"{name}.scale"])[:, first:]
        varies = values.std(axis=0) > 0
        assert varies.any()
        np.testing.assert_allclose(values.mean(axis=0), 0, atol=1e-4)
        np.testing.assert_allclose(values.std(axis=0)[varies], 1, atol=1e-3)


def test_one_hot_columns_stay_as_they_are():
    scales = sample_scales(tiny_samples(), tiny_recipe("dippm"))
    classes = slice(0, CLASSED_ONE_HOT)
    assert not scales["nodes.logged"][classes].any()
    assert not scales["nodes.shift"][classes].any()
    assert (scales["nodes.scale"][classes] == 1).all()


def test_constant_columns_are_scaled_to_zero():
    recipe = tiny_recipe("dippm")
    scales = sample_scales(tiny_samples(), recipe)
    assert scales["whole.scale"][recipe.columns.index("bandwidth_gb_per_s")] == 0
    assert scales["whole.scale"][recipe.columns.index("macs")] > 0


def test_a_missing_truth_is_nan_and_does_not_move_the_scale():
    recipe = tiny_recipe("dippm", targets=("latency_ms", "energy_j"))
    samples = tiny_samples()
    gaps = [(graph, truth | {"energy_j": None}) for graph, truth in samples[:3]]
    gaps += [(graph, truth | {"energy_j": 0.0}) for graph, truth in samples[3:4]]
    logs = log_truths(gaps + samples[4:], recipe)
    assert np.isnan(logs[:4, 1]).all()
    assert np.isfinite(logs[:, 0]).all()
    scales = sample_scales(gaps + samples[4:], recipe)
    np.testing.assert_allclose(scales["targets.shift"][1], logs[4:, 1].mean(), rtol=1e-6)


def test_a_target_without_any_truth_is_refused():
    samples = [(graph, truth | {"energy_j": None}) for graph, truth in tiny_samples()]
    with pytest.raises(InputError, match="energy_j"):
        sample_scales(samples, tiny_recipe("dippm"))


def test_by_bound_times_are_ratios_to_bounds_and_memories_to_bytes():
    graphs = [graph for graph, _ in tiny_samples()]
    targets = ("latency_ms", "memory_mib", "power_w")
    logs = log_bounds(graphs, tiny_recipe("nnlqp", **BY_BOUND, targets=targets))
    np.testing.assert_allclose(np.exp(logs[:, 0]), [graph.node_bounds_ms.sum() for graph in graphs])
    moved = np.array([graph.whole_of(("memory_bytes",))[0] for graph in graphs])
    np.testing.assert_allclose(np.exp(logs[:, 1]), moved / 2**20 + 50)
    assert not logs[:, 2].any()
