"""Sub-graphs of several nodes, as a compiler makes them."""

import json

import numpy as np
import pytest

from foretell.devices import find_device
from foretell.predictors.fusion.edges import edges_of
from foretell.records import Target, Workload
from foretell.testing import tiny_graph
from foretell.units import bytes_per_s, us
from lab.papers.lilou.features import DEVICE_COLUMNS, SIZES, describe_nodes
from lab.papers.lilou.groups import FIRST_SIZE, KNOWN, groups_of, launching, moved_bytes, tied_calls

WORKLOAD = Workload(tiny_graph(), Target(find_device("h200")))


def pair() -> tuple[int, int]:
    """A maker and a reader, neither of them a product."""
    nodes = WORKLOAD.graph.nodes
    plain = [ends for ends in edges_of(WORKLOAD.graph) if not {nodes[end].op for end in ends} & {"Conv", "Gemm"}]
    return plain[0]


def test_a_group_has_its_nodes_and_the_edges_between_them() -> None:
    graph, ends = WORKLOAD.graph, pair()
    alone = [(node,) for node in range(len(graph.nodes)) if node not in ends]
    groups = groups_of(WORKLOAD, [*alone, ends])
    assert [len(group.operators) for group in groups[:-1]] == [1] * (len(groups) - 1)
    assert groups[-1].edges.tolist() == [[0], [1]]
    assert not groups[-1].is_library
    assert np.array_equal(groups[-1].operators, describe_nodes(graph).operators[list(ends)])
    assert groups[-1].sizes.shape == (2, len(SIZES) + len(groups[0].sizes[0]) - len(SIZES))
    assert groups[-1].whole.shape == (len(DEVICE_COLUMNS) + len(KNOWN),)
    assert FIRST_SIZE > 0
    assert sum(group.is_library for group in groups) == sum(node.op in ("Conv", "Gemm") for node in graph.nodes)


def test_what_stays_inside_is_not_moved() -> None:
    graph, (maker, reader) = WORKLOAD.graph, pair()
    between = graph.tensors[graph.nodes[maker].outputs[0]].bytes
    apart = moved_bytes(graph, [maker]) + moved_bytes(graph, [reader])
    assert moved_bytes(graph, [maker, reader]) == apart - 2 * between
    hardware = WORKLOAD.target.hardware
    (group,) = groups_of(WORKLOAD, [(maker, reader)])
    moved_us = us(moved_bytes(graph, [maker, reader]) / bytes_per_s(hardware.bandwidth_gb_per_s))
    assert group.bound_us == pytest.approx(moved_us + hardware.device.launch_overhead_us)


def test_equal_groups_have_one_key() -> None:
    groups = groups_of(WORKLOAD, [(node,) for node in range(len(WORKLOAD.graph.nodes))])
    again = groups_of(WORKLOAD, [(node,) for node in range(len(WORKLOAD.graph.nodes))])
    assert [group.key for group in groups] == [group.key for group in again]
    assert len({group.key for group in groups}) > 1


def call(module: str, time_us: float) -> dict[str, object]:
    return {"kernels": 1, "modules": json.dumps([module]), "duration_us": time_us}


def test_calls_are_tied_where_modules_tell_one_part() -> None:
    graph = WORKLOAD.graph
    parts = launching(graph, [(node,) for node in range(len(graph.nodes))])
    modules = [graph.nodes[node].module for (node,) in parts]
    single = next(number for number, module in enumerate(modules) if modules.count(module) == 1)
    name = f"L['self'].{modules[single]}"
    assert tied_calls(graph, parts, [call(name, 5.0), call("L['self'].elsewhere", 1.0)]) == [(single, 5.0)]
    assert tied_calls(graph, parts, [call(name, 5.0), call(name, 6.0)]) == []  # more calls than parts


def test_views_are_no_kernels() -> None:
    graph = WORKLOAD.graph
    views = [number for number, node in enumerate(graph.nodes) if node.op in ("Flatten", "Reshape")]
    assert launching(graph, [(number,) for number in views]) == []
