"""What papers compare with: each tells what it can from whole graphs, and leaves out what was not measured."""

from dataclasses import replace

import numpy as np
import pytest

from foretell.features.pooled import DTYPES, MODES, OPTIMIZERS
from foretell.predictors.sample import Sample
from lab.papers.baselines import GradientBoosting, Linear, whole_graph
from small.small_samples import sample_of, small_samples, workload

INDICATORS = len(DTYPES) + len(MODES) + len(OPTIMIZERS) - 1


def measured() -> list[Sample]:
    return [sample for sample in small_samples() if sample.captured]


def flops_law(sample: Sample) -> Sample:
    """Time as a power of FLOPs and parameters, twice as long in fp32: what least squares can tell exactly."""
    flops, parameters = whole_graph(sample)[:2]
    slow = 2.0 if sample.setting.dtype == "fp32" else 1.0
    return replace(sample, truth={**sample.truth, "latency_ms": float(np.exp(0.7 * flops + 0.1 * parameters) * slow)})


def test_a_row_counts_the_whole_graph() -> None:
    work = workload(8, 2)
    flops, parameters, _, written, units, batch, *flags = whole_graph(sample_of(work, "tiny:w8"))
    products = 2 * 2 * (14 * 14 * 8 * 27 + 8 * 4)
    assert products < np.expm1(flops) < 1.2 * products
    assert np.expm1(parameters) == pytest.approx((8 * 27 + 4 * 8) * 4, rel=1e-4)
    assert np.expm1(written) > 2 * 2 * 8 * 14 * 14 * 4 * 0.99
    assert units == pytest.approx(np.log(4))
    assert batch == pytest.approx(np.log(2))
    assert len(flags) == INDICATORS
    assert sum(flags) == 2, "one dtype, one mode, no optimizer"
    training = whole_graph(sample_of(workload(8, 2, "bf16", "training"), "tiny:w8"))
    assert sum(training[6:]) == 3
    assert training[0] > flops


def test_repeated_units_count_as_often_as_they_occur() -> None:
    sample = sample_of(workload(), "tiny:w8")
    twice = replace(sample, units=replace(sample.units, counts=sample.units.counts * 2))
    once, more = np.array(whole_graph(sample)[:5]), np.array(whole_graph(twice)[:5])
    np.testing.assert_allclose(more - once, np.log(2), atol=1e-3)


def test_least_squares_finds_a_law_of_flops_and_parameters() -> None:
    samples = [flops_law(sample) for sample in measured()]
    held_out = [sample for sample in samples if sample.spec == "tiny:w96"]
    predicted = Linear.fit([sample for sample in samples if sample.spec != "tiny:w96"]).predict(held_out)
    truth = np.array([sample.truth["latency_ms"] for sample in held_out])
    np.testing.assert_allclose(predicted["latency_ms"], truth, rtol=0.02)
    assert (predicted["memory_mib"] > 0).all()


def test_boosted_trees_know_what_they_have_seen() -> None:
    pytest.importorskip("lightgbm")
    samples = measured()
    predicted = GradientBoosting.fit(samples).predict(samples)
    truth = np.array([sample.truth["latency_ms"] for sample in samples])
    errors = np.abs(predicted["latency_ms"] / truth - 1)
    assert np.median(errors) < 0.15
    assert np.median(np.abs(np.median(truth) / truth - 1)) > 0.2, "a constant must do worse"
    again = GradientBoosting.fit(samples).predict(samples)
    np.testing.assert_array_equal(again["latency_ms"], predicted["latency_ms"])


@pytest.mark.parametrize("baseline", [Linear, GradientBoosting])
def test_what_was_not_measured_is_left_out(baseline) -> None:
    if baseline is GradientBoosting:
        pytest.importorskip("lightgbm")
    samples = [
        replace(sample, truth={**sample.truth, "power_w": 300.0 if number < 3 else np.nan})
        for number, sample in enumerate(measured())
    ]
    predicted = baseline.fit(samples).predict(samples[:2])
    assert set(predicted) == {"latency_ms", "memory_mib", "energy_j"}  # three powers are too few, no device memory
    assert all(len(values) == 2 for values in predicted.values())
