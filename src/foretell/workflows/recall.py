"""Workflows: find measurements of a workload in a store: the same computation on the same device."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from foretell.datasets.parquet_files import find_files, read_columns, read_graphs
from foretell.devices.device_file import is_device
from foretell.graph import Graph
from foretell.graph.ir.passes import normalise
from foretell.records import Estimate, Prediction, Workload
from foretell.training.examples.graphs import GRAPH_BATCH, GraphKey, stored_keys
from foretell.units import per_second, seconds_from_ms

RECALLED = ("latency_ms", "memory_mib", "device_memory_mib", "power_w", "energy_j")
# Of the workloads that were measured twice, 95 % differ by less than this share (124 pairs on an H200).
_REPEATS = {"latency_ms": 0.023, "memory_mib": 0.002, "power_w": 0.094, "energy_j": 0.094}
_ROW = ("status", "spec", "input_shape", "mode", "batch_size", "dtype", "optimizer", "latency_source", "device_name",
        "channels_last", "runtime", "threads", "latency_cv")  # fmt: skip
_CPU_SOURCE = "cpu-timer"
_90_PERCENT, _MOST_SPREAD = 1.645, 0.5

Row = Mapping[str, Any]


def recall(prediction: Prediction, workload: Workload, graph: Graph, store: Path, model: object = None) -> Prediction:
    """Replace the metrics of a prediction by measurements in ``store``; ``graph`` is the workload's graph in fp32.

    A measurement is of the same computation if its graph is in the store and equal, or if the store has no graph of it
    and it has the name of the ``model``, such as ``timm:resnet50``, and its input.

    The value is the mean of all measurements. The interval covers them and the usual difference between repetitions.
    Metrics that were not measured stay predicted.
    """
    # Measurements on slices are in another table.
    if workload.target.slice is not None:
        return prediction
    keys = set(_matching_graphs(store, graph, workload.mode)) or _named(store, graph, workload.mode, model)
    rows = [row for row in _rows(store, keys) if _fits(row, workload)]
    if not rows:
        return prediction
    known = {name: [float(row[name]) for row in rows if row[name] is not None] for name in RECALLED}
    metrics: dict[str, Any] = {
        name: _spanned(values, _spread(name, rows, workload)) for name, values in known.items() if values
    }
    measured = replace(prediction, source="measured", **metrics)
    if measured.latency_ms is not None:
        rate = measured.latency_ms.inverted(per_second(workload.batch_size, 1.0))
        measured = replace(measured, throughput_per_s=rate)
    if "energy_j" not in metrics:
        # the predicted one follows from the predicted latency
        measured = replace(measured, energy_j=_energy(measured.power_w, measured.latency_ms))
    return measured


def _energy(power: Estimate | None, latency: Estimate | None) -> Estimate | None:
    if power is None or latency is None:
        return None
    times = (seconds_from_ms(time_ms) for time_ms in (latency.value, latency.low, latency.high))
    watts = (power.value, power.low, power.high)
    return Estimate(*(time_s * each for time_s, each in zip(times, watts, strict=True)))


def _spread(metric: str, rows: Sequence[Row], workload: Workload) -> float:
    """By how much repetitions differ: on a CPU what its own repetitions show, for they differ from host to host."""
    if workload.target.device.is_cpu and metric == "latency_ms":
        return min(_90_PERCENT * max(float(row["latency_cv"] or 0.0) for row in rows), _MOST_SPREAD)
    return _REPEATS.get(metric, 0.0)


def _named(store: Path, graph: Graph, mode: str, model: object) -> set[GraphKey]:
    """The key of a model of a zoo, if the store has no graph under it."""
    if not isinstance(model, str) or ":" not in model or len(graph.inputs) != 1:
        return set()
    key = GraphKey(model, graph.tensors[graph.inputs[0]].shape[1:], mode)
    return set() if key in stored_keys(store) else {key}


def _spanned(values: Sequence[float], relative_spread: float) -> Estimate:
    return Estimate(sum(values) / len(values), min(values) * (1 - relative_spread), max(values) * (1 + relative_spread))


def _matching_graphs(store: Path, graph: Graph, mode: str) -> Iterator[GraphKey]:
    """The keys of stored graphs that compute the same as ``graph``.

    Reading a graph is slow, so only those with the same number of parameters are compared, by their hashes.
    """
    expected_hash = graph.with_batch(GRAPH_BATCH).hash
    for file in find_files(store):
        if file.table != "graphs":
            continue
        columns = ("spec", "input_shape", "mode", "parameters", "campaign_id")
        rows = read_columns(file, columns).to_pylist()
        candidates = [
            position
            for position, row in enumerate(rows)
            if not row["campaign_id"] and row["mode"] == mode and row["parameters"] == graph.parameter_count
        ]
        if candidates:
            stored = read_graphs(file)
            for position in candidates:
                if normalise(stored[position]).hash == expected_hash:
                    yield GraphKey.of(rows[position])


def _rows(store: Path, keys: set[GraphKey]) -> Iterator[Row]:
    for file in find_files(store) if keys else ():
        if file.table == "measurements":
            for row in read_columns(file, (*_ROW, *RECALLED)).to_pylist():
                if row["status"] == "ok" and GraphKey.of(row) in keys:
                    yield row


def _fits(row: Row, workload: Workload) -> bool:
    """Whether a row has the workload's batch size, dtype, optimizer and device, and how its latency was taken."""
    target = workload.target
    is_replayed = row["latency_source"] == target.runtime == "cuda-graph"
    is_timed = target.device.is_cpu and row["latency_source"] == _CPU_SOURCE and target.run.has(row)
    return (
        (is_replayed or is_timed)
        and (row["batch_size"], row["dtype"]) == (workload.batch_size, workload.dtype)
        and (row["optimizer"] or None) == workload.optimizer
        and bool(row.get("channels_last")) == workload.channels_last
        and bool(row["device_name"])
        and is_device(str(row["device_name"]), workload.target.device)
    )
