"""Lab: the graphs that DNN-occu reads: features of nodes and edges, and how far nodes are from each other.

H. Mei et al.: GPU Occupancy Prediction of Deep Learning Models Using Graph Neural Network, CLUSTER 2023, table I. Nodes
have their operator, hyper-parameters, sizes of input and output, and FLOPs; edges have the size of their tensor and the
time to move it. Of the GPU its peak, memory and SMs are known. Sizes are logarithms, because they span six decades.

Not known here: the sizes of temporary tensors inside a library.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from foretell.devices import Device, find_device
from foretell.errors import DataError
from foretell.records import Target
from foretell.training.examples.graphs import GraphKey, read_graphs
from foretell.training.examples.workloads import measured_rows, workload_of
from foretell.units import bytes_per_s, us
from lab.papers.graph_networks.arrays import GraphArrays, extract_graph_arrays

FARTHEST = 8  # steps between two nodes; farther ones count as this far
MOST_LINKS = 8  # edges of a node; more count as so many
_DTYPES = ("fp32", "fp16", "bf16")
_BYTES = {"fp32": 4, "fp16": 2, "bf16": 2}

Array = NDArray[np.float32]


@dataclass(frozen=True)
class OccupancyGraph:
    """A workload: nodes and edges with features, the steps between nodes, and the occupancy that was counted."""

    workload_id: str
    nodes: Array
    edges: NDArray[np.int64]  # (2, edges): from, to
    edge_features: Array
    links: NDArray[np.int64]  # edges of each node, at most `MOST_LINKS`
    steps: NDArray[np.int8]  # between two nodes along edges of any direction, at most `FARTHEST`

    def __len__(self) -> int:
        return len(self.nodes)


def describe_graph(workload_id: str, arrays: GraphArrays, dtype: str, device: Device) -> OccupancyGraph:
    """The features of table I for one workload."""
    count, edges = len(arrays), arrays.edges
    elements = [_elements(shapes) for shapes in (arrays.input_shapes, arrays.output_shapes)]
    flops = 2.0 * arrays.costs[:, :1]
    gpu = np.log2(1.0 + np.array([device.peak_tflops("fp16", tensor_cores=True), device.memory_gib, device.sms]))
    precision = np.array([dtype == name for name in _DTYPES], np.float32)
    nodes = np.concatenate(
        [
            arrays.operator_nodes,
            np.log2(1.0 + np.abs(arrays.attributes)),
            np.log2(1.0 + arrays.input_shapes),
            np.log2(1.0 + arrays.output_shapes),
            np.log2(1.0 + np.stack(elements, axis=1)),
            np.log2(1.0 + arrays.costs),
            np.log2(1.0 + flops),
            np.tile(np.concatenate([gpu, precision]), (count, 1)),
        ],
        axis=1,
    ).astype(np.float32)
    moved_bytes = elements[1][edges[0]] * _BYTES.get(dtype, 4)
    moved_us = us(1.0) * moved_bytes / bytes_per_s(device.bandwidth_gb_per_s)
    # all edges are forward ones: the paper has a type for backward edges, which inference lacks
    edge_features = np.stack([np.ones(len(moved_bytes)), np.log2(1.0 + moved_bytes), np.log2(1e-3 + moved_us)], axis=1)
    links = np.minimum(np.bincount(edges.ravel(), minlength=count), MOST_LINKS)
    return OccupancyGraph(
        workload_id, nodes, edges, edge_features.astype(np.float32), links.astype(np.int64), steps_between(count, edges)
    )


def _elements(shapes: Array) -> NDArray[np.float64]:
    return np.asarray(np.where(shapes > 0, shapes, 1.0).prod(axis=1, dtype=np.float64))


def steps_between(count: int, edges: NDArray[np.int64]) -> NDArray[np.int8]:
    """The length of the shortest way between each two nodes, whatever the direction of its edges.

    >>> steps_between(3, np.array([[0, 1], [1, 2]])).tolist()
    [[0, 1, 2], [1, 0, 1], [2, 1, 0]]
    """
    neighbours: list[set[int]] = [set() for _ in range(count)]
    for start, end in edges.T.tolist():
        neighbours[start].add(end)
        neighbours[end].add(start)
    steps = np.full((count, count), FARTHEST, np.int8)
    for node in range(count):
        steps[node, node] = 0
        seen, border = {node}, {node}
        for distance in range(1, FARTHEST):
            border = {other for one in border for other in neighbours[one]} - seen
            if not border:
                break
            seen |= border
            steps[node, list(border)] = distance
    return steps


def read_occupancy_graphs(store: Path, device: str, wanted: Sequence[str]) -> Mapping[str, OccupancyGraph]:
    """The graphs of some measured workloads, by workload."""
    rows = {key: row for key, row in measured_rows(store).items() if key in set(wanted)}
    target, graphs = Target(find_device(device)), dict[str, OccupancyGraph]()
    keys = {GraphKey.of(row) for row in rows.values()}
    for key, _, graph in read_graphs(store, list(keys)):
        for workload_id, row in rows.items():
            if workload_id not in graphs and GraphKey.of(row) == key:
                arrays = extract_graph_arrays(workload_of(row, graph, target))
                graphs[workload_id] = describe_graph(workload_id, arrays, row["dtype"], target.device)
    if not graphs:
        raise DataError(f"None of {len(wanted)} counted workloads has a graph below {store}: foretell data graphs.")
    return graphs
