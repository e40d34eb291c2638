from dataclasses import replace

import numpy as np
import pytest

from foretell.errors import InputError
from small.tiny_workloads import tiny_graphs, tiny_recipe, tiny_samples

torch = pytest.importorskip("torch")

from lab.papers.graph_networks.scales import node_scales
from lab.papers.graph_networks.steps import FixedBatches
from lab.papers.graph_networks.tensors import DeviceGraphs, TorchOperations, to_tensors
from lab.papers.graph_networks.training import fit
from lab.papers.graph_networks.weights import initial_encoder
from lab.papers.trappm import pretraining
from lab.papers.trappm.pretraining import edge_loss, masked_loss, pretrain, sample_others, train_encoder

RECIPE = tiny_recipe("trappm", encoder_epochs=25, encoder_rate=1e-2)


def test_an_encoder_learns_which_nodes_are_joined():
    graphs = tiny_graphs()
    encoder = pretrain(graphs, graphs, RECIPE)
    assert encoder.loss < encoder.history[0]["score"]
    assert encoder.loss < 2 * np.log(2)  # what σ(0) = 0.5 everywhere would give
    assert set(encoder.weights) == set(initial_encoder(RECIPE, 0))


def test_a_resumed_pretraining_equals_an_uninterrupted_one(tmp_path):
    graphs, recipe = tiny_graphs(), replace(RECIPE, encoder_epochs=3)
    uninterrupted = pretrain(graphs[:6], graphs[6:], recipe, seed=3)
    calls = []

    def kill(epoch, record):
        calls.append(epoch)
        if len(calls) == 5:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        pretrain(graphs[:6], graphs[6:], recipe, 3, kill, checkpoint=tmp_path / "encoder.pt")
    resumed = pretrain(graphs[:6], graphs[6:], recipe, 3, checkpoint=tmp_path / "encoder.pt")
    assert all(np.array_equal(resumed.weights[name], value) for name, value in uninterrupted.weights.items())
    assert resumed.last_relu == uninterrupted.last_relu


def test_without_epochs_only_statistics_are_gathered():
    graphs, recipe = tiny_graphs(), replace(RECIPE, encoder_epochs=0)
    encoder, drawn = pretrain(graphs, graphs, recipe, seed=2), initial_encoder(recipe, 2)
    assert np.array_equal(encoder.weights["encoder.0.weight"], drawn["encoder.0.weight"])
    assert not np.array_equal(encoder.weights["encoder.0.norm.mean"], drawn["encoder.0.norm.mean"])


def test_pairs_are_of_one_graph_and_no_edge_joins_them():
    placed = DeviceGraphs.place(tiny_graphs(), RECIPE, "cpu")
    inputs = placed.pick(np.arange(8))
    second, is_pair = sample_others(inputs)
    first, second = inputs.edges[0][is_pair], second[is_pair]
    assert len(first) > 5
    assert (inputs.graph_index[first] == inputs.graph_index[second]).all()
    joined = {frozenset(pair) for pair in inputs.edges.T.tolist()}
    pairs = {frozenset(pair) for pair in zip(first.tolist(), second.tolist())}
    assert not joined & pairs
    assert all(len(pair) == 2 for pair in pairs)


@pytest.mark.parametrize("loss", [edge_loss, masked_loss])
def test_padding_changes_no_loss_no_gradient_and_no_statistic(loss, monkeypatch):
    # what is drawn has as many numbers as there are edges or nodes, padding among them: take it from the start of each
    monkeypatch.setattr(torch, "rand", lambda count, device: torch.full((count,), 0.29, device=device))
    graphs = tiny_graphs()
    placed = DeviceGraphs.place(graphs, RECIPE, "cpu")
    weights = initial_encoder(RECIPE, 0) | node_scales("encoder.nodes", graphs, RECIPE)
    weights |= pretraining.first_decoder(RECIPE, 0)
    numbers = np.arange(5)
    batches = FixedBatches(placed, None, torch.zeros(len(graphs), 1))
    size = batches.size_of(numbers, 5)
    fixed, _ = batches.inputs(torch.from_numpy(batches.indices(numbers, size)), size)
    found = []
    for inputs in (placed.pick(numbers), fixed):
        tensors = to_tensors(weights, "cpu")
        value = loss(TorchOperations(tensors, momentum=0.1), RECIPE, inputs)
        value.backward()
        found.append((value.item(), tensors))
    (plain, before), (padded, after) = found
    assert len(fixed.nodes) > len(placed.pick(numbers).nodes)
    assert padded == pytest.approx(plain, rel=1e-5)
    for name, tensor in before.items():
        np.testing.assert_allclose(after[name].detach(), tensor.detach(), rtol=1e-4, atol=1e-6, err_msg=name)
        if tensor.grad is not None:
            np.testing.assert_allclose(after[name].grad, tensor.grad, rtol=1e-3, atol=1e-4, err_msg=name)


def test_an_encoder_learns_by_steps_of_fixed_shape():
    graphs = tiny_graphs()
    placed = DeviceGraphs.place(graphs, RECIPE, "cpu")
    scales = node_scales("encoder.nodes", graphs, RECIPE)
    recipe = replace(RECIPE, last_relu=False)
    encoder = train_encoder(
        placed, placed, recipe, 0, scales, lambda *_: None, "cpu", None, None, captured=True
    )  # fmt: skip
    assert encoder.loss < 2 * np.log(2)
    assert encoder.loss < encoder.history[0]["score"]


def test_a_final_relu_keeps_pairs_from_being_separated():
    """Then z·z ≥ 0, so that the second term is at least ln 2."""
    inputs = DeviceGraphs.place(tiny_graphs(), RECIPE, "cpu").pick(np.arange(8))
    ops = TorchOperations(to_tensors(initial_encoder(RECIPE, 0), "cpu"))
    assert edge_loss(ops, RECIPE, inputs).item() >= np.log(2)


def test_a_pair_far_from_the_truth_still_teaches():
    inputs = DeviceGraphs.place(tiny_graphs(), RECIPE, "cpu").pick(np.arange(8))
    ops = TorchOperations(to_tensors(initial_encoder(RECIPE, 0), "cpu"))
    with torch.no_grad():
        ops.weight("encoder.1.norm.gain").fill_(100.0)  # σ(z·z) rounds to 1
    edge_loss(ops, RECIPE, inputs).backward()
    assert ops.weight("encoder.1.norm.gain").grad.abs().max() > 0.1


def test_the_better_encoder_serves_the_second_phase():
    encoder = pretrain(tiny_graphs(), tiny_graphs(), replace(RECIPE, encoder_epochs=2))
    fitted = fit(tiny_samples(), tiny_samples(), replace(RECIPE, epochs=1), encoder=encoder)
    assert fitted.recipe.last_relu == encoder.last_relu
    assert np.array_equal(fitted.weights["encoder.1.weight"], encoder.weights["encoder.1.weight"])


def test_no_graphs_are_refused():
    with pytest.raises(InputError, match="0 validation graphs"):
        pretrain(tiny_graphs(2), [], RECIPE)


def test_both_encoders_are_tried_however_little_time_there_is():
    epochs = []
    graphs = tiny_graphs()
    encoder = pretrain(graphs, graphs, RECIPE, 0, lambda epoch, record: epochs.append(epoch), seconds=1e-9)
    assert epochs == [0, 0]
    assert len(encoder.history) == 1
