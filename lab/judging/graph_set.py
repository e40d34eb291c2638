"""workflows: the graphs of all captured workloads as arrays, extracted once and kept in one file.

Workloads of one architecture share edges, operators and most shapes: each distinct column of an array is stored once.
"""

import io
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

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

# the columns of a graph, side by side: what is narrower in memory is as exact in 32 bits
_WIDTHS = (1, 1, len(ATTRIBUTES), AXES, AXES, len(COSTS), 2)
_BYTES = np.dtype(np.float32).itemsize

Say = Callable[[str], None]


def read_graph_set(
    samples: Sequence[Sample], store: Path, device: str, cache: Path, say: Say = lambda _: None
) -> dict[str, GraphArrays]:
    """The graphs of all captured samples by their workloads, from the cache where it is true."""
    wanted = {sample.workload_id for sample in samples if sample.captured}
    file = cache / f"graphs-{device}-{fingerprint(store, device, arrays=ARRAYS_VERSION)}.npz"
    if file.exists():
        return _load(file)
    found = _extract(wanted, store, device, say)
    missing = wanted - set(found)
    if missing:
        raise DataError(
            f"{len(missing)} of {len(wanted)} workloads have no graph in {store}, {min(missing)} for one; make them "
            "with foretell data graphs."
        )
    write_whole(file, _packed(found))
    return found


def _extract(wanted: set[str], store: Path, device: str, say: Say) -> dict[str, GraphArrays]:
    target = Target(find_device(device))
    waiting: defaultdict[GraphKey, list[Row]] = defaultdict(list)
    for row in measured_rows(store).values():
        if row["workload_id"] in wanted:
            waiting[GraphKey.of(row)].append(row)
    found: dict[str, GraphArrays] = {}
    failures: Counter[str] = Counter()
    for key, _, graph in read_graphs(store, list(waiting)):
        for row in waiting[key]:
            try:
                found[row["workload_id"]] = extract_graph_arrays(workload_of(row, graph, target))
            except ForetellError as error:
                failures[str(error)] += 1
                continue
            if len(found) % 500 == 0:
                say(f"graphs of {len(found)} of {len(wanted)} workloads read")
    for reason, number in failures.most_common(3):
        say(f"{number} workloads have no graph: {reason}")
    return found


def _columns(graph: GraphArrays) -> Iterable[NDArray[np.float32]]:
    yield graph.operators.astype(np.float32)
    yield graph.classes.astype(np.float32)
    for matrix in (graph.attributes, graph.input_shapes, graph.output_shapes, graph.costs):
        yield from matrix.T
    yield from graph.edges.astype(np.float32)  # whole numbers are exact up to 2²⁴ nodes


def _packed(graphs: dict[str, GraphArrays]) -> bytes:
    places: dict[bytes, int] = {}
    index = np.array(
        [[places.setdefault(column.tobytes(), len(places)) for column in _columns(graph)] for graph in graphs.values()],
        np.int32,
    )
    data = io.BytesIO()
    np.savez_compressed(
        data,
        allow_pickle=False,
        values=np.frombuffer(b"".join(places), np.float32),
        sizes=np.array([len(column) // _BYTES for column in places], np.int32),
        index=index,
        whole=np.array([graph.whole for graph in graphs.values()]),
        ids=np.array(list(graphs)),
    )
    return data.getvalue()


def _load(file: Path) -> dict[str, GraphArrays]:
    with np.load(file, allow_pickle=False) as arrays:
        columns = np.split(arrays["values"], np.cumsum(arrays["sizes"])[:-1])
        index, whole, ids = arrays["index"], arrays["whole"], arrays["ids"].tolist()
    ends = np.cumsum(_WIDTHS)[:-1]
    kept: dict[tuple[int, ...], NDArray[np.float32]] = {}

    def matrix(numbers: NDArray[np.int32]) -> NDArray[np.float32]:
        """Columns side by side; those of several workloads are in memory once."""
        key = tuple(numbers.tolist())
        if key not in kept:
            kept[key] = np.ascontiguousarray(np.stack([columns[number] for number in key], axis=1))
        return kept[key]

    def graph(row: NDArray[np.int32], facts: NDArray[np.float64]) -> GraphArrays:
        operators, classes, attributes, inputs, outputs, costs, edges = map(matrix, np.split(row, ends))
        return GraphArrays(
            operators[:, 0].astype(np.int16), classes[:, 0].astype(np.int16), attributes, inputs, outputs, costs,
            np.ascontiguousarray(edges.T.astype(np.int64)), facts,
        )  # fmt: skip

    return {workload_id: graph(row, facts) for workload_id, row, facts in zip(ids, index, whole, strict=True)}
