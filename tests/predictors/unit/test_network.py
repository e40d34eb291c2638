"""A network on units: what numpy says is what any runtime says, and a spoilt file is refused."""

import numpy as np
import pytest

from foretell.errors import ModelError
from foretell.features.encoded import ENCODED_WIDTH, encode
from foretell.predictors.unit.bins import Bins
from foretell.predictors.unit.network import UnitNetwork, weight_names
from foretell.predictors.unit.rows import UnitRows
from small.small_samples import small_samples

WIDTH, BLOCKS, MEMBERS, CODES, EMBEDDING = 72, 2, 3, 600, 4
BINS = Bins(np.arange(30), np.linspace(-2, 8, 30, dtype=np.float32), np.linspace(0.5, 9, 30, dtype=np.float32))
NUMBERS = ENCODED_WIDTH + len(BINS)


def _shape(name: str) -> tuple[int, ...]:
    shapes = {"embedding": (CODES, EMBEDDING), "enter": (NUMBERS, WIDTH), "enter_code": (EMBEDDING, WIDTH)}
    shapes |= {"leave": (WIDTH, 3), "leave_bias": (1, 3)}
    return shapes.get(name) or ((WIDTH, WIDTH) if name.rstrip("01") in ("up", "down") else (1, WIDTH))


@pytest.fixture(scope="module")
def network() -> UnitNetwork:
    draw = np.random.default_rng(0)
    weights = {
        name: draw.normal(scale=0.1, size=(MEMBERS, *_shape(name))).astype(np.float16).astype(np.float32)
        for name in weight_names(BLOCKS)
    }
    middle = draw.normal(size=NUMBERS).astype(np.float32)
    return UnitNetwork(weights, BINS, middle, draw.uniform(0.5, 2, NUMBERS).astype(np.float32), 700.0)


@pytest.fixture(scope="module")
def rows() -> UnitRows:
    return UnitRows.of(small_samples()[:12])


def test_what_is_written_is_read(network: UnitNetwork, rows: UnitRows) -> None:
    again = UnitNetwork.load(network.to_bytes())
    assert (again.members, again.blocks, again.operators) == (MEMBERS, BLOCKS, CODES)
    for name, expected in network.weights.items():
        step = np.abs(expected).max(axis=1, keepdims=True) / 127 if min(expected.shape[1:]) >= WIDTH else 0.0
        assert (np.abs(again.weights[name] - expected) <= 0.51 * step).all(), (
            name
        )  # half a step, and only where there is one
    units = encode(rows.features)
    first, second = (member.predict(units, rows.bound_us) for member in (network, again))
    np.testing.assert_allclose(second.log_ratio, first.log_ratio, atol=0.05)
    np.testing.assert_allclose(second.power_w, first.power_w, rtol=0.05)
    twice = UnitNetwork.load(again.to_bytes()).predict(units, rows.bound_us)
    np.testing.assert_allclose(twice.log_ratio, second.log_ratio, atol=1e-4)


def test_a_network_may_know_nothing_of_power(network: UnitNetwork, rows: UnitRows) -> None:
    weights = {name: array[..., :2] if name.startswith("leave") else array for name, array in network.weights.items()}
    deaf = UnitNetwork.load(UnitNetwork(weights, BINS, network.middle, network.spread).to_bytes())
    predicted = deaf.predict(encode(rows.features), rows.bound_us)
    assert predicted.power_w is None
    hearing = UnitNetwork.load(network.to_bytes())
    expected = hearing.predict(encode(rows.features), rows.bound_us).log_ratio
    np.testing.assert_allclose(predicted.log_ratio, expected, rtol=1e-6)


def test_members_are_averaged(network: UnitNetwork, rows: UnitRows) -> None:
    units = encode(rows.features)
    alone = [
        UnitNetwork(
            {name: array[n : n + 1] for name, array in network.weights.items()}, BINS, network.middle, network.spread
        )
        for n in range(MEMBERS)
    ]
    alone_predicted = [member.predict(units, rows.bound_us).log_ratio for member in alone]
    assert np.std(alone_predicted, axis=0).max() > 0.01, "members must differ, or nothing is shown"
    averaged = network.predict(units, rows.bound_us).log_ratio
    np.testing.assert_allclose(averaged, np.mean(alone_predicted, axis=0), rtol=1e-5, atol=1e-5)


def test_an_operator_beyond_the_known_ones_does_not_break_it(network: UnitNetwork, rows: UnitRows) -> None:
    units = encode(rows.features)
    units.operators[:] = 10_000
    assert np.isfinite(network.predict(units, rows.bound_us).log_ratio).all()


@pytest.mark.parametrize("data", [b"", b"nonsense"])
def test_files_that_are_no_network_are_refused(data: bytes) -> None:
    with pytest.raises(ModelError, match="not a network on units"):
        UnitNetwork.load(data)


def test_a_network_of_other_features_is_refused(network: UnitNetwork) -> None:
    weights = dict(network.weights) | {"enter": network.weights["enter"][:, :-1]}
    other = UnitNetwork(weights, BINS, network.middle[:-1], network.spread[:-1])
    with pytest.raises(ModelError, match=r"other features.*; fit it again"):
        UnitNetwork.load(other.to_bytes())
