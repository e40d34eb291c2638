"""The graph that a compiler leaves: kernels, what flows between them, cycles parted, repeated runs left out."""

import numpy as np
import pytest

from foretell.errors import InputError
from foretell.features.pooled import DistinctUnits
from foretell.graph import Graph
from foretell.graph.ir.node import Node
from foretell.predictors.fusion.kernel_graph import (
    LEFT_OUT,
    Flow,
    Kernel,
    KernelGraph,
    NodeTimes,
    find_kernels,
    make_kernel_graph,
    shorten,
    split_cycles,
    time_nodes,
)
from foretell.records import Workload
from foretell.testing import chain, tiny_graph


def residual() -> Graph:
    """A product, a ReLU, and a sum of both; all of one name, as some files have it."""
    nodes = [
        Node("n", "MatMul", ("x", "w"), ("a",), module="fc"),
        Node("n", "Relu", ("a",), ("b",)),
        Node("n", "Add", ("a", "b"), ("c",)),
    ]
    return chain(nodes, {"x": (2, 4), "w": (4, 8), "a": (2, 8), "b": (2, 8), "c": (2, 8)}, ["x"], ["c"])


class Doubling:
    """A predictor whose units take twice their bound."""

    def unit_times_us(self, workload: Workload, units: DistinctUnits) -> np.ndarray:
        del workload
        return units.bound_us * 2


def line(*operators: str) -> KernelGraph:
    kernels = [Kernel(f"k{i}", (name,), ("pointwise",), "pointwise", 1.0) for i, name in enumerate(operators)]
    return KernelGraph(tuple(kernels), tuple(Flow(i, i + 1, 4) for i in range(len(operators) - 1)))


def test_a_kernel_has_the_name_kind_and_time_of_what_it_computes():
    kernels = make_kernel_graph(residual(), [(0, 1), (2,)], NodeTimes("measured by hand", np.array([5.0, 1.0, 0.0])))
    first, second = kernels.kernels
    assert (first.label, first.kind, first.kinds) == ("fc", "product", ("product", "pointwise"))
    assert first.time_us == 6.0
    assert second.time_us is None  # nothing takes no time: it is not told
    assert kernels.flows == (Flow(0, 1, 2 * 2 * 8 * 4),)  # a and b, of fp32
    assert "measured by hand" in kernels.notes[0]


def test_groups_that_form_a_cycle_are_split():
    graph = residual()
    assert split_cycles(graph, [(0, 2), (1,)]) == [(0,), (1,), (2,)]
    assert split_cycles(graph, [(0, 1, 2)]) == [(0, 1, 2)]
    kernels = make_kernel_graph(graph, [(0, 2), (1,)])
    assert [kernel.operators for kernel in kernels.kernels] == [("MatMul",), ("Relu",), ("Add",)]
    assert all(flow.source < flow.target for flow in kernels.flows)
    assert "3 boxes" in kernels.notes[0]


def test_only_groups_of_a_cycle_are_split():
    steps = [Node(f"r{i}", "Relu", (f"t{i}",), (f"t{i + 1}",)) for i in range(6)]
    tail = Node("end", "Add", ("t1", "t6"), ("out",))  # far from its maker, and reached by no way back
    graph = chain([*steps, tail], dict.fromkeys((*(f"t{i}" for i in range(7)), "out"), (4,)), ["t0"], ["out"])
    members = [(0, 2), (1,), (3,), (4, 5, 6)]
    assert split_cycles(graph, members) == [(0,), (1,), (2,), (3,), (4, 5, 6)]


def test_kernels_come_before_their_readers():
    kernels = make_kernel_graph(residual(), [(2,), (1,), (0,)])
    assert [kernel.operators for kernel in kernels.kernels] == [("MatMul",), ("Relu",), ("Add",)]
    assert [(flow.source, flow.target) for flow in kernels.flows] == [(0, 1), (0, 2), (1, 2)]


@pytest.mark.parametrize(
    ("runtime", "word"),
    [("eager", "each operator"), ("inductor", "each operator by itself, unfused, and added up for a box")],
)
def test_times_are_those_of_units_and_say_what_they_are(runtime, word):
    graph = residual()
    times = time_nodes(graph, "h200", runtime, Doubling())
    assert times is not None
    assert times.meaning == f"predicted on h200, batch 1, fp32: {word}"
    assert (times.node_us > 0).all()


def test_where_units_have_no_times_the_roofline_is_named():
    class Silent:
        pass

    times = time_nodes(residual(), "a100", "eager", Silent())
    assert times is not None
    assert "roofline" in times.meaning
    doubled = time_nodes(residual(), "a100", "eager", Doubling())
    assert doubled is not None
    assert doubled.node_us == pytest.approx(times.node_us * 2)


def test_an_operator_spelt_as_several_nodes_has_its_time_where_it_multiplies():
    nodes = [
        Node("a", "MatMul", ("x", "w"), ("a",), origin="fc", origin_op="Gemm"),
        Node("b", "Add", ("a", "w2"), ("b",), origin="fc", origin_op="Gemm"),
    ]
    graph = chain(nodes, {"x": (2, 4), "w": (4, 8), "w2": (8,), "a": (2, 8), "b": (2, 8)}, ["x"], ["b"])
    times = time_nodes(graph, "h200", "eager", Doubling())
    assert times is not None
    assert times.node_us[0] > 0 == times.node_us[1]


def test_a_small_graph_is_not_shortened():
    graph = line("Add", "Mul", "Add", "Mul", "Add", "Mul")
    assert shorten(graph, 6) is graph


def test_repeated_layers_are_left_out_between_the_first_and_the_last():
    graph = line("Conv", *["Mul", "Add"] * 50, "Softmax")
    kernels = shorten(graph, 10)
    assert [kernel.operators for kernel in kernels.kernels] == [
        ("Conv",), ("Mul",), ("Add",), (), ("Mul",), ("Add",), ("Softmax",)
    ]  # fmt: skip
    gone = kernels.kernels[3]
    assert (gone.kind, gone.stands_for, gone.time_us) == (LEFT_OUT, 96, 96.0)
    assert "48 times the 2 kernels above" in gone.label
    assert [(flow.source, flow.target) for flow in kernels.flows] == [(i, i + 1) for i in range(6)]
    assert "96 of 102" in kernels.notes[-1]


def test_where_nothing_repeats_the_middle_is_left_out():
    kernels = shorten(line(*(f"op{i}" for i in range(1000))), 20)
    assert len(kernels.kernels) == 20
    assert sum(kernel.stands_for for kernel in kernels.kernels) == 1000
    assert kernels.kernels[0].operators == ("op0",)
    assert kernels.kernels[-1].operators == ("op999",)
    assert all(flow.source < flow.target for flow in kernels.flows)


def test_kernels_are_listed_in_order_and_have_all_nodes():
    graph = tiny_graph(channels=64)
    kernels = find_kernels(graph, "onnxruntime")
    assert tuple(graph.nodes[position].op for position in kernels[0][:2]) == ("Conv", "Relu")
    assert sorted(position for kernel in kernels for position in kernel) == list(range(len(graph.nodes)))
    with pytest.raises(InputError, match=r"inductr.*inductor"):
        find_kernels(graph, "inductr")
