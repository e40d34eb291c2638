import json
import math
from dataclasses import replace

import numpy as np
import pytest

from foretell.devices import find_device
from foretell.features import extract_units
from foretell.graph import Graph
from foretell.predictors.compiled.fit import Measured
from foretell.predictors.compiled.kernels import CompiledKernels, describe_compiled, library_node
from foretell.predictors.compiled.model import CompiledModel
from foretell.records import Target, Workload
from foretell.testing import tiny_graph
from foretell.training import compiled
from foretell.training.compiled_calls import library_times, measured_calls, module_of, read_calls, traffic_of
from small.small_store import write_table


def call(name="aten.mm", operators=("aten.mm.default",), modules=("L['self'].head",), **values):
    own = {"workload_id": "w", "library": True, "name": name, "operators": json.dumps(operators)}
    own |= {"modules": json.dumps(modules), "sizes": "[]", "reduced": 1, "read_bytes": 600, "written_bytes": 400}
    return own | {"kernels": 1, "duration_us": 7.0} | values


def generated(operators=("aten.relu.default",), **values):
    return call("triton_0", operators, ("L['self'].act",) * len(operators), library=False, **values)


@pytest.fixture
def graph() -> Graph:
    """The tiny graph with a module for each of its library calls, as exported models have."""
    graph = tiny_graph()
    nodes = [replace(node, module=f"body.{position}") for position, node in enumerate(graph.nodes)]
    return replace(graph, nodes=tuple(nodes))


def library_modules(graph, units):
    return [node.module for nodes in units.nodes if (node := library_node(graph, nodes)) is not None]


def test_modules_have_the_names_of_the_graph():
    assert module_of("L['self']._modules['0']") == "0"
    assert module_of("L['self'].body._modules['0'].conv") == "body.0.conv"
    assert module_of("L['self'].layers[2].mlp") == "layers.2.mlp"
    assert module_of("L['self']._orig_mod.stem") == "stem"
    assert module_of("") == ""


def test_a_library_call_is_tied_to_the_unit_of_its_module(graph):
    units = extract_units(Workload(graph, Target(find_device("h200"))))
    modules = library_modules(graph, units)
    assert len(modules) > 1
    calls = [
        call("aten.mm", ("aten.view.default", "aten.mm.default"), ("L['self'].views", f"L['self'].{modules[1]}")),
        generated(),
        call(modules=(f"L['self'].{modules[0]}",), kernels=0),
    ]
    times_us = library_times(graph, units, calls)
    assert times_us[1] == 7.0
    assert math.isnan(times_us[0]), "it launched nothing"


def test_a_module_with_fewer_calls_than_units_is_not_tied(graph):
    same = replace(graph, nodes=tuple(replace(node, module="body") for node in graph.nodes))
    units = extract_units(Workload(same, Target(find_device("h200"))))
    own = [call(modules=("L['self'].body",), duration_us=float(i)) for i in range(len(library_modules(same, units)))]
    assert library_times(same, units, own) == [float(i) for i in range(len(own))]
    assert np.isnan(library_times(same, units, own[1:])).all()


def test_the_traffic_of_a_generated_kernel_is_what_its_call_moves():
    traffic = traffic_of(generated(("aten.relu.default", "aten.relu.default", "aten.sum.default"), reduced=4))
    assert (traffic.bytes, traffic.nodes, traffic.reduces, traffic.transposes) == (1000, 2, True, False)
    assert traffic_of(generated(sizes="[8, 16]")).transposes


@pytest.mark.parametrize(
    "row",
    [call(), generated(kernels=0), generated(read_bytes=0, written_bytes=0), generated(("aten.embedding.default",))],
)
def test_a_call_that_tells_too_little_has_no_traffic(row):
    assert traffic_of(row) is None


def test_measured_calls_are_rows_of_their_own(graph):
    workload = Workload(graph, Target(find_device("h200")))
    units = extract_units(workload)
    kernels = describe_compiled(workload, [], graph, units, units.bound_us)
    module = library_modules(graph, units)[0]
    rows = measured_calls(workload, kernels, [call(modules=(f"L['self'].{module}",)), generated(duration_us=3.0)])
    assert [(row.latency_us, len(row.kernels), row.kernels.is_library.all()) for row in rows] == [
        (7.0, 1, True), (3.0, 2, False),
    ]  # fmt: skip
    assert rows[0].kernels.base_us[0] == kernels.base_us[0]
    assert measured_calls(workload, kernels, []) == []


def test_calls_are_read_by_workload(tmp_path):
    write_table(tmp_path, "compiled_calls", [{**call(), "campaign_id": "c", "call": i} for i in range(3)])
    assert [len(own) for own in read_calls(tmp_path).values()] == [3]


def test_single_calls_are_judged_by_models_that_have_not_seen_them():
    def measured(time_us, operator):
        return Measured(CompiledKernels(np.array([2.0]), np.zeros((1, 32)), (operator,)), time_us)

    rows = [{"spec": f"synthetic:tiny?width={width}", "compiled_ms": 1.0} for width in range(40)]
    calls = [[measured(1.0, "Conv"), measured(3.0, "MatMul")], *([] for _ in rows[1:])]
    own = compiled.CompiledSet("h200", rows, [], np.ones(40), np.zeros(40, bool), calls)
    vars(own)["held_out_models"] = dict.fromkeys(range(5), CompiledModel("h200", (0.0,) * 32))
    table = compiled.judge_calls(own)
    assert list(table.rows) == ["MatMul", "Conv"]
    assert table.rows["Conv"] == {"count": 1, "share": 0.25, "error": pytest.approx(1.0), "sum": pytest.approx(2.0)}
    assert table.rows["MatMul"]["error"] == pytest.approx(1 / 3)
    assert compiled.judge_calls(replace(own, calls=())) is None
