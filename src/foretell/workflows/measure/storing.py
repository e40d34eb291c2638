"""Workflows: store one measurement, through the same journal and tables as a campaign."""

import tempfile
import uuid
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from foretell.errors import InputError
from foretell.graph import Graph
from foretell.graph.ir.serde import to_document
from foretell.profiling.campaign.journal import Journal, record_of
from foretell.profiling.single import Request
from foretell.profiling.workload import Workload, shape_text, workload_from_json
from foretell.training.examples.graphs import GRAPH_BATCH, without_origins, write_graphs
from foretell.workflows.data import merge_stores, write_tables

PART = "profile"


def store_single(
    store: str | Path, spec: str, request: Request, result: Mapping[str, Any], graph: Graph | None = None
) -> dict[str, int]:
    """Append the result of one request, also a failure; return the number of new rows by table.

    With the ``graph`` of the model beside it, ``predict --store`` and ``adapt`` know the model again.

    A failure before the input shape was known has no key, so it is not stored.
    """
    if result.get("workload") is None:
        return {}
    workload = workload_from_json(result["workload"])
    # Models of zoos keep their spec; files get one with the hash of their content.
    if workload.spec == request.model:
        workload = replace(workload, spec=spec)
    if ":" not in workload.spec:
        raise InputError(f"{workload.spec!r} cannot be stored: it has no zoo, such as timm:.")
    campaign_id = uuid.uuid4().hex[:12]
    header = {"kind": "campaign", "campaign_id": campaign_id, "runtime": runtime_name(request), "workers": 1}
    line = record_of("measurement", campaign_id, workload, PART, result["status"]) | {"error": result["error"]}
    with tempfile.TemporaryDirectory(prefix="foretell-store-") as folder:
        journal = Journal(Path(folder))
        journal.open()
        try:
            journal.append(header | dict(result["facts"]))
            journal.append(line | dict(result.get("values") or {}))
            if result.get("kernels"):
                trace = {"workload_id": workload.id, "campaign_id": campaign_id, "kernels": result["kernels"]}
                journal.append_trace(trace)
        finally:
            journal.close()
        write_tables(Path(folder))
        if graph is not None:
            _write_graph(Path(folder), graph_line(workload, graph))
        return merge_stores([folder], str(store))


def _write_graph(folder: Path, line: dict[str, Any]) -> None:
    """Write a table with one graph; it has a journal of its own, which belongs to no campaign."""
    journal = Journal(folder / "graphs")
    journal.open()
    try:
        journal.append_trace(line)
    finally:
        journal.close()
    write_graphs(folder / "graphs", folder)


def graph_line(workload: Workload, graph: Graph) -> dict[str, Any]:
    """A graph as a line of a journal, under the key of its measurement."""
    small = without_origins(graph.with_batch(GRAPH_BATCH))
    line: dict[str, Any] = {"kind": "graphs", "spec": workload.spec, "input_shape": shape_text(workload.input_shape)}
    line |= {"mode": workload.mode, "family": workload.family, "graph_hash": small.hash}
    line |= {"batch_size": small.batch_size, "nodes": len(small.nodes), "parameters": small.parameter_count}
    return {**line, "torch": small.metadata.get("torch", ""), "document": to_document(small)}


def runtime_name(request: Request) -> str:
    """The runtime as campaigns write it: eager PyTorch on a CPU is ``cpu``."""
    return "cpu" if (request.device, request.runtime) == ("cpu", "eager") else request.runtime
