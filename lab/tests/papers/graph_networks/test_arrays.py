import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest

from foretell.devices import parse_slice
from foretell.graph import Graph, Node, Tensor, graph_costs
from foretell.records import Target, Workload
from foretell.testing import chain, one_node, tiny_graph
from lab.papers.graph_networks.arrays import (
    ATTRIBUTES,
    BOUNDED_ONE_HOT,
    BOUNDED_WIDTH,
    CLASSED_WIDTH,
    CLASSES,
    DIPPM_COLUMNS,
    DIPPM_WIDTH,
    FURTHER_CLASSES,
    OPERATOR_COLUMNS,
    SCHEMA,
    SHARES,
    TARGET_COLUMNS,
    TRAPPM_COLUMNS,
    TRAPPM_WIDTH,
    extract_graph_arrays,
)
from small.tiny_workloads import H200, forked


def arrays_of(graph, **others):
    return extract_graph_arrays(Workload(graph, H200, **others))


def test_the_layouts_have_the_widths_of_the_papers():
    arrays = arrays_of(tiny_graph())
    assert (DIPPM_WIDTH, TRAPPM_WIDTH) == (32, 113)
    assert arrays.dippm_nodes.shape == (5, 32)
    assert arrays.trappm_nodes.shape == (5, 113)
    assert (len(DIPPM_COLUMNS), len(TRAPPM_COLUMNS), len(TARGET_COLUMNS)) == (5, 6, 9)
    assert len(set(OPERATOR_COLUMNS)) == len(OPERATOR_COLUMNS) == 98


def test_edges_are_the_data_flow_and_each_pair_occurs_once():
    arrays = extract_graph_arrays(forked())
    assert sorted(map(tuple, arrays.edges.T.tolist())) == [(0, 1), (0, 2), (1, 3), (2, 3)]
    assert arrays.whole_of(("nodes", "edges")).tolist() == [4, 4]


def test_free_nodes_and_their_edges_are_left_out():
    nodes = [
        Node("shape", "Shape", ("x",), ("s",)),
        Node("relu", "Relu", ("x",), ("r",)),
        Node("reshape", "Reshape", ("r", "s"), ("y",)),
    ]
    arrays = arrays_of(chain(nodes, {"x": (2, 3), "s": (2,), "r": (2, 3), "y": (2, 3)}, ["x"], ["y"]))
    assert [OPERATOR_COLUMNS[number] for number in arrays.operators] == ["Relu", "Reshape"]
    assert arrays.edges.tolist() == [[0], [1]]


def test_classes_ask_whether_an_operand_is_a_parameter():
    def class_of(graph):
        number = arrays_of(graph).classes[-1]
        return CLASSES[number] if number >= 0 else None

    assert class_of(one_node("MatMul", [(2, 3), (3, 4)], [(2, 4)], weights=[1])) == "dense"
    assert class_of(one_node("MatMul", [(2, 3), (3, 4)], [(2, 4)])) == "batch_matmul"
    assert class_of(one_node("Add", [(2, 3), (3,)], [(2, 3)], weights=[1])) == "bias_add"
    assert class_of(one_node("Add", [(2, 3), (2, 3)], [(2, 3)])) == "add"
    assert class_of(one_node("Relu", [(2, 3)], [(2, 3)])) is None
    turned = [Node("t", "Transpose", ("w",), ("turned",)), Node("m", "MatMul", ("x", "turned"), ("y",))]
    assert class_of(chain(turned, {"x": (2, 3), "w": (4, 3), "turned": (3, 4), "y": (2, 4)}, ["x"], ["y"])) == "dense"


def test_a_class_is_one_of_sixteen_columns_and_no_class_is_all_zeros():
    arrays = arrays_of(tiny_graph())
    hot = arrays.dippm_nodes[:, : len(CLASSES)]
    assert hot.sum(axis=1).tolist() == [1, 0, 1, 1, 1]  # the second is a ReLU
    assert hot[0, CLASSES.index("conv2d")] == 1
    assert (arrays.operator_nodes.sum(axis=1) == 1).all()


def test_every_node_has_one_class_beside_the_published_ones_and_the_dtype_of_the_model():
    arrays = arrays_of(tiny_graph(), dtype="bf16")
    every = len(CLASSES) + len(FURTHER_CLASSES)
    hot = arrays.classed_nodes[:, :every]
    assert hot.sum(axis=1).tolist() == [1] * 5
    assert hot[1].argmax() == len(CLASSES) + FURTHER_CLASSES.index("relu")
    assert hot[0].argmax() == CLASSES.index("conv2d")
    assert arrays.classed_nodes[:, every : every + 3].tolist() == [[0, 0, 1]] * 5
    assert arrays.classed_nodes.shape == (5, CLASSED_WIDTH)


def test_the_bound_is_the_longer_of_arithmetic_and_traffic_of_every_node():
    arrays = arrays_of(tiny_graph())
    bandwidth, peak = arrays.whole_of(("bandwidth_gb_per_s", "peak_tflops"))
    expected = sum(
        max(2 * macs / (peak * 1e12), moved / (bandwidth * 1e9)) for macs, _, moved in arrays.costs.astype(float)
    )
    assert arrays.bound_ms == pytest.approx(max(expected * 1e3, 1e-4))


def test_a_bounded_node_knows_dtype_mode_and_its_shares():
    arrays = arrays_of(tiny_graph())
    rows, told = arrays.bounded_nodes, len(OPERATOR_COLUMNS)
    assert rows.shape == (5, BOUNDED_WIDTH)
    assert rows[:, told:BOUNDED_ONE_HOT].tolist() == [arrays.whole_of(TARGET_COLUMNS[:6]).tolist()] * 5
    assert rows[:, -SHARES:].sum(axis=0) == pytest.approx([1, 1])
    bounds, moved = arrays.node_bounds_ms, arrays.costs[:, 2]
    assert bounds.min() >= 0.002
    assert arrays.bound_ms == pytest.approx(max(bounds.sum() - 5 * 0.002, 1e-4))
    assert rows[:, -2] / rows[0, -2] == pytest.approx(bounds / bounds[0], rel=1e-5)
    assert rows[:, -1] / rows[0, -1] == pytest.approx(moved / moved[0], rel=1e-5)
    assert rows[:, -3] == pytest.approx(1000 * bounds, rel=1e-5)


@pytest.mark.parametrize(
    ("pads", "expected"),
    [((1, 2), (1, 2, 1, 2)), ((1, 2, 3, 4), (1, 2, 3, 4)), ((3,), (3, 3, 3, 3))],
    ids=["torch", "onnx", "one number"],
)
def test_attributes_of_a_convolution(pads, expected):
    graph = one_node(
        "Conv", [(2, 6, 16, 16), (12, 3, 5, 3)], [(2, 12, 8, 8)], weights=[1], strides=(2,), pads=pads, group=2
    )
    by_column = dict(zip(ATTRIBUTES, arrays_of(graph).attributes[0].tolist()))
    assert tuple(by_column[f"pad_{i}"] for i in range(4)) == expected
    assert (by_column["stride_0"], by_column["stride_1"], by_column["dilation_0"]) == (2, 2, 1)
    assert (by_column["groups"], by_column["channels"], by_column["kernel_0"], by_column["kernel_1"]) == (2, 12, 5, 3)


def test_a_convolution_over_one_axis_has_zeros_for_the_other():
    graph = one_node("Conv", [(2, 6, 16), (12, 6, 5)], [(2, 12, 12)], weights=[1], strides=(1,), pads=(0,))
    by_column = dict(zip(ATTRIBUTES, arrays_of(graph).attributes[0].tolist()))
    assert (by_column["kernel_0"], by_column["kernel_1"], by_column["stride_0"], by_column["stride_1"]) == (5, 0, 1, 0)


def test_shapes_keep_their_product_when_axes_are_too_many():
    graph = one_node("Relu", [(2, 3, 4, 5, 6, 7, 8)], [(2, 3, 4, 5, 6, 7, 8)])
    arrays = arrays_of(graph)
    assert arrays.output_shapes[0].tolist() == [2, 3, 4, 5, 6, 56]
    assert arrays.dippm_nodes[0, -4:].tolist() == [2, 3, 4, 5 * 6 * 56]
    assert arrays_of(one_node("Relu", [(2, 3)], [(2, 3)])).dippm_nodes[0, -4:].tolist() == [2, 3, 0, 0]


def test_costs_are_those_of_the_graph():
    graph = tiny_graph()
    arrays, table = arrays_of(graph), graph_costs(graph)
    assert arrays.costs[:, 0].tolist() == [cost.macs for cost in table.nodes]
    macs, parameters, memory = arrays.whole_of(("macs", "parameters", "memory_bytes"))
    assert (macs, parameters) == (table.total.macs, table.total.parameters)
    assert memory == table.total.activation_bytes + table.total.parameter_bytes
    assert arrays.whole_of(("convolutions", "dense", "relu", "batch", "input_side")).tolist() == [1, 1, 1, 2, 16]


def test_the_target_vector_tells_dtype_mode_and_slice_apart():
    graph = tiny_graph()
    full = arrays_of(graph)
    half = arrays_of(graph.with_dtype("fp16"), dtype="fp16")
    trained = arrays_of(graph, mode="training", optimizer="adamw")
    sliced = extract_graph_arrays(Workload(graph, Target(H200.device, parse_slice("mig:3g.71gb", H200.device))))
    vectors = [tuple(arrays.whole_of(TARGET_COLUMNS)) for arrays in (full, half, trained, sliced)]
    assert len(set(vectors)) == 4
    assert half.whole_of(("fp32", "fp16")).tolist() == [0, 1]
    assert trained.whole_of(("inference", "training-adamw")).tolist() == [0, 1]
    assert sliced.whole_of(("sm_fraction",))[0] == 60 / 132
    assert half.whole_of(("peak_tflops",))[0] > full.whole_of(("peak_tflops",))[0]


def test_a_graph_without_nodes_has_empty_arrays():
    graph = Graph.build("none", [], {"x": Tensor("x", (2, 3), kind="input")}, ["x"], ["x"])
    arrays = arrays_of(graph)
    assert len(arrays) == 0
    assert arrays.edges.shape == (2, 0)
    assert arrays.dippm_nodes.shape == (0, 32)
    assert np.isfinite(arrays.whole).all()


def test_names_do_not_matter():
    workload = forked()
    renamed = tuple(replace(node, name=f"other_{node.name}") for node in workload.graph.nodes)
    other = extract_graph_arrays(replace(workload, graph=replace(workload.graph, nodes=renamed)))
    np.testing.assert_array_equal(other.trappm_nodes, extract_graph_arrays(workload).trappm_nodes)


def test_the_schema_is_the_same_in_every_process():
    code = "from lab.papers.graph_networks.arrays import SCHEMA; import sys; sys.stdout.write(SCHEMA)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == SCHEMA
