"""Lab: LILOU groups: sub-graphs of several nodes, as TorchInductor makes them, with what their sums took.

A sub-graph has the nodes that foretell's partitioner puts into one kernel, the edges between them, and the bound of
that kernel: what its library call needs, or the bytes that go in and out of a generated one, and a launch. Measured are
whole compiled workloads, and in a trace the time of all library kernels and of all generated ones. Of few workloads
single calls were tied to modules; those that only one sub-graph can be judge single sub-graphs, and teach none. ONNX
Runtime's groups have no time at all.
"""

import io
import json
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from itertools import chain
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from foretell.datasets.parquet_files import find_files
from foretell.devices import find_device
from foretell.errors import DataError
from foretell.features import extract_units
from foretell.features.units import COLUMNS
from foretell.files import write_whole
from foretell.graph import Graph, graph_costs
from foretell.graph.ir.layout import layouts
from foretell.predictors.compiled.inductor import is_channels_last, is_decomposed
from foretell.predictors.compiled.kernels import library_node
from foretell.predictors.fusion.edges import edges_of
from foretell.predictors.fusion.partitioner import Partitioner
from foretell.records import Target, Workload
from foretell.training.compiled import MODEL, judge, read_compiled
from foretell.training.compiled import parts_of as parts_under_inductor
from foretell.training.compiled_calls import Call, module_of, read_calls
from foretell.training.examples.graphs import GraphKey, read_graphs
from foretell.training.examples.workloads import workload_of
from foretell.training.fusion import fold_of
from foretell.units import KILO, bytes_per_s, us
from lab.papers.lilou.features import NodeTable, describe_device, describe_nodes
from lab.papers.lilou.sets import Flags, Numbers, is_checked, key_of

FIRST_SIZE = COLUMNS.index("launches")  # what is before are categories, which a node has already
KNOWN = ("compiled", "channels_last", "decomposed")  # what ours is told of a sub-graph, beside the device
GROUPS_VERSION = 2  # raise it when the description of groups changes
_TABLES = ("compiled", "compiled_kernels", "compiled_calls")
_LOG_BOUND = COLUMNS.index("log_bound_us")
_LEAST_US = 1e-4

Log = Callable[[str], None]
Values = NDArray[np.float64]


@dataclass(frozen=True)
class GroupSet:
    """Distinct sub-graphs, then compiled workloads with the ``members`` of each, every one ``repeats`` times.

    ``sizes`` has the paper's columns of a node first, then foretell's of its unit; ``whole`` those of the device, then
    `KNOWN`. ``library_us`` and ``generated_us`` are NaN where there is no trace; ``foretell_us`` is the prediction of
    foretell's own model, on the same folds. ``called`` are sub-graphs whose single call was timed, ``caller`` the
    workload of each.
    """

    operators: NDArray[np.int16]
    dtypes: NDArray[np.int8]
    sizes: NDArray[np.float32]
    edges: Numbers
    node_counts: Numbers
    edge_counts: Numbers
    whole: NDArray[np.float32]
    bound_us: Values
    library: Flags
    members: Numbers
    repeats: Values
    lengths: Numbers
    latency_us: Values
    library_us: Values
    generated_us: Values
    foretell_us: Values
    fold: Numbers
    checked: Flags
    spec: NDArray[np.str_]
    called: Numbers
    called_us: Values
    caller: Numbers

    @property
    def nodes(self) -> NodeTable:
        """The nodes of all sub-graphs."""
        return NodeTable(self.operators, self.dtypes, self.sizes)


@dataclass(frozen=True)
class Group:
    """One sub-graph."""

    operators: NDArray[np.int16]
    dtypes: NDArray[np.int8]
    sizes: NDArray[np.float32]
    edges: Numbers
    whole: NDArray[np.float32]
    bound_us: float
    is_library: bool

    @property
    def key(self) -> bytes:
        """Equal sub-graphs have equal keys."""
        return b"|".join(np.asarray(value).tobytes() for value in (getattr(self, field.name) for field in fields(self)))


def prepare_groups(store: Path, device: str, cache: Path, log: Log = lambda _: None) -> Path:
    """The file of the groups; it is made if it does not exist."""
    device = find_device(device).id
    files = (table.path for table in find_files(store) if table.table in _TABLES)
    file = cache / f"lilou-groups-{device}-{key_of(store, files, f'groups {GROUPS_VERSION}')}.npz"
    if not file.exists():
        log(f"reading groups for {file}")
        data = io.BytesIO()
        np.savez_compressed(data, allow_pickle=False, **vars(_read_groups(store, device, cache, log)))
        write_whole(file, data.getvalue())
    return file


def load_groups(file: Path) -> GroupSet:
    """The set that `prepare_groups` saved."""
    with np.load(file, allow_pickle=False) as stored:
        return GroupSet(**{name: stored[name] for name in stored.files})


class _Distinct:
    """Distinct sub-graphs, numbered as they come."""

    def __init__(self) -> None:
        self.groups, self._numbers = list[Group](), dict[bytes, int]()

    def number(self, group: Group) -> int:
        """The number of a sub-graph."""
        number = self._numbers.setdefault(group.key, len(self.groups))
        if number == len(self.groups):
            self.groups.append(group)
        return number


def _read_groups(store: Path, device: str, cache: Path, log: Log) -> GroupSet:
    compiled = read_compiled(store, device, cache, log=log)
    foretell_us, all_calls = judge(compiled, log)[MODEL] * KILO, read_calls(store)
    graphs = {key: graph for key, _, graph in read_graphs(store, list({GraphKey.of(row) for row in compiled.rows}))}
    partitioner, target, distinct = Partitioner.shipped(), Target(find_device(device)), _Distinct()
    members, kept, called = list[tuple[Numbers, Numbers]](), list[int](), list[tuple[int, float, int]]()
    for place, row in enumerate(compiled.rows):
        graph = graphs.get(GraphKey.of(row))
        if graph is None:
            continue
        parts = launching(graph, parts_under_inductor(graph, partitioner))
        own = [distinct.number(group) for group in groups_of(workload_of(row, graph, target), parts)]
        tied = tied_calls(graph, parts, all_calls.get(row["workload_id"], ()))
        called += [(own[part], time_us, len(kept)) for part, time_us in tied]
        members.append(np.unique(np.array(own, np.int64), return_counts=True))
        kept.append(place)
        if len(kept) % 50 == 0:
            log(f"{len(kept)} of {len(compiled.rows)} compiled workloads divided")
    if not kept:
        raise DataError(f"No compiled workload below {store} has a graph there.")
    rows, measured = [compiled.rows[place] for place in kept], [compiled.measured[place] for place in kept]
    groups, calls = distinct.groups, np.array(called, np.float64).reshape(-1, 3)
    return GroupSet(
        np.concatenate([group.operators for group in groups]),
        np.concatenate([group.dtypes for group in groups]),
        np.concatenate([group.sizes for group in groups]),
        np.concatenate([group.edges for group in groups], axis=1),
        np.array([len(group.operators) for group in groups], np.int64),
        np.array([group.edges.shape[1] for group in groups], np.int64),
        np.stack([group.whole for group in groups]),
        np.array([group.bound_us for group in groups]),
        np.array([group.is_library for group in groups]),
        np.concatenate([chosen for chosen, _ in members]),
        np.concatenate([counts for _, counts in members]).astype(np.float64),
        np.array([len(chosen) for chosen, _ in members], np.int64),
        np.array([one.latency_us for one in measured]),
        np.array([one.library_us for one in measured]),
        np.array([one.generated_us for one in measured]),
        foretell_us[kept],
        np.array([fold_of(row["spec"]) for row in rows], np.int64),
        np.array([is_checked(row["spec"]) for row in rows]),
        np.array([row["spec"] for row in rows]),
        calls[:, 0].astype(np.int64), calls[:, 1], calls[:, 2].astype(np.int64),
    )  # fmt: skip


def launching(graph: Graph, parts: Sequence[Sequence[int]]) -> list[Sequence[int]]:
    """The parts that launch a kernel; others are views."""
    costs = graph_costs(graph).nodes
    return [part for part in parts if any(costs[node].launches for node in part)]


def tied_calls(graph: Graph, parts: Sequence[Sequence[int]], calls: Sequence[Call]) -> list[tuple[int, float]]:
    """Parts with the time of the call that computes them, where modules tell which one that is.

    A call and a part belong together where as many calls as parts have exactly the same modules: in their order.
    """
    costs = graph_costs(graph).nodes
    waiting: defaultdict[frozenset[str], list[int]] = defaultdict(list)
    for number, part in enumerate(parts):
        waiting[frozenset(graph.nodes[node].module for node in part if costs[node].launches)].append(number)
    times_us: defaultdict[frozenset[str], list[float]] = defaultdict(list)
    for call in calls:
        if call["kernels"]:
            modules = frozenset(module_of(module) for module in json.loads(call["modules"]))
            times_us[modules].append(float(call["duration_us"]))
    return [
        pair
        for modules, own in times_us.items()
        if len(waiting.get(modules, ())) == len(own)
        for pair in zip(waiting[modules], own, strict=True)
        if pair[1] > 0
    ]


def groups_of(workload: Workload, parts: Sequence[Sequence[int]]) -> list[Group]:
    """The sub-graphs of a workload; ``parts`` are the nodes of each."""
    graph, hardware = workload.graph, workload.target.hardware
    units, table = extract_units(workload), describe_nodes(graph, per_item=False)
    unit_of = {node: number for number, nodes in enumerate(units.nodes) for node in nodes}
    last = np.zeros((1, len(COLUMNS)), np.float32)  # a node without a unit of its own: a view
    rows = np.array([unit_of.get(node, len(units)) for node in range(len(graph.nodes))], np.int64)
    shapes = np.concatenate([units.features, last])[rows][:, FIRST_SIZE:]
    sizes = np.concatenate([table.sizes, shapes], axis=1)
    device, channels_last = describe_device(hardware), is_channels_last(graph)
    edges, part_of = edges_of(graph), {node: number for number, part in enumerate(parts) for node in part}
    inside: list[list[tuple[int, int]]] = [[] for _ in parts]
    for maker, reader in edges:
        if part_of.get(maker, -1) == part_of.get(reader, -2):
            inside[part_of[maker]].append((maker, reader))
    launch_us, bandwidth = hardware.device.launch_overhead_us, bytes_per_s(hardware.bandwidth_gb_per_s)
    found = list[Group]()
    for part, own in zip(parts, inside, strict=True):
        nodes = np.array(sorted(part), np.int64)
        place = {node: position for position, node in enumerate(nodes.tolist())}
        known = sorted({unit_of[node] for node in part if node in unit_of})
        library = [unit for unit in known if library_node(graph, units.nodes[unit]) is not None]
        moved_us = us(moved_bytes(graph, part) / bandwidth) + launch_us
        bound_us = sum(float(units.bound_us[unit]) for unit in library) if library else moved_us
        decomposed = any(is_decomposed(graph, graph.nodes[node]) for node in part)
        ends = np.array([(place[a], place[b]) for a, b in own], np.int64).reshape(-1, 2).T
        whole = np.array([*device, 1.0, channels_last, decomposed], np.float32)
        columns = (table.operators[nodes], table.dtypes[nodes], sizes[nodes])
        found.append(Group(*columns, ends, whole, max(bound_us, _LEAST_US), bool(library)))
    return found


def moved_bytes(graph: Graph, part: Sequence[int]) -> int:
    """What a kernel of some nodes reads and writes: each storage once, and what only these nodes use not at all."""
    stored, inside = layouts(graph), set(part)
    made = {name for node in part for name in graph.nodes[node].outputs if name}
    reads: dict[str, int] = {}
    for name in chain.from_iterable(graph.nodes[node].inputs for node in part):
        if name and name not in made:
            storage = stored[name].storage
            reads[storage] = max(reads.get(storage, 0), graph.tensors[name].bytes)
    leaving = {
        name
        for name in made
        if name in graph.outputs or any(reader not in inside for reader in graph.consumers.get(name, ()))
    }
    writes = {stored[name].storage: graph.tensors[name].bytes for name in leaving}
    return sum(reads.values()) + sum(writes.values())
