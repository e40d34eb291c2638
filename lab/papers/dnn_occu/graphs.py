"""Lab: the graphs that DNN-occu reads: features of nodes and edges, and how far nodes are from each other.

H. Mei et al.: GPU Occupancy Prediction of Deep Learning Models Using Graph Neural Network, CLUSTER 2023, table I. Nodes
have their operator, hyper-parameters, sizes of input and output, and FLOPs; edges have the size of their tensor and the
time to move it. Of the GPU its peak, memory and SMs are known. Sizes are logarithms, because they span six decades.

Not known here: the sizes of temporary tensors inside a library.
"""

import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from foretell.devices import Device, find_device
from foretell.errors import DataError
from foretell.profiling.workload import MODES
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
    """A workload: its nodes and edges with their features."""

    workload_id: str
    nodes: Array
    edges: NDArray[np.int64]  # (2, edges): from, to
    edge_features: Array
    counts: Array | None = None  # how many equal nodes each stands for; one if there are none

    def __len__(self) -> int:
        return len(self.nodes)


def describe_graph(
    workload_id: str, arrays: GraphArrays, dtype: str, device: Device, mode: str = "inference"
) -> OccupancyGraph:
    """The features of table I for one workload."""
    count, edges = len(arrays), arrays.edges
    elements = [_elements(shapes) for shapes in (arrays.input_shapes, arrays.output_shapes)]
    flops = 2.0 * arrays.costs[:, :1]
    gpu = np.log2(1.0 + np.array([device.peak_tflops("fp16", tensor_cores=True), device.memory_gib, device.sms]))
    # what the paper did not need: it counted inference alone
    setting = np.array([*(dtype == name for name in _DTYPES), *(mode == name for name in MODES)], np.float32)
    nodes = np.concatenate(
        [
            arrays.operator_nodes,
            np.log2(1.0 + np.abs(arrays.attributes)),
            np.log2(1.0 + arrays.input_shapes),
            np.log2(1.0 + arrays.output_shapes),
            np.log2(1.0 + np.stack(elements, axis=1)),
            np.log2(1.0 + arrays.costs),
            np.log2(1.0 + flops),
            np.tile(np.concatenate([gpu, setting]), (count, 1)),
        ],
        axis=1,
    ).astype(np.float32)
    moved_bytes = elements[1][edges[0]] * _BYTES.get(dtype, 4)
    moved_us = us(1.0) * moved_bytes / bytes_per_s(device.bandwidth_gb_per_s)
    # all edges are forward ones: the paper has a type for backward edges, which inference lacks
    edge_features = np.stack([np.ones(len(moved_bytes)), np.log2(1.0 + moved_bytes), np.log2(1e-3 + moved_us)], axis=1)
    return OccupancyGraph(workload_id, nodes, edges, edge_features.astype(np.float32))


def _elements(shapes: Array) -> NDArray[np.float64]:
    return np.asarray(np.where(shapes > 0, shapes, 1.0).prod(axis=1, dtype=np.float64))


def read_occupancy_graphs(store: Path, device: str, wanted: Sequence[str]) -> Mapping[str, OccupancyGraph]:
    """The graphs of some measured workloads, by workload."""
    rows = {key: row for key, row in measured_rows(store).items() if key in set(wanted)}
    target, graphs = Target(find_device(device)), dict[str, OccupancyGraph]()
    keys = {GraphKey.of(row) for row in rows.values()}
    for key, _, graph in read_graphs(store, list(keys)):
        for workload_id, row in rows.items():
            if workload_id not in graphs and GraphKey.of(row) == key:
                arrays = extract_graph_arrays(workload_of(row, graph, target))
                graphs[workload_id] = describe_graph(workload_id, arrays, row["dtype"], target.device, row["mode"])
    if not graphs:
        raise DataError(f"None of {len(wanted)} counted workloads has a graph below {store}: foretell data graphs.")
    return graphs


def graphs_to_bytes(graphs: Mapping[str, OccupancyGraph]) -> bytes:
    """Graphs as one file of arrays."""
    parts, data = list(graphs.values()), io.BytesIO()
    np.savez_compressed(
        data,
        allow_pickle=False,
        workload_ids=np.array(list(graphs)),
        sizes=np.array([(len(graph), graph.edges.shape[1]) for graph in parts], np.int64),
        nodes=np.concatenate([graph.nodes for graph in parts]),
        edges=np.concatenate([graph.edges for graph in parts], axis=1),
        edge_features=np.concatenate([graph.edge_features for graph in parts]),
    )
    return data.getvalue()


def graphs_from_bytes(data: bytes) -> list[OccupancyGraph]:
    """The graphs of such a file."""
    with np.load(io.BytesIO(data), allow_pickle=False) as stored:
        nodes, edges, features = stored["nodes"], stored["edges"], stored["edge_features"]
        names, ends = stored["workload_ids"].tolist(), np.cumsum(stored["sizes"], axis=0)
    starts = np.concatenate([np.zeros((1, 2), np.int64), ends[:-1]])
    return [
        OccupancyGraph(name, nodes[a:b], np.ascontiguousarray(edges[:, c:d]), features[c:d])
        for name, (a, c), (b, d) in zip(names, starts.tolist(), ends.tolist(), strict=True)
    ]
