"""Lab: graph set: the graphs of all captured workloads as arrays, extracted once and cached in one file.

Workloads of one architecture share edges, operators and most shapes, so each distinct column of an array is stored
once.
"""

import io
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from foretell.devices import find_device
from foretell.errors import DataError, ForetellError
from foretell.files import write_whole
from foretell.predictors.sample import Sample
from foretell.records import Target
from foretell.training.examples.graphs import GraphKey, read_graphs
from foretell.training.examples.samples import fingerprint
from foretell.training.examples.workloads import Row, measured_rows, workload_of
from lab.papers.graph_networks.arrays import ARRAYS_VERSION, ATTRIBUTES, AXES, COSTS, GraphArrays, extract_graph_arrays

# the number of columns of each array of a graph; 32 bits hold all of them exactly
_WIDTHS = (1, 1, len(ATTRIBUTES), AXES, AXES, len(COSTS), 2)
_BYTES = np.dtype(np.float32).itemsize

Log = Callable[[str], None]


def read_graph_set(
    samples: Sequence[Sample], store: Path, device: str, cache: Path, log: Log = lambda _: None
) -> dict[str, GraphArrays]:
    """The graphs of all captured samples by workload, from the cache where there is one."""
    requested = {sample.workload_id for sample in samples if sample.captured}
    file = cache / f"graphs-{device}-{fingerprint(store, device, arrays=ARRAYS_VERSION)}.npz"
    if file.exists():
        return _load(file)
    graphs = _extract(requested, store, device, log)
    missing = requested - set(graphs)
    if missing:
        raise DataError(
            f"{len(missing)} of {len(requested)} workloads have no graph in {store}, such as {min(missing)}; make "
            "them with foretell data graphs."
        )
    data = io.BytesIO()
    np.savez_compressed(data, allow_pickle=False, **pack(graphs))
    write_whole(file, data.getvalue())
    return graphs


def _extract(requested: set[str], store: Path, device: str, log: Log) -> dict[str, GraphArrays]:
    target = Target(find_device(device))
    waiting: defaultdict[GraphKey, list[Row]] = defaultdict(list)
    for row in measured_rows(store).values():
        if row["workload_id"] in requested:
            waiting[GraphKey.of(row)].append(row)
    graphs: dict[str, GraphArrays] = {}
    failures: Counter[str] = Counter()
    for key, _, graph in read_graphs(store, list(waiting)):
        for row in waiting[key]:
            try:
                graphs[row["workload_id"]] = extract_graph_arrays(workload_of(row, graph, target))
            except ForetellError as error:
                failures[str(error)] += 1
                continue
            if len(graphs) % 500 == 0:
                log(f"graphs of {len(graphs)} of {len(requested)} workloads read")
    for reason, number in failures.most_common(3):
        log(f"{number} workloads have no graph: {reason}")
    return graphs


def _columns(graph: GraphArrays) -> Iterable[NDArray[np.float32]]:
    yield graph.operators.astype(np.float32)
    yield graph.classes.astype(np.float32)
    for matrix in (graph.attributes, graph.input_shapes, graph.output_shapes, graph.costs):
        yield from matrix.T
    yield from graph.edges.astype(np.float32)  # float32 holds integers up to 2²⁴ exactly


def pack(graphs: Mapping[str, GraphArrays]) -> dict[str, NDArray[np.generic]]:
    """Graphs as a few arrays, in which each distinct column is stored once; `unpack` reads them."""
    positions: dict[bytes, int] = {}
    index = np.array(
        [
            # a column is identified by its bytes
            [positions.setdefault(column.tobytes(), len(positions)) for column in _columns(graph)]
            for graph in graphs.values()
        ],
        np.int32,
    )
    return {
        "values": np.frombuffer(b"".join(positions), np.float32),
        "sizes": np.array([len(column) // _BYTES for column in positions], np.int32),
        "index": index,
        "whole": np.array([graph.whole for graph in graphs.values()]),
        "ids": np.array(list(graphs)),
    }


def _load(file: Path) -> dict[str, GraphArrays]:
    with np.load(file, allow_pickle=False) as arrays:
        return unpack(arrays)


def unpack(arrays: Mapping[str, NDArray[Any]]) -> dict[str, GraphArrays]:
    """The graphs in arrays that `pack` made, by workload."""
    columns = np.split(arrays["values"], np.cumsum(arrays["sizes"])[:-1])
    index, whole, ids = arrays["index"], arrays["whole"], arrays["ids"].tolist()
    ends = np.cumsum(_WIDTHS)[:-1]
    matrices: dict[tuple[int, ...], NDArray[np.float32]] = {}

    def matrix(numbers: NDArray[np.int32]) -> NDArray[np.float32]:
        """Columns as one array; arrays that several workloads share are in memory once."""
        key = tuple(numbers.tolist())
        if key not in matrices:
            matrices[key] = np.ascontiguousarray(np.stack([columns[number] for number in key], axis=1))
        return matrices[key]

    def graph(row: NDArray[np.int32], facts: NDArray[np.float64]) -> GraphArrays:
        operators, classes, attributes, inputs, outputs, costs, edges = map(matrix, np.split(row, ends))
        return GraphArrays(
            operators[:, 0].astype(np.int16), classes[:, 0].astype(np.int16), attributes, inputs, outputs, costs,
            np.ascontiguousarray(edges.T.astype(np.int64)), facts,
        )  # fmt: skip

    return {workload_id: graph(row, facts) for workload_id, row, facts in zip(ids, index, whole, strict=True)}
