"""A core that takes twice as long for the reference product takes twice as long for products; the rest stays."""

from dataclasses import replace

import numpy as np
import pytest

from foretell.devices import find_device
from foretell.features import extract_units
from foretell.features.pooled import DistinctUnits
from foretell.predictors import find_predictor
from foretell.predictors.adapted.model import AdaptedModel, Card
from foretell.predictors.adapted.paced import PacedPredictor
from foretell.predictors.adapted.predictor import AdaptedPredictor, probe_of
from foretell.predictors.adapted.regression import LATENCY_PARTS, Factors
from foretell.predictors.adapted.units import CLASSES, WIDTH, classes_of
from foretell.predictors.unit.pace import REFERENCE_MS, core_note, is_pace_note
from foretell.records import Target, Workload
from small.small_samples import blocks

CPU = find_device("cpu")


def workload(dtype: str = "fp32") -> Workload:
    return Workload(blocks(8, 256), Target(CPU, None, "eager"), dtype)


@pytest.fixture
def fitted():
    return find_predictor(None, "cpu")


def test_times_follow_the_pace_and_the_interval_is_wider(fitted):
    before, after = (
        fitted.predict(workload()),
        PacedPredictor(fitted, 2 * REFERENCE_MS, "2026-11-17").predict(workload()),
    )
    share = next(row.share for row in before.breakdown if row.operator == "MatMul")
    assert 0.1 < share < 1.0
    factor = 1 + share
    assert after.latency_ms.value == pytest.approx(factor * before.latency_ms.value, rel=1e-3)
    assert after.throughput_per_s.value == pytest.approx(before.throughput_per_s.value / factor, rel=1e-3)
    assert after.latency_ms.high / after.latency_ms.value > before.latency_ms.high / before.latency_ms.value
    assert after.latency_ms.low / after.latency_ms.value < before.latency_ms.low / before.latency_ms.value
    total = sum(row.latency_ms for row in after.breakdown)
    assert total == pytest.approx(after.latency_ms.value)
    assert after.memory_mib == before.memory_mib


def test_the_note_is_about_this_machine_and_stands_once(fitted):
    notes = [note for note in PacedPredictor(fitted, 0.07, "2026-11-17").predict(workload()).warnings if "192" in note]
    assert len(notes) == 1
    assert "in 0.07 ms, as this machine does (foretell characterise, 2026-11-17)" in notes[0]
    assert core_note() in fitted.predict(workload()).warnings


def test_units_follow_the_pace(fitted):
    units = DistinctUnits.of(extract_units(workload()))
    times = PacedPredictor(fitted, 3 * REFERENCE_MS, "").unit_times_us(workload(), units)
    is_product = classes_of(units.features) == CLASSES.index("products")
    assert 0 < is_product.sum() < len(units)
    expected = fitted.unit_times_us(workload(), units) * np.where(is_product, 3.0, 1.0)
    np.testing.assert_allclose(times, expected)


def test_what_the_roofline_answers_has_no_pace(fitted):
    half = replace(workload("bf16"))
    assert PacedPredictor(fitted, 2 * REFERENCE_MS, "").predict(half) == fitted.predict(half)


def test_adapted_answers_do_not_ask_to_adapt(fitted):
    probe = probe_of(CPU, fitted, "unit-trees")
    card = Card("cpu", "unit-trees", 1, 1, "2026-11-17", ("inference fp32",), (1.0,) * len(CLASSES), probe, 0.1)
    factors = Factors(np.zeros(WIDTH), LATENCY_PARTS, np.zeros((1, WIDTH)), 2.0)
    answer = AdaptedPredictor(AdaptedModel(card, {"latency_ms": factors}), fitted, "here").predict(workload())
    assert answer.predictor == "adapted"
    assert not [note for note in answer.warnings if is_pace_note(note)]
