"""A network of kernels: probabilities of what is possible, and tiles that are weighed by how they cover."""

from dataclasses import replace

import numpy as np
import pytest

from foretell.predictors.kernels.inputs import kernel_inputs
from foretell.predictors.kernels.network import KernelNetwork, weight_names
from small.small_kernels import fitted, labelled

pytest.importorskip("torch")


@pytest.fixture
def network() -> KernelNetwork:
    return fitted().networks["products"]


def products():
    features, layouts, _ = labelled()
    units = kernel_inputs(features, layouts, False)
    return units.of(units.is_product)


def test_probabilities_add_up_over_members_and_slices(network: KernelNetwork) -> None:
    units = products()
    many = units.of(np.tile(np.arange(len(units)), 1 + 2000 // len(units)))  # more than are taken at once
    probabilities = network.probabilities(many)
    assert probabilities.shape == (len(many), len(network.classes))
    assert probabilities.sum(axis=1) == pytest.approx(np.ones(len(many)), rel=1e-5)
    assert np.allclose(probabilities[: len(units)], network.probabilities(units), atol=1e-6)
    assert network.probabilities(units.of(slice(0, 0))).shape == (0, len(network.classes))


def test_classes_never_seen_for_a_kind_have_probability_zero(network: KernelNetwork) -> None:
    allowed = network.allowed.copy()
    allowed[:, 0] = False
    assert not replace(network, allowed=allowed).probabilities(products())[:, 0].any()


def test_members_are_averaged(network: KernelNetwork) -> None:
    units = products()
    alone = [
        replace(network, weights={name: array[[member]] for name, array in network.weights.items()})
        for member in range(2)
    ]
    mean = (alone[0].probabilities(units) + alone[1].probabilities(units)) / 2
    assert np.allclose(network.probabilities(units), mean, atol=1e-6)
    assert not np.allclose(alone[0].probabilities(units), mean, atol=1e-6)


def test_tiles_distinguish_otherwise_equal_classes(network: KernelNetwork) -> None:
    silent = {name: np.zeros_like(array) for name, array in network.weights.items()}
    plain = replace(network, weights=silent)
    units = products()
    assert np.allclose(plain.probabilities(units), 1 / len(network.classes))
    bias = silent["weigh_bias"].copy()
    bias[:, 4] = -9.0  # what is computed over what is asked for
    likeliest = replace(network, weights={**silent, "weigh_bias": bias}).probabilities(units)
    small = int(np.argmin(network.tiles[:, 0]))
    one_wave = np.argmin(np.abs(units.along * units.across * units.many - 10_000))
    assert likeliest[one_wave].argmax() == small


def test_names_of_weights_are_those_of_a_fit(network: KernelNetwork) -> None:
    assert set(network.weights) == set(weight_names(network.blocks))
