import numpy as np
import pytest

from foretell.graph import Graph
from foretell.graph.ir.node import Node
from foretell.graph.ir.tensor import Tensor
from lab.papers.flattened.features import Flattening, Layers, layers_of
from lab.papers.flattened.regressors import Examples, Fitted, fit_linear


def two_branches() -> Graph:
    """x → Gemm → Relu → two Gemms → Add."""
    shapes = {"x": (1, 4), "a": (1, 8), "b": (1, 8), "c": (1, 2), "d": (1, 2), "y": (1, 2)}
    weights = {"w0": (4, 8), "w1": (8, 2), "w2": (8, 2)}
    tensors = {
        name: Tensor(name, shape, "fp32", "input" if name == "x" else "activation") for name, shape in shapes.items()
    }
    tensors |= {name: Tensor(name, shape, "fp32", "parameter") for name, shape in weights.items()}
    nodes = [
        Node("g0", "Gemm", ("x", "w0"), ("a",)),
        Node("r", "Relu", ("a",), ("b",)),
        Node("g1", "Gemm", ("b", "w1"), ("c",)),
        Node("g2", "Gemm", ("b", "w2"), ("d",)),
        Node("add", "Add", ("c", "d"), ("y",)),
    ]
    return Graph.build("two", nodes, tensors, ["x"], ["y"])


def test_layers_are_the_input_and_nodes_with_weights():
    layers = layers_of(two_branches())
    assert layers.kinds == ("Input", "Gemm", "Gemm", "Gemm")
    assert layers.weights == (0, 32, 16, 16)
    # the activation between them connects them
    assert layers.edges == ((0, 1), (1, 2), (1, 3))


def test_a_vector_has_the_layers_then_the_matrix_then_the_batch():
    layers = layers_of(two_branches())
    flattening = Flattening.of([layers])
    assert flattening.width == 4 * (2 + 1) + 16 + 1
    places, values = flattening.vector([(layers, 8)])
    dense = np.zeros(flattening.width)
    dense[places] = values
    kinds = dense[:12].reshape(4, 3)
    assert kinds[:, flattening.kinds["Input"]].tolist() == [1, 0, 0, 0]
    assert kinds[:, flattening.kinds["Gemm"]].tolist() == [0, 1, 1, 1]
    assert kinds[1, 2] == pytest.approx(np.log2(33) / 10)
    assert np.argwhere(dense[12:28].reshape(4, 4)).tolist() == [[0, 1], [1, 2], [1, 3]]
    assert dense[-1] == pytest.approx(0.4)


def test_models_stand_side_by_side_and_unknown_kinds_and_further_layers_are_left_out():
    known = Layers(("Input", "Gemm"), (0, 5), ((0, 1),))
    flattening = Flattening.of([known], members=2)
    longer = Layers(("Input", "Conv", "Gemm"), (0, 7, 7), ((0, 1), (1, 2)))
    places, _ = flattening.vector([(known, 1), (longer, 1)])
    assert places.max() == flattening.width - 1
    assert len(set(places.tolist())) == len(places)


def test_linear_regression_finds_a_linear_law():
    draw = np.random.default_rng(0)
    vectors = [(np.array([0, 1, 2]), draw.random(3).astype(np.float32)) for _ in range(200)]
    truth = np.array([3 * values[0] - values[2] + 5 for _, values in vectors])
    predict = fit_linear(Examples(vectors[:150], truth[:150]), ridge=1e-6)
    assert predict(vectors[150:]) == pytest.approx(truth[150:], abs=0.02)


def test_a_fit_has_converged_when_its_last_tenth_hardly_helped():
    assert Fitted(1, [1.0] * 9 + [0.99]).converged
    assert not Fitted(1, [1.0] * 9 + [0.9]).converged


def test_the_network_learns_what_it_is_taught():
    pytest.importorskip("torch")
    from lab.papers.flattened.regressors import fit_network

    draw = np.random.default_rng(1)
    vectors = [(np.array([0, int(draw.integers(1, 5))]), np.array([draw.random(), 1], np.float32)) for _ in range(400)]
    truth = np.array([(2 + values[0]) * places[1] for places, values in vectors])
    sides = [Examples(vectors[a:b], truth[a:b]) for a, b in ((0, 300), (300, 350))]
    fitted = fit_network(*sides, width=5, depth=2, epochs=60)
    asked = fitted.predict(vectors[350:])
    assert np.abs(asked / truth[350:] - 1).mean() < 0.1
    assert min(fitted.errors) < fitted.errors[0]
