"""Workflows: what a store already knows of a workload: the same computation, measured on the same device."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from foretell.datasets.parquet_files import find_files, read_columns, read_graphs
from foretell.devices import find_device
from foretell.errors import DataError
from foretell.graph import Graph
from foretell.graph.ir.passes import normalise
from foretell.records import Estimate, Prediction, Workload
from foretell.training.examples.graphs import GRAPH_BATCH, GraphKey
from foretell.units import per_second

RECALLED = ("latency_ms", "memory_mib", "device_memory_mib", "power_w", "energy_j")
# 95 % of workloads that were measured twice differ by less (124 pairs on an H200)
_REPEATS = {"latency_ms": 0.023, "memory_mib": 0.002, "power_w": 0.094, "energy_j": 0.094}
_ROW = ("status", "spec", "input_shape", "mode", "batch_size", "dtype", "optimizer", "latency_source", "device_name")

Row = Mapping[str, Any]


def recall(prediction: Prediction, workload: Workload, graph: Graph, store: Path) -> Prediction:
    """The prediction, its metrics replaced by what ``store`` has measured; ``graph`` is the workload's in fp32.

    Of several measurements the mean counts; the interval spans them, and what one may differ from the next. What was
    not measured stays predicted.
    """
    if not store.is_dir():
        raise DataError(f"There is no folder {store} to look for measurements in.")
    if workload.target.slice is not None:
        return prediction
    rows = [row for row in _rows(store, set(_same(store, graph, workload.mode))) if _fits(row, workload)]
    if not rows:
        return prediction
    known = {name: [float(row[name]) for row in rows if row[name] is not None] for name in RECALLED}
    metrics: dict[str, Any] = {name: _spanned(of, _REPEATS.get(name, 0.0)) for name, of in known.items() if of}
    found = replace(prediction, source="measured", **metrics)
    if found.latency_ms is not None:
        rate = found.latency_ms.inverted(per_second(workload.batch_size, 1.0))
        found = replace(found, throughput_per_s=rate)
    return found


def _spanned(values: Sequence[float], apart: float) -> Estimate:
    return Estimate(sum(values) / len(values), min(values) * (1 - apart), max(values) * (1 + apart))


def _same(store: Path, graph: Graph, mode: str) -> Iterator[GraphKey]:
    """The stored graphs that compute the same; only those with as many parameters are read."""
    wanted = graph.with_batch(GRAPH_BATCH).hash
    for file in find_files(store):
        if file.table != "graphs":
            continue
        columns = ("spec", "input_shape", "mode", "parameters", "campaign_id")
        rows = read_columns(file, columns).to_pylist()
        alike = [
            place
            for place, row in enumerate(rows)
            if not row["campaign_id"] and row["mode"] == mode and row["parameters"] == graph.parameter_count
        ]
        if alike:
            stored = read_graphs(file)
            for place in alike:
                if normalise(stored[place]).hash == wanted:
                    yield GraphKey.of(rows[place])


def _rows(store: Path, keys: set[GraphKey]) -> Iterator[Row]:
    for file in find_files(store) if keys else ():
        if file.table == "measurements":
            for row in read_columns(file, (*_ROW, *RECALLED)).to_pylist():
                if row["status"] == "ok" and GraphKey.of(row) in keys:
                    yield row


def _fits(row: Row, workload: Workload) -> bool:
    """Whether a measured row is of the workload's batch, precision, optimizer, device, and of replays."""
    return (
        row["latency_source"] == workload.target.runtime == "cuda-graph"
        and (row["batch_size"], row["dtype"]) == (workload.batch_size, workload.dtype)
        and (row["optimizer"] or None) == workload.optimizer
        and bool(row["device_name"])
        and find_device(row["device_name"]).id == workload.target.device.id
    )
