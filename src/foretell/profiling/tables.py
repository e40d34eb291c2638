"""Profiling: a journal becomes three Parquet tables: measurements, kernels, and the names of kernels."""

import json
import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from foretell.errors import MeasurementError
from foretell.optional import require
from foretell.profiling.journal import Line, read_records, read_traces
from foretell.profiling.workload import parse_spec, shape_text

SCHEMA_VERSION = "1"
MEASUREMENTS, KERNELS, KERNEL_NAMES = "measurements.parquet", "kernels.parquet", "kernel_names.parquet"

_MEASUREMENTS: Mapping[str, str] = {
    "workload_id": "string",
    "spec": "string",
    "zoo": "string",
    "name": "string",
    "family": "string",
    "part": "string",
    "mode": "string",
    "optimizer": "string",
    "dtype": "string",
    "batch_size": "int32",
    "input_shape": "string",
    "runtime": "string",
    "status": "string",
    "error": "string",
    "latency_ms": "float64",
    "latency_mean_ms": "float64",
    "latency_min_ms": "float64",
    "latency_cv": "float32",
    "latency_source": "string",
    "noisy": "bool",
    "repeats": "int32",
    "tries": "int32",
    "host_latency_ms": "float64",
    "host_runs": "int32",
    "memory_mib": "float64",
    "reserved_mib": "float64",
    "baseline_mib": "float64",
    "parameters_mib": "float64",
    "device_memory_mib": "float64",
    "device_memory_source": "string",
    "nvml_used_mib": "float64",
    "nvml_idle_mib": "float64",
    "process_peak_mib": "float64",
    "power_w": "float64",
    "energy_j": "float64",
    "energy_window_s": "float32",
    "energy_run_ms": "float64",
    "energy_runs": "int32",
    "energy_error": "string",
    "output_finite": "bool",
    "parameters": "int64",
    "module_macs": "float64",
    "module_outputs": "float64",
    "clock_mhz": "int32",
    "build_s": "float32",
    "measure_s": "float32",
    "alone_s": "float32",
    "measured_at": "string",
    "campaign_id": "string",
    "device_name": "string",
    "driver": "string",
    "host": "string",
    "host_cpu": "string",
    "python": "string",
    "libraries": "string",
    "code_version": "string",
    "power_limit_w": "float32",
    "max_clock_mhz": "int32",
    "memory_clock_mhz": "int32",
    "workers": "int32",
}
_KERNELS: Mapping[str, str] = {
    "workload_id": "string",
    "sequence": "int32",
    "name_id": "int32",
    "duration_us": "float32",
    "grid_x": "int32",
    "grid_y": "int32",
    "grid_z": "int32",
    "block_x": "int16",
    "block_y": "int16",
    "block_z": "int16",
    "registers": "int16",
    "shared_bytes": "int32",
    "occupancy_pct": "float32",
    "op_index": "int32",
    "op": "string",
    "leaf_op": "string",
    "module": "string",
}
_NAMES: Mapping[str, str] = {"name_id": "int32", "name": "string"}


def write_tables(folder: Path) -> dict[str, int]:
    """Write the tables of the journal in ``folder``; returns how many rows each has."""
    measurements = measurement_rows(read_records(folder))
    kernels, names = kernel_columns(read_traces(folder))
    _write(folder / MEASUREMENTS, _columns(measurements, _MEASUREMENTS), _MEASUREMENTS)
    _write(folder / KERNELS, kernels, _KERNELS)
    _write(folder / KERNEL_NAMES, {"name_id": list(range(len(names))), "name": names}, _NAMES)
    traces = len(set(kernels["workload_id"]))
    return {"measurements": len(measurements), "traces": traces, "kernels": len(kernels["op"]), "names": len(names)}


def measurement_rows(lines: Iterable[Line]) -> list[dict[str, Any]]:
    """One row a record, with the facts of its campaign; the first record of a workload in a campaign counts."""
    campaigns: dict[str, dict[str, Any]] = {}
    rows: dict[tuple[str, str], dict[str, Any]] = {}
    for line in lines:
        values: dict[str, Any] = dict(line)
        kind = values.pop("kind")
        if kind == "campaign":
            values["libraries"] = json.dumps(values.get("libraries", {}), sort_keys=True)
            campaigns[str(values["campaign_id"])] = values
            continue
        spec = parse_spec(values["spec"])
        values |= {"zoo": spec.zoo, "name": spec.name, "input_shape": shape_text(tuple(values["input_shape"]))}
        row = campaigns.get(str(values["campaign_id"]), {}) | values
        rows.setdefault((row["campaign_id"], row["workload_id"]), row)
    return list(rows.values())


def kernel_columns(traces: Iterable[Line]) -> tuple[dict[str, list[Any]], list[str]]:
    """The kernels of all traces in columns, and the names they refer to."""
    columns: dict[str, list[Any]] = {name: [] for name in _KERNELS}
    numbers: dict[str, int] = {}
    seen: set[object] = set()
    for trace in traces:
        kernels: Any = trace["kernels"]
        if trace["workload_id"] in seen:
            continue
        seen.add(trace["workload_id"])
        count = len(kernels["name"])
        columns["workload_id"] += [trace["workload_id"]] * count
        columns["sequence"] += range(count)
        columns["name_id"] += [numbers.setdefault(name, len(numbers)) for name in kernels["name"]]
        for axis, letter in enumerate("xyz"):
            for shape in ("grid", "block"):
                sizes = [dims[axis] if axis < len(dims) else 0 for dims in kernels[shape]]
                columns[f"{shape}_{letter}"] += sizes
        for name in (
            "duration_us",
            "registers",
            "shared_bytes",
            "occupancy_pct",
            "op_index",
            "op",
            "leaf_op",
            "module",
        ):
            columns[name] += kernels[name]
    return columns, list(numbers)


def _columns(rows: Sequence[Mapping[str, Any]], types: Mapping[str, str]) -> dict[str, list[Any]]:
    return {name: [row.get(name) for row in rows] for name in types}


def _write(path: Path, columns: Mapping[str, list[Any]], types: Mapping[str, str]) -> None:
    arrow = require("pyarrow", extra="profile", purpose="Writing Parquet")
    parquet = require("pyarrow.parquet", extra="profile", purpose="Writing Parquet")
    schema = arrow.schema(
        [(name, arrow.type_for_alias(kind)) for name, kind in types.items()],
        metadata={"schema_version": SCHEMA_VERSION},
    )
    arrays = [arrow.array(columns[name], type=schema.field(name).type) for name in types]
    partial = path.with_name(path.name + ".part")
    try:
        parquet.write_table(
            arrow.Table.from_arrays(arrays, schema=schema), partial, compression="zstd", compression_level=9
        )
        os.replace(partial, path)
    except OSError as error:
        partial.unlink(missing_ok=True)
        raise MeasurementError(f"Cannot write {path}: {error}. The journal beside it is whole.") from error


def read_done(path: Path) -> tuple[list[dict[str, Any]], set[str]]:
    """The rows already measured in a folder or a Parquet file, and the workloads that already have a trace."""
    if not path.exists():
        raise MeasurementError(f"There is nothing at {path} to skip.")
    if path.is_dir():
        rows = measurement_rows(read_records(path))
        traced = {str(trace["workload_id"]) for trace in read_traces(path)}
        for table, found in ((MEASUREMENTS, rows), (KERNELS, traced)):
            if (path / table).exists():
                read = _read(path / table)
                if isinstance(found, set):
                    found.update(row["workload_id"] for row in read)
                else:
                    found.extend(read)
        return rows, traced
    rows = _read(path)
    return (rows, set()) if "status" in (rows[0] if rows else {}) else ([], {row["workload_id"] for row in rows})


def _read(path: Path) -> list[dict[str, Any]]:
    parquet = require("pyarrow.parquet", extra="profile", purpose="Reading Parquet")
    wanted = [
        "workload_id",
        "status",
        "spec",
        "batch_size",
        "input_shape",
        "dtype",
        "mode",
        "optimizer",
        "family",
        "part",
        "energy_j",
    ]
    try:
        names = set(parquet.read_schema(path).names)
        rows: list[dict[str, Any]] = parquet.read_table(path, columns=[n for n in wanted if n in names]).to_pylist()
    except (OSError, ValueError) as error:
        raise MeasurementError(f"Cannot read {path}: {error}. Remove it or restore it; nothing was changed.") from error
    return rows
