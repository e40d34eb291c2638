"""A predictor that answers once for each workload."""

from dataclasses import replace

import numpy as np

from foretell.devices import find_device, parse_slice
from foretell.features import extract_units
from foretell.features.pooled import DistinctUnits
from foretell.predictors import find_predictor
from foretell.predictors.remembering import remembering
from foretell.predictors.roofline import RooflinePredictor
from foretell.predictors.slices.model import on_slices
from foretell.records import Target, Workload
from foretell.testing import tiny_graph

H200 = find_device("h200")


class Counting:
    """The best predictor of the H200, and how often it was asked."""

    def __init__(self):
        self.asked, self.predictor = [], find_predictor(None, "h200")

    def predict(self, workload):
        self.asked.append(workload.target.slice)
        return self.predictor.predict(workload)

    def unit_times_us(self, workload, units):
        return self.predictor.unit_times_us(workload, units)


def test_slices_ask_for_the_whole_device_once_and_answer_the_same():
    graph, counting = tiny_graph(), Counting()
    remembered = remembering(counting)
    for text in ("mig:1g.18gb", "mig:2g.35gb", "mps:30"):
        sliced = Workload(graph, Target(H200, parse_slice(text, H200)), "fp32")
        expected = on_slices(counting.predictor, H200).predict(sliced)
        assert on_slices(remembered, H200).predict(sliced) == expected
    assert sum(part is None for part in counting.asked) == 1


def test_another_workload_is_another_answer():
    remembered = remembering(Counting())
    graph = tiny_graph()
    one = Workload(graph, Target(H200), "fp32")
    for other in (replace(one, graph=graph.with_batch(64)), replace(one, dtype="tf32"), replace(one, mode="training")):
        assert remembered.predict(other) != remembered.predict(one)
    units = DistinctUnits.of(extract_units(one))
    assert np.array_equal(remembered.unit_times_us(one, units), remembered.unit_times_us(one, units))


def test_a_predictor_without_times_of_units_stays_as_it_is():
    plain = RooflinePredictor()
    assert remembering(plain) is plain
