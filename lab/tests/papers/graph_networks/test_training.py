import math
from dataclasses import replace

import numpy as np
import pytest

from foretell.errors import DataError, InputError
from lab.papers.graph_networks.recipes import RECIPES
from small.tiny_workloads import tiny_graphs, tiny_recipe, tiny_samples

torch = pytest.importorskip("torch")

from lab.papers.graph_networks import tensors as graph_tensors
from lab.papers.graph_networks import training
from lab.papers.graph_networks.tensors import TorchOperations
from lab.papers.graph_networks.training import Encoder, fit, target_losses
from lab.papers.graph_networks.weights import initial_encoder


def encoder_of(recipe):
    return Encoder(initial_encoder(recipe, 0)) if recipe.embedding != "none" else None


def same(first, second):
    return all(np.array_equal(first.weights[name], second.weights[name]) for name in first.weights)


@pytest.mark.parametrize("name", RECIPES)
def test_eight_graphs_can_be_memorised(name):
    samples = tiny_samples()
    recipe = tiny_recipe(name, width=32, epochs=50, batch=8, dropout=0.0, rate=1.5e-2, schedule="cosine", patience=50)
    fitted = fit(samples, samples, recipe, encoder=encoder_of(recipe))
    # BRP-NAS sees operators alone, and tells sizes apart by its last, linear layer
    assert fitted.metrics["latency_ms"] < (0.5 if name == "brp-nas" else 0.25)
    assert fitted.history[-1]["loss"] < fitted.history[0]["loss"] / 4
    predicted = fitted.predict([graph for graph, _ in samples])
    truth = np.array([known["latency_ms"] for _, known in samples])
    error = np.abs(predicted["latency_ms"] / truth - 1).mean()
    assert error == pytest.approx(fitted.metrics["latency_ms"], rel=1e-3)


@pytest.mark.parametrize("name", ["dippm", "trappm"])
def test_a_resumed_run_equals_an_uninterrupted_one(name, tmp_path):
    samples, recipe = tiny_samples(), tiny_recipe(name, epochs=4)
    uninterrupted = fit(samples[:6], samples[6:], recipe, seed=7, encoder=encoder_of(recipe))

    def kill(epoch, record):
        if epoch == 1:
            raise KeyboardInterrupt

    arguments = {"seed": 7, "encoder": encoder_of(recipe), "checkpoint": tmp_path / "run.pt"}
    with pytest.raises(KeyboardInterrupt):
        fit(samples[:6], samples[6:], recipe, progress=kill, **arguments)
    resumed = fit(samples[:6], samples[6:], recipe, **arguments)
    assert resumed.history == uninterrupted.history
    assert same(resumed, uninterrupted)
    with pytest.raises(DataError, match="another run"):
        fit(samples[:5], samples[6:], recipe, **arguments)


def test_a_seed_gives_the_same_network_and_another_gives_another():
    samples, recipe = tiny_samples(), tiny_recipe("dippm", epochs=2)
    first, again, other = (fit(samples[:6], samples[6:], recipe, seed=seed) for seed in (1, 1, 2))
    assert same(first, again)
    assert not same(first, other)


def test_a_missing_truth_teaches_nothing():
    samples, recipe = tiny_samples(), tiny_recipe("mlp", epochs=2, dropout=0.0)
    gone = [(graph, truth | {"power_w": None}) for graph, truth in samples[:4]] + samples[4:]
    unknown = [(graph, {name: v for name, v in truth.items() if name != "power_w"}) for graph, truth in samples[:4]]
    assert same(fit(gone, samples, recipe), fit(unknown + samples[4:], samples, recipe))
    assert not same(fit(gone, samples, recipe), fit(samples, samples, recipe))
    silent = [(graph, truth | {"power_w": None}) for graph, truth in samples]
    assert "power_w" not in fit(samples, silent, recipe).metrics


def test_parts_of_a_batch_add_up_to_it(monkeypatch):
    samples, recipe = tiny_samples(), tiny_recipe("dippm", epochs=1, dropout=0.0)
    at_once = fit(samples, samples, recipe)
    monkeypatch.setitem(graph_tensors.MAX_NODES, "cpu", 6)
    parts = fit(samples, samples, recipe)
    assert parts.history[0]["loss"] == pytest.approx(at_once.history[0]["loss"], rel=1e-4)
    np.testing.assert_allclose(parts.weights["out.weight"], at_once.weights["out.weight"], atol=1e-4)


def test_a_frozen_encoder_stays_and_a_trained_one_moves():
    samples, recipe = tiny_samples(), tiny_recipe("trappm", epochs=2)
    encoder = encoder_of(recipe)
    frozen = fit(samples, samples, recipe, encoder=encoder)
    trained = fit(samples, samples, replace(recipe, embedding="trained"), encoder=encoder)
    for name in ("encoder.0.weight", "encoder.0.norm.mean"):
        assert np.array_equal(frozen.weights[name], encoder.weights[name])
        assert not np.array_equal(trained.weights[name], encoder.weights[name])


def test_a_nearly_dead_column_of_an_embedding_is_left_out(monkeypatch):
    samples, recipe = tiny_samples(), tiny_recipe("trappm", epochs=1, embedding="frozen")
    embed = training._embeddings

    def with_dead_columns(*arguments):
        rows = embed(*arguments).clone()
        rows[:, 0] = 5.0
        rows[:, 1] = 5.0 + 1e-4 * torch.arange(len(rows))
        return rows

    monkeypatch.setattr(training, "_embeddings", with_dead_columns)
    fitted = fit(samples, samples, replace(recipe, embedding="trained"), encoder=Encoder(initial_encoder(recipe, 0)))
    scale = fitted.weights["embedding.scale"]
    assert scale[:2].tolist() == [0.0, 0.0]
    assert 0 < scale[2:].max() <= 1 / 0.05


def test_transfer_begins_where_the_other_ended():
    samples, recipe = tiny_samples(), tiny_recipe("nnlqp", epochs=30, rate=1e-2)
    first = fit(samples, samples, recipe)
    slower = [(graph, {name: value * 1.1 for name, value in truth.items()}) for graph, truth in samples]
    moved = fit(slower, slower, replace(recipe, epochs=1, rate=1e-4), start=first)
    fresh = fit(slower, slower, replace(recipe, epochs=1, rate=1e-4))
    assert moved.history[0]["score"] < fresh.history[0]["score"]
    assert np.array_equal(moved.weights["targets.shift"], first.weights["targets.shift"])
    with pytest.raises(InputError, match="another shape"):
        fit(samples, samples, tiny_recipe("dippm"), start=first)


def test_what_cannot_be_fitted_is_refused():
    samples = tiny_samples()
    with pytest.raises(InputError, match="0 training"):
        fit([], samples, tiny_recipe("dippm"))
    with pytest.raises(InputError, match="encoder"):
        fit(samples, samples, tiny_recipe("trappm"))


def ops_for(scale=2.0, shift=1.0):
    return TorchOperations({"targets.scale": torch.tensor([scale]), "targets.shift": torch.tensor([shift])})


def test_losses_are_those_of_the_papers():
    out, logs = torch.tensor([[0.0]]), torch.tensor([[7.0]])  # three deviations above
    losses = {
        loss: target_losses(ops_for(), tiny_recipe("dippm", loss=loss), out, logs).item()
        for loss in ("huber", "mse", "l1", "relative")
    }
    assert losses["huber"] == pytest.approx(2.5)
    assert losses["mse"] == pytest.approx(9)
    assert losses["l1"] == pytest.approx(3)
    assert losses["relative"] == pytest.approx((math.exp(-6) - 1) ** 2)


def test_the_relative_loss_does_not_blow_up_above_the_truth():
    recipe = tiny_recipe("nnlqp")
    ratios = torch.tensor([[0.9999], [1.0001], [50.0]], requires_grad=True)
    losses = target_losses(ops_for(scale=1.0, shift=0.0), recipe, ratios, torch.zeros(3, 1))
    (slopes,) = torch.autograd.grad(losses.sum(), ratios)
    assert losses[1].item() == pytest.approx(losses[0].item(), rel=1e-2)
    assert slopes[1].item() == pytest.approx(slopes[0].item(), rel=1e-2)
    assert slopes[2].item() == pytest.approx(slopes[1].item(), rel=1e-2)


@pytest.mark.parametrize("name", ["dippm", "trappm", "brp-nas"])
def test_published_recipes_learn_raw_numbers(name):
    from lab.papers.graph_networks.recipes import PUBLISHED

    recipe = tiny_recipe(name, **(PUBLISHED[name] | {"batch": 4, "epochs": 2}))
    fitted = fit(tiny_samples(), tiny_samples(), recipe, encoder=encoder_of(recipe))
    predicted = fitted.predict(tiny_graphs(3))
    assert all((values > 0).all() for values in predicted.values())
    np.testing.assert_allclose(fitted.weights["targets.shift"], -np.log(recipe.units), rtol=1e-5)


def test_seconds_limit_the_epochs_but_for_the_first():
    samples, recipe = tiny_samples(), tiny_recipe("mlp", epochs=5)
    assert len(fit(samples, samples, recipe, seconds=1e-9).history) == 1
    ample, free = fit(samples, samples, recipe, seconds=1e9), fit(samples, samples, recipe)
    assert len(ample.history) == 5
    assert same(ample, free)


def test_a_processor_computes_nodes_in_16_bits_only_where_it_is_told_to(monkeypatch):
    samples, recipe, seen = tiny_samples(), tiny_recipe("dippm", epochs=1), []
    cast = TorchOperations.narrow
    monkeypatch.setattr(TorchOperations, "narrow", lambda ops, x: seen.append(ops.narrow_nodes) or cast(ops, x))
    losses = []
    for narrow in (None, True, False):
        seen.clear()
        losses.append(fit(samples, samples, recipe, narrow=narrow).history[0]["loss"])
        assert any(seen) == (narrow is True)
    assert losses[0] == losses[2] != losses[1]
    assert losses[1] == pytest.approx(losses[0], rel=0.1)
