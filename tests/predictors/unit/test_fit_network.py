"""Fitting networks: traces and replays teach, each network from its own samples only."""

from dataclasses import replace

import numpy as np
import pytest

from foretell.errors import InputError
from foretell.features.encoded import encode
from foretell.predictors.unit.rows import UnitRows
from small.small_samples import QUICK, small_samples, unit_times_us

pytest.importorskip("torch")

from foretell.predictors.unit import fit_network
from foretell.predictors.unit.fit_network import NetworkFit, default_device, fit_networks

HELD = ("tiny:w24", "tiny:w96", "tiny:w256")


@pytest.fixture(scope="module")
def rows() -> UnitRows:
    return UnitRows.of(small_samples())


@pytest.fixture(scope="module")
def learns() -> np.ndarray:
    samples = small_samples()
    without = np.array([sample.spec not in HELD for sample in samples])
    return np.stack([without, np.ones(len(samples), dtype=bool)])


def test_units_of_unseen_samples_are_predicted(
    rows: UnitRows, learns: np.ndarray, monkeypatch: pytest.MonkeyPatch
) -> None:
    fitted = fit_networks(rows, learns, replace(QUICK.network, epochs=80))
    held_out, all_seen = (networks.log_ratio for networks in fitted.predictions())
    unseen_units = ~learns[0][rows.owner]
    truth = np.log(np.concatenate([unit_times_us(sample.units) / sample.units.bound_us for sample in small_samples()]))
    assert np.median(np.abs(held_out - truth)[unseen_units]) < 0.2
    assert np.median(np.abs(all_seen - truth)) < 0.2
    served = fitted.network([0]).predict(encode(rows.features), rows.bound_us)
    np.testing.assert_allclose(served.log_ratio, held_out, atol=1e-3)
    # any units can be asked about, some at a time
    monkeypatch.setattr(fit_network, "_PREDICTED_ROWS", 17)
    told = fitted.told([0, 1], encode(rows.features), rows.bound_us)
    np.testing.assert_allclose(told.log_ratio, (held_out + all_seen) / 2, atol=1e-4)
    np.testing.assert_allclose(told.spread, np.abs(held_out - all_seen) / np.sqrt(2), atol=1e-4)
    unseen = ~learns[0] & rows.is_replayed
    power_w = rows.means(np.exp(held_out) * rows.bound_us, np.asarray(served.power_w))
    assert np.abs(power_w / rows.power_w - 1)[unseen].mean() < 0.1


def test_held_out_samples_do_not_influence_a_network(rows: UnitRows, learns: np.ndarray) -> None:
    quick = replace(QUICK.network, epochs=3)
    spoilt = replace(
        rows,
        traced_us=np.where(learns[0][rows.owner], rows.traced_us, rows.traced_us * 50),
        latency_us=np.where(learns[0], rows.latency_us, rows.latency_us * 50),
    )
    # the weight of a unit follows from its time, and is brought to a mean of one over all rows: only that may differ
    plain, other = (next(fit_networks(table, learns[:1], quick).predictions()).log_ratio for table in (rows, spoilt))
    both = next(fit_networks(spoilt, np.ones_like(learns[:1]), quick).predictions()).log_ratio
    assert np.abs(plain - other).max() < 0.2 * np.abs(plain - both).max()


def test_the_same_seed_gives_the_same_network(rows: UnitRows, learns: np.ndarray) -> None:
    quick = replace(QUICK.network, epochs=2)
    first, again, other = (
        next(fit_networks(rows, learns[1:], replace(quick, seed=seed)).predictions()).log_ratio for seed in (0, 0, 1)
    )
    np.testing.assert_array_equal(first, again)
    assert np.abs(first - other).max() > 1e-3


def test_products_in_bf16_give_nearly_the_same_network(rows: UnitRows, learns: np.ndarray) -> None:
    quick = replace(QUICK.network, epochs=4)
    # on a processor they are in fp32 unless one asks; on a GPU it is the other way round
    exact, low, asked = (
        next(fit_networks(rows, learns[1:], replace(quick, bf16=bf16)).predictions()).log_ratio
        for bf16 in (False, True, None)
    )
    np.testing.assert_array_equal(asked, exact)
    assert 1e-6 < np.abs(low - exact).mean() < 0.05


def test_too_little_is_refused(rows: UnitRows, learns: np.ndarray) -> None:
    with pytest.raises(InputError, match="traced and from replayed"):
        fit_networks(replace(rows, traced_us=np.full(len(rows.counts), np.nan)), learns, NetworkFit(epochs=1))


def test_without_measured_power_none_is_predicted(rows: UnitRows, learns: np.ndarray) -> None:
    quick = replace(QUICK.network, epochs=1)
    fitted = fit_networks(replace(rows, power_w=np.full(len(rows.power_w), np.nan)), learns[1:], quick)
    assert next(fitted.predictions()).power_w is None
    assert fitted.network([0]).most_w is None


def test_kernels_are_taught_where_they_are_known(rows: UnitRows, learns: np.ndarray) -> None:
    """The class tells of held-out units what their sizes do not: here, how long they take."""
    quick = replace(QUICK.network, epochs=2)
    classes = np.where(np.arange(len(rows.counts)) % 3 == 0, -1, rows.features[:, 0].astype(np.int64) % 5)
    plain, same, taught, unknown = (
        next(fit_networks(rows, learns[1:], settings, classes=known).predictions()).log_ratio
        for settings, known in (
            (quick, None),
            (replace(quick, kernel=0.0), classes),
            (quick, classes),
            (quick, np.full(len(classes), -1)),
        )
    )
    assert np.abs(plain - taught).max() > 1e-4
    np.testing.assert_array_equal(unknown, plain)
    assert np.abs(same - taught).max() > 1e-4


def test_there_is_a_device_to_fit_on() -> None:
    assert default_device() in ("cpu", "cuda")


def test_an_operator_that_no_row_has_is_neutral(rows: UnitRows, learns: np.ndarray) -> None:
    embedding = fit_networks(rows, learns, QUICK.network).network([0]).weights["embedding"][0]
    seen = np.zeros(len(embedding), bool)
    seen[encode(rows.features).operators] = True
    assert embedding[seen].any(axis=1).all()
    assert not embedding[~seen].any()
