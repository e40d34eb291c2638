"""ONNX Runtime and two threads: multiples of what eager PyTorch takes on one thread."""

import numpy as np
import pytest

from foretell.devices import find_device
from foretell.devices.cpu_runs import ONE_THREAD, OTHERS, CpuRun
from foretell.errors import InputError
from foretell.features import extract_units
from foretell.features.pooled import DistinctUnits
from foretell.predictors import find_predictor
from foretell.predictors.adapted.paced import PacedPredictor
from foretell.predictors.cpu.model import AS_EAGER, CpuRunPredictor, on_run, shipped, units_of
from foretell.predictors.explain import explain
from foretell.predictors.roofline import LEAST_LATENCY_MS, RooflinePredictor
from foretell.predictors.unit.pace import REFERENCE_MS, core_note
from foretell.records import Target, Workload
from foretell.testing import tiny_graph
from foretell.units import KILO
from small.fixed_trees import fixed_model
from small.small_samples import blocks

CPU = find_device("cpu")
TWO, SESSION = CpuRun("eager", 2), CpuRun("onnxruntime", 1)


def workload(run: CpuRun = TWO, **others) -> Workload:
    return Workload(blocks(8, 256), Target(CPU, None, run.runtime, run.threads), **others)


class Slower:
    """A predictor of eager PyTorch whose units take several times as long."""

    def __init__(self, base, factor):
        self.base, self.factor = base, factor

    def unit_times_us(self, workload, units):
        return self.factor * self.base.unit_times_us(workload, units)

    def predict(self, workload):
        return self.base.predict(workload)


@pytest.fixture
def eager():
    return find_predictor(None, "cpu")


@pytest.mark.parametrize("run", OTHERS)
def test_every_run_that_ships_answers_with_an_interval(eager, run):
    asked = workload(run)
    answer = on_run(eager, run).predict(asked)
    assert answer.predictor == "cpu-runs"
    assert (answer.runtime, answer.threads) == (run.runtime, run.threads)
    assert answer.latency_ms.low < answer.latency_ms.value < answer.latency_ms.high
    assert sum(row.latency_ms for row in answer.breakdown) == pytest.approx(answer.latency_ms.value)
    assert core_note(run) in answer.warnings
    assert (AS_EAGER in answer.warnings) == (run.runtime == "onnxruntime")
    assert answer.power_w is None


def test_times_are_multiples_of_those_on_one_thread(eager):
    units = DistinctUnits.of(extract_units(workload()))
    model = shipped(TWO)
    once, thrice = (CpuRunPredictor(Slower(eager, factor), model, TWO) for factor in (1.0, 3.0))
    np.testing.assert_allclose(
        thrice.unit_times_us(workload(), units), 3.0 * once.unit_times_us(workload(), units), rtol=1e-9
    )


def test_two_threads_are_at_most_twice_as_fast_as_one(eager):
    asked = Workload(blocks(64, 1024), Target(CPU, None, "eager", 2))
    units = DistinctUnits.of(extract_units(asked))
    one_ms = float(units.counts @ eager.unit_times_us(asked, units)) / KILO
    two_ms = on_run(eager, TWO).predict(asked).latency_ms.value
    assert 0.5 * one_ms <= two_ms < one_ms
    # whatever the multiples say
    fast = CpuRunPredictor(eager, fixed_model(shipped(TWO), latency_ms=-5.0), TWO)
    assert fast.predict(asked).latency_ms.value == pytest.approx(0.5 * one_ms)


def test_the_floor_of_one_core_is_not_that_of_two(eager):
    asked = Workload(blocks(64, 2048), Target(CPU, None, "eager", 2))
    floor_ms = RooflinePredictor().predict(asked).facts[LEAST_LATENCY_MS]
    fast = CpuRunPredictor(Slower(eager, 1e-6), shipped(TWO), TWO).predict(asked)
    assert fast.latency_ms.value == pytest.approx(floor_ms / 2)


def test_what_onnx_runtime_absorbs_has_no_time_of_its_own(eager):
    asked = Workload(tiny_graph(), Target(CPU, None, "onnxruntime"))
    all_of_them, run = extract_units(asked), units_of(asked, SESSION)
    assert "Relu" in all_of_them.operators
    assert "Conv" in run.operators
    assert "Relu" not in run.operators
    assert len(units_of(asked, TWO)) == len(all_of_them)
    predictor = on_run(eager, SESSION)
    for selected in (predictor, PacedPredictor(predictor, 2 * REFERENCE_MS, "2026-11-18")):
        answer = selected.predict(asked)
        assert {row.operator for row in answer.breakdown} == set(run.operators)
        explained = explain(asked, selected, answer.latency_ms.value)
        assert {row.operator for row in explained} == set(run.operators)
        assert sum(row.latency_ms for row in explained) == pytest.approx(answer.latency_ms.value)


def test_the_pace_of_this_machine_holds_for_every_run(eager):
    before = on_run(eager, TWO).predict(workload())
    after = PacedPredictor(on_run(eager, TWO), 2 * REFERENCE_MS, "2026-11-18").predict(workload())
    assert 1.05 < after.latency_ms.value / before.latency_ms.value < 2.0
    (note,) = [note for note in after.warnings if "192" in note]
    assert note.startswith("Eager PyTorch on two threads, for two cores that multiply")


@pytest.mark.parametrize("others", [{"mode": "training", "optimizer": "sgd"}, {"dtype": "bf16"}])
def test_what_was_not_measured_is_refused(eager, others):
    with pytest.raises(InputError, match="two threads was measured in inference fp32, not in "):
        on_run(eager, TWO).predict(workload(**others))


@pytest.mark.parametrize("run", [CpuRun("eager", 3), CpuRun("onnxruntime", 4), ONE_THREAD])
def test_a_run_that_nobody_measured_is_refused(eager, run):
    with pytest.raises(InputError, match=r"Nothing was measured of .* only of: eager PyTorch on one thread; eager"):
        on_run(eager, run)


def test_a_predictor_without_units_is_refused():
    with pytest.raises(InputError, match="leave out --predictor"):
        on_run(RooflinePredictor(), TWO)
