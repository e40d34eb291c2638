"""The nodes that ONNX Runtime ran, as times of units."""

import pytest

from foretell.devices import find_device
from foretell.devices.cpu_runs import CpuRun
from foretell.graph.ir.alignment import NONE
from foretell.records import Target, Workload
from foretell.testing import tiny_graph
from foretell.training.examples.calls import Call
from foretell.training.examples.graphs import GraphKey
from foretell.training.examples.link import Trace
from foretell.training.examples.sessions import link_session, session_units

RUN = CpuRun("onnxruntime", 1)


def trace_of(calls, times_us):
    return Trace("w", "c", GraphKey("x:y", (3,), "inference"), "x", tuple(calls), tuple(times_us), tuple(times_us))


@pytest.fixture
def workload():
    return Workload(tiny_graph(), Target(find_device("cpu"), None, "onnxruntime"))


def profile_of(graph):
    """A profile of the tiny graph: reorders around the convolution, which has absorbed its activation."""
    conv = next(node for node in graph.nodes if node.op == "Conv")
    rest = [node for node in graph.nodes if node.op not in ("Conv", "Relu", "BatchNormalization")]
    calls = [("ReorderInput", "ReorderInput"), ("Conv", "relu"), ("ReorderOutput", "ReorderOutput")]
    calls += [(node.op, node.name) for node in rest]
    return conv, [Call(number, op, name) for number, (op, name) in enumerate(calls)]


def test_nodes_go_by_their_operator(workload):
    conv, calls = profile_of(workload.graph)
    linked = link_session(workload.graph, calls)
    assert linked[:3] == [NONE, workload.graph.nodes.index(conv), NONE]
    for call, position in zip(calls[3:], linked[3:]):
        assert position != NONE
        assert workload.graph.nodes[position].op == call.op


def test_a_convolution_takes_its_changes_of_layout_and_what_it_absorbs(workload):
    _, calls = profile_of(workload.graph)
    times = [10.0, 100.0, 1.0, *(2.0 if call.op == "Reshape" else 1000.0 for call in calls[3:])]
    units, unit_us = session_units(workload, trace_of(calls, times), RUN)
    assert "Relu" not in units.operators
    assert unit_us[units.operators.index("Conv")] == 111.0
    assert unit_us.sum() == sum(times)


def test_without_a_trace_there_are_units_and_no_times(workload):
    units, unit_us = session_units(workload, None, RUN)
    assert len(units)
    assert unit_us is None


def test_a_profile_that_hardly_fits_the_graph_teaches_nothing(workload):
    _, calls = profile_of(workload.graph)
    foreign = [Call(99, "Scan", "somewhere")]
    assert session_units(workload, trace_of([*calls, *foreign], [1.0] * len(calls) + [100.0]), RUN)[1] is None
