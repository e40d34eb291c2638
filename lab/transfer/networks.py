"""Lab: networks that timm's authors measured on GeForce cards, as workloads.

Graphs are those of our own measurements, where image size and mode are the same: converting the models again would take
most of an hour. A graph is read once for all runs.
"""

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from foretell.devices import find_device
from foretell.graph import Graph
from foretell.graph.ir.passes import autocast, normalise
from foretell.optional import require
from foretell.records import Target, Workload
from foretell.training.examples.graphs import GraphKey, read_graphs, stored_keys

MODELS = 200  # of each run, some at random
_CAST_INSIDE = frozenset(
    {"Softmax", "LogSoftmax", "CumSum", "CumProd", "ReduceSum", "ReduceProd", "ReduceL1", "ReduceL2"}
)


@dataclass(frozen=True)
class Run:
    """One of timm's published runs. They ran under autocast; training steps are always described so."""

    device: str
    file: str
    run: str
    mode: str = "inference"
    channels_last: bool = False
    as_it_ran: bool = False  # inference described with autocast, not as a model cast to fp16
    models: int = MODELS


def workloads(tables: Path, graphs: Path, runs: Sequence[Run]) -> Iterator[tuple[Run, str, Workload, float]]:
    """Each workload with its run, the name of its model and its measured milliseconds."""
    known = stored_keys(graphs)
    rows = {run: _rows(tables, run, known) for run in runs}
    wanted = sorted({key for of_run in rows.values() for key in of_run})
    for key, _, graph in read_graphs(graphs, wanted):
        plain = normalise(graph)
        ready: dict[tuple[int, bool], Graph] = {}  # runs that share a graph share what is known about it
        for run, of_run in rows.items():
            if key in of_run:
                batch = int(of_run[key].batch_size)
                if (batch, run.as_it_ran) not in ready:
                    ready[batch, run.as_it_ran] = _graph(plain.with_batch(batch), run)
                target, optimizer = Target(find_device(run.device)), "sgd" if run.mode == "training" else None
                work = Workload(ready[batch, run.as_it_ran], target, "fp16", run.mode, optimizer, run.channels_last)
                yield run, key.spec, work, float(of_run[key].step_time)


def _rows(tables: Path, run: Run, known: set[GraphKey]) -> dict[GraphKey, Any]:
    """The rows of a run whose graph is known, some at random: the same models in every run that has them."""
    table = require("pandas", extra="pandas", purpose="Reading tables").read_parquet(tables / f"{run.file}.parquet")
    table = table[table["run"] == run.run].rename(columns=lambda name: name.removeprefix("infer_"))
    table = table.rename(columns=lambda name: name.removeprefix("train_"))
    found: dict[GraphKey, Any] = {}
    for row in table.itertuples():
        size = int(row.img_size)
        key = GraphKey(f"timm:{str(row.model).partition('.')[0]}", (3, size, size), run.mode)
        if key in known:
            found.setdefault(key, row)
    order = sorted(found, key=lambda key: hashlib.sha256(key.spec.encode()).digest())
    return {key: found[key] for key in order[: run.models]}


def _graph(graph: Graph, run: Run) -> Graph:
    if run.mode == "training":
        return graph
    return _as_it_ran(graph) if run.as_it_ran else graph.with_dtype("fp16")


def _as_it_ran(graph: Graph) -> Graph:
    """The graph under autocast at inference.

    A batch norm keeps its statistics in fp32; H200's network knows it in one precision. Softmax and reductions read
    half precision and write fp32: PyTorch passes them the dtype to compute in, and no cast runs before them.
    """
    cast = autocast(graph, "fp16")
    tensors, nodes = dict(cast.tensors), []
    casts = {node.outputs[0]: node.inputs[0] for node in cast.nodes if node.op == "Cast"}
    added = {name for name in casts if name not in graph.tensors}
    for node in cast.nodes:
        if node.op in _CAST_INSIDE:
            node = replace(node, inputs=tuple(casts[name] if name in added else name for name in node.inputs))
        nodes.append(node)
        if node.op == "BatchNormalization" and tensors[node.outputs[0]].dtype == "fp16":
            for name in node.inputs[1:]:
                if name and tensors[name].dtype == "fp32":
                    tensors[name] = replace(tensors[name], dtype="fp16")
    read = {name for node in nodes for name in node.inputs}
    kept = [node for node in nodes if node.op != "Cast" or node.outputs[0] not in added or node.outputs[0] in read]
    used = {name for node in kept for name in (*node.inputs, *node.outputs)}
    # the casts that nobody reads any more go, with their tensors
    tensors = {name: each for name, each in tensors.items() if name not in added or name in used}
    return replace(cast, nodes=tuple(kept), tensors=tensors)
