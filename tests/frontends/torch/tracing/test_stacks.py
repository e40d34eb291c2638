"""Rows of layers, and which layer of a trace another one is written from."""

import pytest

from foretell.frontends.torch.tracing.stacks import Stack, UnequalError, list_weights, name_of_path


def test_layers_are_written_from_those_between_equal_neighbours() -> None:
    assert Stack("layers", (0,) * 7, (0, 4, 5, 6)).templates() == [0, 2, 2, 2, 1, 2, 3]
    alternating = Stack("layers", (0, 1) * 6, (0, 7, 8, 9, 10, 11))
    assert [alternating.kinds[alternating.kept[t]] for t in alternating.templates()] == [0, 1] * 6


def test_a_layer_that_was_traced_once_is_not_repeated() -> None:
    with pytest.raises(UnequalError):
        Stack("layers", (0,) * 7, (0, 5, 6)).templates()


def test_weights_have_the_names_of_an_export() -> None:
    torch = pytest.importorskip("torch")
    module = torch.nn.Module()
    module.A = torch.nn.Linear(2, 3, device="meta")
    module.b = torch.nn.Linear(2, 3, bias=False, device="meta")
    module.b.weight = module.A.weight
    module.register_buffer("c", torch.empty(4, device="meta", dtype=torch.int64))
    weights = list_weights(module)
    assert [(w.path, w.tensor.name, w.tensor.shape, w.tensor.dtype, w.first) for w in weights] == [
        ("A.weight", "p_a_weight", (3, 2), "fp32", ""),
        ("A.bias", "p_a_bias", (3,), "fp32", ""),
        ("b.weight", "p_b_weight", (3, 2), "fp32", "p_a_weight"),
        ("c", "b_c", (4,), "int64", ""),
    ]
    assert name_of_path("model.layers.0.Norm-1") == "model_layers_0_norm_1"
