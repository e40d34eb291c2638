"""Training: examples: every measured workload with the features of its units and what was measured.

Where a workload was traced, the time of each unit is known too: that of the kernels that belong to its nodes, with
forward and backward apart.
"""

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Container, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from foretell.datasets.parquet_files import find_files, read_columns
from foretell.devices.cpu_runs import ONE_THREAD, ONNX_RUNTIME, RUN_COLUMNS, CpuRun
from foretell.errors import ForetellError
from foretell.features import Units, extract_units
from foretell.frontends.torch.composed import EINSUM_STEP
from foretell.graph import Graph, parse_dtype
from foretell.records import Target, Workload
from foretell.training.examples.calls import OPTIMIZER, link_calls
from foretell.training.examples.graphs import GraphKey, read_graphs
from foretell.training.examples.link import Trace, read_traces_of
from foretell.training.examples.sessions import session_units

_COLUMNS = (
    "workload_id", "spec", "zoo", "family", "mode", "optimizer", "dtype", "batch_size", "input_shape", "status",
    "latency_ms", "latency_source", "noisy", "memory_mib", "device_memory_mib", "power_w", "energy_j",
    "host_latency_ms", "device_name", "channels_last", "reference_ms", "measured_at", *RUN_COLUMNS,
)  # fmt: skip
_AUTOCAST = ("bf16", "fp16")
_DAY = len("2026-11-18")

Row = Mapping[str, Any]


@dataclass(frozen=True)
class Example:
    """A measured workload; ``unit_us`` is the traced time of each unit, or None where there is no trace."""

    row: Row
    workload: Workload
    units: Units
    unit_us: NDArray[np.float64] | None


def read_examples(
    store: Path,
    target: Target,
    failures: Counter[str] | None = None,
    wanted: Callable[[Row], bool] = lambda _: True,
    run: CpuRun = ONE_THREAD,
    days: Container[str] | None = None,
) -> Iterator[Example]:
    """Every ``wanted`` workload of a ``run`` below ``store`` that has a graph; one graph is in memory at a time.

    Workloads whose graph cannot take their batch size are counted in ``failures``, by reason.
    """
    rows = {workload_id: row for workload_id, row in measured_rows(store, run, days).items() if wanted(row)}
    campaigns = {row["campaign_id"] for row in rows.values()} if days is not None else None
    traces = {trace.workload_id: trace for trace in read_traces_of(store, run, campaigns)}
    # links are stored for the first traces of one thread: the calls of others are linked here
    links = call_nodes(store) if run == ONE_THREAD and days is None else None
    waiting: defaultdict[GraphKey, list[Row]] = defaultdict(list)
    for row in rows.values():
        waiting[GraphKey.of(row)].append(row)
    for key, _, graph in read_graphs(store, list(waiting)):
        # workloads that differ only in batch size or dtype share a graph
        for row in waiting.pop(key):
            try:
                yield _example(row, graph, target, traces.get(row["workload_id"]), links, run)
            except ForetellError as error:
                if failures is None:
                    raise
                failures[str(error)] += 1


def measured_rows(store: Path, run: CpuRun = ONE_THREAD, days: Container[str] | None = None) -> dict[str, Row]:
    """The first successful measurement of every workload of one kind of run, on some ``days`` (as 2026-11-18) or ever.

    A store has one device: others would hide each other.
    """
    rows: dict[str, Row] = {}
    for file in find_files(store):
        if file.table == "measurements":
            for row in read_columns(file, _COLUMNS).to_pylist():
                is_wanted = days is None or str(row["measured_at"])[:_DAY] in days
                if row["status"] == "ok" and run.has(row) and is_wanted:
                    rows.setdefault(row["workload_id"], row)
    return rows


def call_nodes(store: Path) -> dict[str, dict[int, int]]:
    """By workload the node of every traced call; ``foretell data link`` writes them for one thread of eager PyTorch."""
    links: defaultdict[str, dict[int, int]] = defaultdict(dict)
    for file in find_files(store):
        if file.table == "kernel_nodes":
            columns = read_columns(file, ("workload_id", "op_index", "node")).to_pydict()
            for workload_id, number, node in zip(*columns.values(), strict=True):
                links[workload_id][number] = node
    return dict(links)


def workload_of(row: Row, graph: Graph, target: Target) -> Workload:
    """The workload of a measured row; in training, half precision means autocast over the graph as it is."""
    sized = graph.with_batch(row["batch_size"])
    training = row["mode"] == "training"
    return Workload(
        sized if training else sized.with_dtype(parse_dtype(row["dtype"])),
        target,
        row["dtype"],
        row["mode"],
        (row["optimizer"] or "sgd") if training else None,
        bool(row.get("channels_last")),  # older tables lack it: nothing was
    )


def _example(
    row: Row,
    graph: Graph,
    target: Target,
    trace: Trace | None,
    links: Mapping[str, Mapping[int, int]] | None,
    run: CpuRun,
) -> Example:
    workload = workload_of(row, graph, target)
    if run.runtime == ONNX_RUNTIME:
        return Example(row, workload, *session_units(workload, trace, run))
    units = extract_units(workload)
    if trace is None or (links is not None and trace.workload_id not in links):
        return Example(row, workload, units, None)
    nodes = links[trace.workload_id] if links is not None else _nodes_by_call(graph, trace)
    return Example(row, workload, units, unit_times(workload, units, trace, nodes))


def _nodes_by_call(graph: Graph, trace: Trace) -> dict[int, int]:
    nodes = link_calls(graph, trace.calls)
    return {call.op_index: node for call, node in zip(trace.calls, nodes, strict=True)}


def unit_times(workload: Workload, units: Units, trace: Trace, nodes: Mapping[int, int]) -> NDArray[np.float64]:
    """The traced microseconds of each unit; NaN where its kernels may have overlapped, or are not its alone."""
    spent: Counter[tuple[str, int]] = Counter()
    for call, busy_us in zip(trace.calls, trace.busy_us, strict=True):
        node = nodes[call.op_index]
        spent["optimizer" if node == OPTIMIZER else call.phase, node] += busy_us  # type: ignore[assignment]
    positions = running_positions(workload)
    for node in divided_nodes(workload.graph):
        spent["forward", node] = spent["backward", node] = math.nan  # type: ignore[assignment]
    times = np.zeros(len(units))
    for number, (phase, members) in enumerate(zip(units.phases, units.nodes, strict=True)):
        # the update of the parameters is one unit without nodes
        keys = [OPTIMIZER] if phase == "optimizer" else [positions[member] for member in members]
        times[number] = sum(spent[phase, key] for key in keys)
    return times


def divided_nodes(graph: Graph) -> set[int]:
    """The nodes that are parts of one ``einsum`` of three or more operands: a trace has one call for all of them."""
    step = f"_{EINSUM_STEP}"
    divided = {node.name.rpartition(step)[0] for node in graph.nodes if node.op in ("Einsum", "Mul")} - {""}
    return {
        position
        for position, node in enumerate(graph.nodes)
        if node.name in divided or node.name.rpartition(step)[0] in divided
    }


def running_positions(workload: Workload) -> list[int]:
    """For each node of the graph that runs its position in the graph that was traced."""
    graph = workload.graph
    if workload.running_graph is graph:
        return list(range(len(graph.nodes)))
    known = {node.name: position for position, node in enumerate(graph.nodes)}
    absent = len(graph.nodes)  # a cast that autocast added: no call is linked to it
    return [known.get(node.name, absent) for node in workload.running_graph.nodes]
