"""Which units take the time: equal ones together, most first, named by the first of them."""

import numpy as np
import pytest

from foretell.devices import find_device
from foretell.features import extract_units
from foretell.features.pooled import DistinctUnits
from foretell.predictors.explain import explain, explain_kernels, timeline
from foretell.predictors.roofline import RooflinePredictor
from foretell.records import Target, Workload
from foretell.testing import one_node
from small.small_kernels import CLASSES, fitted
from small.small_samples import H200, blocks, workload


class Doubling:
    """A predictor whose units take twice their bound."""

    def unit_times_us(self, workload: Workload, units: DistinctUnits) -> np.ndarray:
        del workload
        return units.bound_us * 2


def test_equal_units_are_one_row_and_all_add_up():
    work = workload(graph=blocks(64, 1024))
    rows = explain(work, Doubling(), 3.0)
    assert sum(row.count for row in rows) == len(extract_units(work))
    assert sum(row.share for row in rows) == pytest.approx(1.0)
    assert sum(row.latency_ms for row in rows) == pytest.approx(3.0)
    assert [row.latency_ms for row in rows] == sorted((row.latency_ms for row in rows), reverse=True)
    assert {row.over_bound for row in rows} == {2.0}
    product = next(row for row in rows if row.operator == "MatMul")
    assert product.shapes == "64x1024, 1024x1024 → 64x1024"


def test_only_the_most_expensive_units_are_listed():
    work = workload(graph=blocks(64, 1024))
    everything, few = (explain(work, Doubling(), 3.0, most=most) for most in (20, 2))
    assert few == everything[:2]


def test_the_roofline_shares_the_time_by_bounds():
    rows = explain(workload(64, 64), RooflinePredictor(), 1.0)
    assert rows
    assert {row.over_bound for row in rows} == {None}


def test_backward_and_the_optimizer_are_named():
    rows = explain(workload(64, 64, "bf16", "training"), Doubling(), 1.0, most=99)
    names = {row.operator for row in rows}
    assert {"Conv", "Conv (backward)", "optimizer"} <= names
    (update,) = (row for row in rows if row.operator == "optimizer")
    assert (update.module, update.shapes) == ("", "")


def test_a_graph_without_work_has_no_units():
    view = one_node("Reshape", [(4,)], [(2, 2)])
    assert explain(Workload(view, Target(find_device("h200"))), RooflinePredictor(), 1.0) == ()
    assert explain(Workload(view, H200), Doubling(), 1.0) == ()


def test_a_timeline_has_every_unit_in_order_and_takes_the_whole_time():
    work = workload(graph=blocks(64, 1024))
    trace = timeline(work, Doubling(), 3.0)
    head, *events = trace["traceEvents"]
    assert head["args"] == {"name": "h200, predicted"}
    assert len(events) == len(extract_units(work))
    assert sum(event["dur"] for event in events) == pytest.approx(3000.0)
    ends = [event["ts"] + event["dur"] for event in events]
    assert [event["ts"] for event in events[1:]] == pytest.approx(ends[:-1])
    assert {event["cat"] for event in events} == {"forward"}
    assert any(event["args"]["shapes"] == "64x1024, 1024x1024 → 64x1024" for event in events)


def test_kernels_are_named_if_there_is_a_classifier():
    pytest.importorskip("torch")
    work = workload(64, 64)
    plain, with_kernels = explain(work, Doubling(), 3.0), explain(work, Doubling(), 3.0, classifier=fitted())
    assert {row.kernel for row in plain} == {row.probability for row in plain} == {None}
    assert {row.kernel for row in with_kernels} <= set(CLASSES)
    rows = explain_kernels(work, Doubling(), 3.0, fitted())
    assert sum(row.count for row in rows) == len(extract_units(work))
    assert sum(row.latency_ms for row in rows) == pytest.approx(3.0)
    events = timeline(work, Doubling(), 3.0, fitted())["traceEvents"][1:]
    assert {event["args"]["kernel"] for event in events} == {row.kernel for row in rows}
    empty = Workload(one_node("Reshape", [(4,)], [(2, 2)]), H200)
    assert explain_kernels(empty, Doubling(), 1.0, fitted()) == ()
