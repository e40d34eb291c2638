"""Training: links: every traced kernel and the node of the graph that it belongs to.

Idea. A trace numbers the outermost ATen calls of a run that launched kernels; a graph has nodes.
`foretell.training.examples.calls` aligns the two sequences, and so every kernel gets a node. The table ``kernel_nodes``
stores (workload, call) → node. A node of −1 means that no node was found, −2 is the loss function and −3 the optimizer,
which are not part of the model's graph.

The time of a call is the busy time of its kernels, in which kernels that ran at the same time count once. Older traces
do not say how long kernels overlapped; there, a call that may have used several streams (cuDNN does for groups and
layers) has no known time.

Limits: one graph for each combination of model, input shape and mode is linked to all traces of it. How much kernel
time found no node is summed up in `Summary`, by mode and family.
"""

import math
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from foretell.datasets.parquet_files import TableFile, TableWriter, arrow_table, find_files, read_columns, rename
from foretell.datasets.schema import TABLES
from foretell.devices.cpu_runs import ONE_THREAD, RUN_COLUMNS, CpuRun, runs_of_campaigns
from foretell.graph import Graph
from foretell.graph.ir.alignment import NONE
from foretell.training.examples.calls import LOSS, OPTIMIZER, Call, link_calls
from foretell.training.examples.graphs import GraphKey, read_graphs

_TABLE = "kernel_nodes"
_TRACE = ("workload_id", "campaign_id", "op_index", "op", "module", "name_id", "duration_us", "hidden_us")
# cuDNN may run the groups of a convolution and the layers of a recurrent network on several streams
_SPREAD = re.compile(r"conv|lstm|gru|rnn", re.IGNORECASE)
_SPREAD_KERNELS = 4  # so many kernels of one name in a call are a sign of streams; changes of layout take up to three
# in older traces all kernels of these calls have one number; their parts are nodes of their own
_COMPOSED = frozenset({"_transformer_encoder_layer_fwd", "_native_multi_head_attention", "lstm_cell", "gru_cell"})
LINK_KINDS = ("node", "loss", "optimizer", "untied", "no graph")


@dataclass(frozen=True)
class Trace:
    """The calls of one traced workload that launched kernels, and the time of their kernels.

    ``busy_us`` counts overlapping kernels once; it is NaN where kernels may have overlapped and the trace does not say.
    """

    workload_id: str
    campaign_id: str
    key: GraphKey
    family: str
    calls: tuple[Call, ...]
    durations_us: tuple[float, ...]
    busy_us: tuple[float, ...]


@dataclass(frozen=True)
class Link:
    """A trace linked to a graph; ``nodes`` has a position, `NONE`, `LOSS` or `OPTIMIZER` for each call."""

    trace: Trace
    graph_hash: str
    nodes: tuple[int, ...]

    def shares(self) -> dict[str, float]:
        """The share of kernel time by what it was linked to."""
        times: Counter[str] = Counter()
        for node, duration_us in zip(self.nodes, self.trace.durations_us, strict=True):
            times[_link_kind(node)] += duration_us  # type: ignore[assignment]
        total_us = math.fsum(self.trace.durations_us)
        return {kind: times[kind] / total_us if total_us else 0.0 for kind in LINK_KINDS}


def _link_kind(node: int) -> str:
    return {NONE: "untied", LOSS: "loss", OPTIMIZER: "optimizer"}.get(node, "node")


@dataclass
class Summary:
    """Kernel time in microseconds by what it was linked to, in total and by mode, family and phase."""

    total_us: Counter[str] = field(default_factory=Counter)
    by_mode: defaultdict[str, Counter[str]] = field(default_factory=lambda: defaultdict(Counter))
    by_family: defaultdict[str, Counter[str]] = field(default_factory=lambda: defaultdict(Counter))
    by_phase: Counter[str] = field(default_factory=Counter)
    untied: Counter[str] = field(default_factory=Counter)
    worst: list[tuple[float, str, str]] = field(default_factory=list)

    def add(self, trace: Trace, nodes: Sequence[int] | None) -> None:
        """Count one trace; ``nodes`` is None where it has no graph."""
        times: Counter[str] = Counter()
        for position, (call, duration_us) in enumerate(zip(trace.calls, trace.durations_us, strict=True)):
            kind = "no graph" if nodes is None else _link_kind(nodes[position])
            times[kind] += duration_us  # type: ignore[assignment]
            self.by_phase[f"{kind}, {call.phase}"] += duration_us  # type: ignore[assignment]
            if kind == "untied":
                self.untied[call.op] += duration_us  # type: ignore[assignment]
        for counter in (self.total_us, self.by_mode[trace.key.mode], self.by_family[trace.family]):
            counter.update(times)
        self.worst.append((1.0 - tied_share(times), trace.key.mode, trace.key.spec))

    def worst_first(self, count: int) -> list[tuple[float, str, str]]:
        """The traces with the largest share of time that belongs to no node."""
        return sorted(self.worst, reverse=True)[:count]


def tied_share(times: Mapping[str, float]) -> float:
    """The share of time that belongs to a node of the model.

    >>> tied_share({"node": 97.0, "optimizer": 2.0, "untied": 1.0})
    0.97
    """
    total = math.fsum(times.values())
    return times.get("node", 0.0) / total if total else 1.0


def read_traces_of(store: Path, run: CpuRun = ONE_THREAD, campaigns: Container[str] | None = None) -> list[Trace]:
    """The traces below ``store`` of one kind of run, by some ``campaigns`` or by all, the first of each workload."""
    files = find_files(store)
    run_of = run_of_campaigns(files)
    measured: dict[str, dict[str, Any]] = {}
    for file in files:
        if file.table == "measurements":
            columns = ("workload_id", "spec", "input_shape", "mode", "family", "campaign_id")
            for row in read_columns(file, columns).to_pylist():
                measured.setdefault(row["workload_id"], row)
    traces: dict[str, Trace] = {}
    for file in files:
        if file.table == "kernels":
            for workload_id, trace in _traces(file, measured):
                is_wanted = campaigns is None or trace.campaign_id in campaigns
                if is_wanted and run_of.get(trace.campaign_id, ONE_THREAD) == run:
                    traces.setdefault(workload_id, trace)
    return list(traces.values())


def run_of_campaigns(files: Iterable[TableFile]) -> dict[str, CpuRun]:
    """How each campaign ran its models, as its measurements say."""
    tables = (file for file in files if file.table == "measurements")
    return runs_of_campaigns(row for file in tables for row in read_columns(file, RUN_COLUMNS).to_pylist())


def _traces(file: TableFile, measured: Mapping[str, dict[str, Any]]) -> Iterable[tuple[str, Trace]]:
    columns = read_columns(file, _TRACE).to_pydict()
    rows = len(columns["workload_id"])
    campaigns, hidden = columns.get("campaign_id") or [""] * rows, columns.get("hidden_us") or [None] * rows
    runs: defaultdict[tuple[str, str], dict[int, _Launched]] = defaultdict(dict)
    for workload_id, campaign_id, number, op, module, name, duration_us, hidden_us in zip(
        columns["workload_id"], campaigns, columns["op_index"], columns["op"], columns["module"], columns["name_id"],
        columns["duration_us"], hidden, strict=True,
    ):  # fmt: skip
        # kernels of one call are not neighbours in a trace: calls are put together by number
        launched = runs[workload_id, campaign_id].setdefault(number, _Launched(Call(number, op, module)))
        launched.add(name, duration_us, hidden_us)
    for (workload_id, campaign_id), by_number in runs.items():
        row = measured.get(workload_id)
        if row is not None:
            launched_in_order = [by_number[number] for number in sorted(by_number)]
            yield (
                workload_id,
                Trace(
                    workload_id=workload_id,
                    # files of schema version 1 have no campaign in their kernels
                    campaign_id=campaign_id or row.get("campaign_id") or "",
                    key=GraphKey.of(row),
                    family=row["family"] or "",
                    calls=tuple(launched.call for launched in launched_in_order),
                    durations_us=tuple(launched.duration_us for launched in launched_in_order),
                    busy_us=tuple(launched.busy_us() for launched in launched_in_order),
                ),
            )


@dataclass
class _Launched:
    """The kernels that one call launched."""

    call: Call
    names: Counter[int] = field(default_factory=Counter)
    duration_us: float = 0.0
    hidden_us: float | None = 0.0

    def add(self, name: int, duration_us: float, hidden_us: float | None) -> None:
        self.names[name] += 1
        self.duration_us += duration_us
        # one kernel without a known overlap makes the overlap of the call unknown
        self.hidden_us = None if hidden_us is None or self.hidden_us is None else self.hidden_us + hidden_us

    def busy_us(self) -> float:
        """The time in which at least one kernel ran; NaN where it is not known, or not of one node alone."""
        if self.call.op.removeprefix("aten::") in _COMPOSED:
            return math.nan
        if self.hidden_us is not None:
            return self.duration_us - self.hidden_us
        # the name of the call and many kernels of one name: together a sign of streams
        spread = _SPREAD.search(self.call.op) and max(self.names.values()) >= _SPREAD_KERNELS
        return math.nan if spread else self.duration_us


def link_traces(
    traces: Sequence[Trace],
    graphs: Iterable[tuple[GraphKey, str, Graph]],
    progress: Callable[[int, int], None] = lambda *_: None,
) -> tuple[list[Link], Summary]:
    """Link every trace to its graph; one graph is in memory at a time."""
    waiting: defaultdict[GraphKey, list[Trace]] = defaultdict(list)
    for trace in traces:
        waiting[trace.key].append(trace)
    links, summary = [], Summary()
    for key, graph_hash, graph in graphs:
        # `pop`: a store may have a graph twice, and a trace counts once
        for trace in waiting.pop(key, []):
            link = Link(trace, graph_hash, tuple(link_calls(graph, trace.calls)))
            links.append(link)
            summary.add(trace, link.nodes)
            progress(len(links), len(traces))
    for unlinked in waiting.values():
        for trace in unlinked:
            summary.add(trace, None)
    return links, summary


def link_store(
    store: Path, graphs: Path, on_progress: Callable[[int, int], None] = lambda *_: None
) -> tuple[list[Link], Summary]:
    """Link the traces below ``store`` to the graphs below ``graphs``."""
    traces = read_traces_of(store)
    return link_traces(traces, read_graphs(graphs, [trace.key for trace in traces]), on_progress)


def write_links(links: Sequence[Link], folder: Path) -> Path:
    """Write the table ``kernel_nodes`` of ``folder``; it replaces an older one."""
    columns: dict[str, list[object]] = {name: [] for name in TABLES[_TABLE].columns}
    # similar traces next to each other compress better
    for link in sorted(links, key=lambda link: (link.trace.family, link.trace.key)):
        for call, node in zip(link.trace.calls, link.nodes, strict=True):
            columns["campaign_id"].append(link.trace.campaign_id)
            columns["workload_id"].append(link.trace.workload_id)
            columns["graph_hash"].append(link.graph_hash)
            columns["op_index"].append(call.op_index)
            columns["node"].append(node)
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{_TABLE}.parquet"
    with TableWriter(folder / f".{_TABLE}.part", TABLES[_TABLE]) as writer:
        writer.write(arrow_table(TABLES[_TABLE], columns))
        rename(writer.finish(), path)
    return path
