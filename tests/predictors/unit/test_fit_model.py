"""Fitting: what is known of some architectures tells of others, and intervals hold what they promise."""

from dataclasses import replace

import numpy as np
import pytest

from foretell.errors import InputError
from foretell.features.pooled import POOLED_COLUMNS
from foretell.predictors.sample import Sample
from foretell.predictors.unit.fit_model import Settings, conformal_quantile, fit_unit_trees, predict_samples
from foretell.predictors.unit.model import CORRECTED, METRICS, UnitModel
from small.small_samples import QUICK, architectures, small_samples, unit_times_us

pytest.importorskip("lightgbm")

HELD = ("tiny:w24", "tiny:w96", "tiny:w256")


def parted() -> tuple[tuple[Sample, ...], tuple[Sample, ...]]:
    samples = small_samples()
    held_out = tuple(sample for sample in samples if sample.spec in HELD)
    return tuple(sample for sample in samples if sample.spec not in HELD), held_out


@pytest.fixture(scope="module")
def fitted() -> bytes:
    known, _ = parted()
    return fit_unit_trees(known, architectures(known), QUICK)


@pytest.fixture(scope="module")
def trees(fitted: bytes) -> UnitModel:
    return UnitModel.load(fitted)


def truth(samples: tuple[Sample, ...], metric: str) -> np.ndarray:
    return np.array([sample.truth[metric] for sample in samples])


def test_unseen_architectures_are_predicted(trees: UnitModel) -> None:
    _, held_out = parted()
    assert len(held_out) == 15
    predicted = predict_samples(trees, held_out)
    for metric, most in (("latency_ms", 0.08), ("power_w", 0.06), ("energy_j", 0.10)):
        errors = np.abs(predicted[metric] / truth(held_out, metric) - 1)
        assert errors.mean() < most, metric
        assert trees.card["held_out"][metric] < 2 * most, metric
    # memory is counted: what was counted wrong is not learned away, but makes the interval wide
    counted = np.array([sample.setting.memory_mib for sample in held_out])
    np.testing.assert_array_equal(predicted["memory_mib"], counted)


def test_units_are_predicted_by_their_kind(trees: UnitModel) -> None:
    _, held_out = parted()
    for sample in held_out:
        errors = trees.times_us(sample.units) / unit_times_us(sample.units) - 1
        assert np.median(np.abs(errors)) < 0.15  # those without a trace are taken to be a tenth slower


def test_intervals_hold_what_was_not_seen(trees: UnitModel) -> None:
    _, held_out = parted()
    predicted = predict_samples(trees, held_out)
    for metric in METRICS:
        low, value, high = (predicted[name] for name in (f"{metric}_low", metric, f"{metric}_high"))
        assert ((low <= value) & (value <= high)).all()
        assert ((low <= truth(held_out, metric)) & (truth(held_out, metric) <= high)).mean() >= 0.75, metric
        assert np.median(high / low) < 1.6, metric


def test_the_card_names_the_training_data(trees: UnitModel) -> None:
    known, _ = parted()
    assert trees.card["workloads"] == sum(sample.captured for sample in known) == len(trees.known)
    assert trees.card["traced"] == sum(sample.unit_us is not None for sample in known)
    assert trees.card["columns"] == [*POOLED_COLUMNS, "distance", "spread", "beyond", "new_share"]
    assert set(trees.card["quantiles"]) == set(METRICS)
    assert set(trees.models) == {"unit", *CORRECTED, *(f"{name}_error" for name in METRICS)}


def test_the_same_seed_gives_the_same_bytes_and_another_one_others(fitted: bytes) -> None:
    known, _ = parted()
    assert fit_unit_trees(known, architectures(known), QUICK) == fitted
    other = UnitModel.load(fit_unit_trees(known, architectures(known), replace(QUICK, seed=1)))
    assert other.card["seed"] == 1
    assert other.card["quantiles"] != UnitModel.load(fitted).card["quantiles"]


def test_fitting_reports_its_progress() -> None:
    known, _ = parted()
    messages: list[str] = []
    quick = replace(QUICK, **{name: replace(getattr(QUICK, name), rounds=1) for name in ("unit", "whole", "error")})
    fit_unit_trees(known, architectures(known), quick, messages.append)
    assert [f"units, fold {number} of 3" for number in (1, 2, 3)] == messages[:3]
    assert messages[-len(CORRECTED) :] == list(CORRECTED)


def test_workloads_without_a_trace_teach_too(trees: UnitModel) -> None:
    """Only the narrow are traced; replay times alone tell that the wide take thrice as long."""
    known, held_out = parted()
    assert any(sample.unit_us is None for sample in known)
    slow = tuple(
        replace(sample, truth={name: value * 3 for name, value in sample.truth.items()}, unit_us=None)
        for sample in known
    )
    taught_by_latency = UnitModel.load(fit_unit_trees((*slow, *known[-4:]), architectures((*slow, *known[-4:])), QUICK))
    ratio = predict_samples(taught_by_latency, held_out)["latency_ms"] / truth(held_out, "latency_ms")
    assert np.median(ratio) == pytest.approx(3.0, rel=0.15)
    plain, more = (member.times_us(held_out[-1].units).sum() for member in (trees, taught_by_latency))
    assert more > 1.2 * plain, "a part of what replays take longer must reach the units"


def test_a_bench_teaches_units_but_is_no_workload(trees: UnitModel) -> None:
    known, _ = parted()
    without = tuple(sample for sample in known if sample.captured)
    other = UnitModel.load(fit_unit_trees(without, architectures(without), QUICK))
    assert other.card["workloads"] == trees.card["workloads"]
    assert other.card["traced"] == trees.card["traced"] - 4


def test_too_little_is_refused() -> None:
    few = small_samples()[:5]
    with pytest.raises(InputError, match=r"Got 5 measured workloads and .* traced units; a fit needs more"):
        fit_unit_trees(few, architectures(few), QUICK)
    untraced = tuple(replace(sample, unit_us=None) for sample in small_samples())
    with pytest.raises(InputError, match="60 measured workloads and 0 traced units"):
        fit_unit_trees(untraced, architectures(untraced), QUICK)


def test_conformal_quantiles() -> None:
    scores = np.arange(1, 100)[::-1]
    assert conformal_quantile(scores, 0.1) == 90.0  # ⌈100 · 0.9⌉
    assert conformal_quantile(np.arange(1, 11), 0.1) == 10.0  # ⌈11 · 0.9⌉: one more than was known
    assert conformal_quantile(scores, 0.001) == 99.0, "where there are too few, the largest known"
    assert conformal_quantile(np.array([7.0]), 0.1) == 7.0
    assert conformal_quantile(np.array([1.0, 2.0, 3.0]), 0.5) == 2.0
    draw = np.random.default_rng(0).exponential(size=4000)
    assert (draw[2000:] <= conformal_quantile(draw[:2000], 0.1)).mean() == pytest.approx(0.9, abs=0.03)


def test_a_setting_gives_its_seed_and_threads_to_every_fit() -> None:
    fit = Settings(seed=7, threads=3).seeded(QUICK.unit)
    assert (fit.seed, fit.threads, fit.rounds) == (7, 3, QUICK.unit.rounds)


def test_a_device_whose_power_nobody_measured_has_times_alone() -> None:
    unmetered = tuple(
        replace(sample, truth={**sample.truth, "power_w": np.nan, "energy_j": np.nan, "memory_mib": np.nan})
        for sample in small_samples()
    )
    model = UnitModel.load(fit_unit_trees(unmetered, architectures(unmetered), QUICK))
    sample = unmetered[0]
    estimates = model.predict(sample.units, sample.setting, sample.roofline_w).estimates
    assert set(estimates) == {"latency_ms"}
    assert set(model.card["held_out"]) == {"latency_ms"}
