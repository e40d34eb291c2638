import numpy as np
import onnx
import pytest

from lab.papers.graph_networks.arrays import SCHEMA
from lab.papers.graph_networks.network import GraphNetwork
from lab.papers.graph_networks.onnx_model import to_onnx
from lab.papers.graph_networks.recipes import BY_BOUND, PUBLISHED, RECIPES
from lab.papers.graph_networks.scales import sample_scales
from lab.papers.graph_networks.weights import initial_encoder, initial_weights
from small.tiny_workloads import tiny_graphs, tiny_recipe, tiny_samples


def weights_of(recipe):
    weights = initial_weights(recipe, 5) | sample_scales(tiny_samples(), recipe)
    weights["out.weight"] = weights["out.weight"] * 0.01  # untrained, it would predict e^1000
    return weights | (initial_encoder(recipe, 5) if recipe.embedding in ("frozen", "trained") else {})


def notes_of(recipe):
    return {"name": "tiny", "recipe": recipe.to_json(), "schema": SCHEMA}


@pytest.mark.parametrize("published", [False, True])
@pytest.mark.parametrize("name", RECIPES)
def test_onnxruntime_gives_what_torch_gives(name, published):
    pytest.importorskip("torch")
    from lab.papers.graph_networks.training import Fitted

    recipe = tiny_recipe(name, **(PUBLISHED[name] if published else {}))
    fitted = Fitted(recipe, weights_of(recipe), 5, {})
    served = GraphNetwork.load(fitted.to_onnx(name))
    for graphs in (tiny_graphs(7), tiny_graphs(1)):
        expected, served_predictions = fitted.predict(graphs), served.predict(graphs)
        assert set(served_predictions) == set(recipe.targets)
        for target in recipe.targets:
            np.testing.assert_allclose(np.log(served_predictions[target]), np.log(expected[target]), atol=1e-4)


@pytest.mark.parametrize(
    "others", [{"heads": 4, "block": "gat"}, {"readout": "mean"}, {"embedding": "zeros"}, BY_BOUND]
)
def test_switches_reach_the_written_model(others):
    pytest.importorskip("torch")
    from lab.papers.graph_networks.training import Fitted

    recipe = tiny_recipe("dippm", **others)
    fitted = Fitted(recipe, weights_of(recipe), 5, {})
    expected, served_predictions = (
        fitted.predict(tiny_graphs()),
        GraphNetwork.load(fitted.to_onnx("x")).predict(tiny_graphs()),
    )
    np.testing.assert_allclose(np.log(served_predictions["latency_ms"]), np.log(expected["latency_ms"]), atol=1e-4)


def test_the_model_is_valid_and_the_same_every_time():
    recipe = tiny_recipe("trappm")
    data = to_onnx(recipe, weights_of(recipe), notes_of(recipe))
    assert data == to_onnx(recipe, weights_of(recipe), notes_of(recipe))
    model = onnx.load_from_string(data)
    onnx.checker.check_model(model, full_check=True)
    assert [value.name for value in model.graph.input] == ["nodes", "edges", "graph_index", "whole"]


def test_a_quarter_of_the_bits_keeps_the_predictions():
    recipe = tiny_recipe("dippm", width=128)
    weights, notes = weights_of(recipe), notes_of(recipe)
    full, small = to_onnx(recipe, weights, notes), to_onnx(recipe, weights, notes, small=True)
    assert len(small) < 0.4 * len(full)
    first, second = (GraphNetwork.load(data).predict(tiny_graphs()) for data in (full, small))
    np.testing.assert_allclose(second["latency_ms"], first["latency_ms"], rtol=2e-3)
    assert not np.array_equal(second["latency_ms"], first["latency_ms"])
