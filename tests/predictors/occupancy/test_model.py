"""A workload's occupancy is the mean of its units by time under a counter; files of other features are refused."""

import io
import json
import zipfile
from dataclasses import replace

import numpy as np
import pytest

from foretell.devices import find_device, parse_slice
from foretell.errors import ModelError
from foretell.features import COLUMNS, extract_units
from foretell.features.pooled import DistinctUnits
from foretell.predictors.occupancy import model as occupancy
from foretell.predictors.occupancy.fit import LabelledUnits, NetworkFit, fit_network
from foretell.predictors.occupancy.model import OccupancyModel, occupancy_of, predict_units, write
from foretell.predictors.unit.network import UnitNetwork
from foretell.records import Target, Workload
from foretell.testing import tiny_graph

pytest.importorskip("torch")
COUNT = 300
CARD = {"width": 0.1, "modes": ["inference"]}


@pytest.fixture(scope="module")
def units() -> LabelledUnits:
    """Units whose occupancy follows their FLOPs, and which take twice as long under a counter."""
    random = np.random.default_rng(1)
    features = np.abs(random.normal(5, 3, (COUNT, len(COLUMNS)))).astype(np.float32)
    features[:, :4] = random.integers(0, 2, (COUNT, 4))
    occupancy_pct = np.clip(5.0 * features[:, COLUMNS.index("log_flops")], 2.0, 90.0).astype(np.float64)
    return LabelledUnits(features, occupancy_pct, np.full(COUNT, np.log(2.0)), np.full(COUNT, 0.01))


@pytest.fixture(scope="module")
def network(units: LabelledUnits) -> UnitNetwork:
    return UnitNetwork.load(fit_network(units, NetworkFit(width=64, epochs=40, batch=32)).to_bytes())


def test_the_network_learns_occupancy_and_time(units: LabelledUnits, network: UnitNetwork) -> None:
    occupancy_pct, ratio = predict_units(network, units.features)
    assert np.corrcoef(occupancy_pct, units.occupancy_pct)[0, 1] > 0.8
    assert ratio == pytest.approx(np.full(COUNT, 2.0), rel=0.15)
    assert 0 < occupancy_pct.min() < occupancy_pct.max() <= 100


def test_equal_seeds_give_equal_networks(units: LabelledUnits) -> None:
    fit = NetworkFit(width=64, epochs=1, batch=64)
    assert fit_network(units, fit).to_bytes() == fit_network(units, fit).to_bytes()


def test_members_are_averaged(units: LabelledUnits) -> None:
    fit = NetworkFit(width=64, epochs=1, batch=64)
    first, second = (predict_units(fit_network(units, replace(fit, seed=seed)), units.features) for seed in (0, 1))
    both = predict_units(fit_network(units, replace(fit, members=2)), units.features)
    assert np.log(both[1]) == pytest.approx((np.log(first[1]) + np.log(second[1])) / 2, abs=1e-5)
    assert not np.allclose(first[0], second[0])


def test_units_that_differ_in_reuse_alone_count_once(units: LabelledUnits) -> None:
    twice = LabelledUnits(**{name: np.concatenate([values] * 2) for name, values in vars(units).items()})
    twice.features[COUNT:, COLUMNS.index("log_moved_since")] += 1
    twice.weight[COUNT:] = 0.5
    assert len(twice.distinct().weight) == COUNT
    assert set(twice.distinct().weight) == {0.5}


def test_a_workload_is_the_mean_of_its_units_by_time(network: UnitNetwork, units: LabelledUnits) -> None:
    model = OccupancyModel.load(write(network, CARD))
    two = DistinctUnits(units.features[:2], np.array([1.0, 3.0]), np.ones(2), np.array([0, 1, 1, 1]))
    (first, second), (long, short) = model.units(two.features)
    estimate = model.predict(two, np.array([10.0, 20.0]))
    expected = (first * 10 * long + second * 60 * short) / (10 * long + 60 * short)
    assert estimate.value == pytest.approx(expected)
    assert estimate.low == pytest.approx(expected / np.exp(0.1))
    assert estimate.low < estimate.value < estimate.high <= 100
    # training steps were not counted: twice the width
    assert model.predict(two, np.array([10.0, 20.0]), "training").low == pytest.approx(expected / np.exp(0.2))


def test_a_file_of_other_features_or_damaged_is_refused(network: UnitNetwork) -> None:
    data = write(network, CARD)
    with pytest.raises(ModelError, match="not a fitted model of occupancy"):
        OccupancyModel.load(data[:-60])
    buffer = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(data)) as old, zipfile.ZipFile(buffer, "w") as new:
        new.writestr("card.json", json.dumps({**CARD, "schema": "another"}))
        new.writestr("network.npz", old.read("network.npz"))
    with pytest.raises(ModelError, match="fit it again: foretell train -p occupancy"):
        OccupancyModel.load(buffer.getvalue())


def test_only_whole_devices_that_were_counted_have_an_occupancy(
    network: UnitNetwork, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = OccupancyModel.load(write(network, CARD))
    monkeypatch.setattr(occupancy, "shipped", lambda device: model if device == "h200" else None)
    h200 = find_device("h200")
    workload = Workload(tiny_graph(), Target(h200))
    distinct = DistinctUnits.of(extract_units(workload))
    times = np.ones(len(distinct))
    assert occupancy_of(workload, distinct, times) is not None
    part = replace(workload, target=Target(h200, parse_slice("mps:50", h200)))
    assert occupancy_of(part, distinct, times) is None
    assert occupancy_of(replace(workload, target=Target(find_device("l4"))), distinct, times) is None
