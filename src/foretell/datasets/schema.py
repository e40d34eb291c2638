"""Datasets: the tables, their typed columns and their keys, as plain data.

Since version 2, kernels have the campaign that traced them, and the number of a kernel's name is a hash of it, the same
everywhere. In files of version 1 both are local to a folder; such files can still be read. Since version 4, files store
graphs as columns, in ``graph``; as a table they have a ``document`` in every version. Since version 5, measurements
have the state of the process that took them. Since version 6, slices have power and energy. Since version 7,
measurements say whether images were laid out channels-last (older ones were not), and what cuDNN was allowed; graphs
have what the program held. Since version 8, measurements on a CPU have the time of a reference product, taken beside
them, and the number of threads.

>>> TABLES["slices"].key
('campaign_id', 'workload_id', 'method', 'percent')
>>> name_number("gemm") == name_number("gemm") != name_number("relu")
True
"""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

SCHEMA_VERSION = 8
# Arrow's names of types; a store translates them into its own.
STRING, BOOL, INT16, INT32, INT64, FLOAT32, FLOAT64 = "string", "bool", "int16", "int32", "int64", "float32", "float64"


@dataclass(frozen=True)
class Table:
    """A table: its columns in order, and the columns that identify a row."""

    name: str
    key: tuple[str, ...]
    columns: Mapping[str, str]


_WORKLOAD = {
    "workload_id": STRING,
    "spec": STRING,
    "family": STRING,
    "part": STRING,
    "mode": STRING,
    "optimizer": STRING,
    "dtype": STRING,
    "batch_size": INT32,
    "input_shape": STRING,
}
_OUTCOME = {"status": STRING, "error": STRING, "measured_at": STRING}
_CAMPAIGN = {
    "campaign_id": STRING,
    "device_name": STRING,
    "driver": STRING,
    "host": STRING,
    "host_cpu": STRING,
    "python": STRING,
    "libraries": STRING,
    "code_version": STRING,
    "power_limit_w": FLOAT32,
    "max_clock_mhz": INT32,
    "memory_clock_mhz": INT32,
    "workers": INT32,
    "cudnn_benchmark": BOOL,
    "cudnn_tf32": BOOL,
    "threads": INT32,
}
_MEASUREMENTS = {
    "workload_id": STRING,
    "spec": STRING,
    "zoo": STRING,
    "name": STRING,
    "family": STRING,
    "part": STRING,
    "mode": STRING,
    "optimizer": STRING,
    "dtype": STRING,
    "batch_size": INT32,
    "input_shape": STRING,
    "channels_last": BOOL,
    "runtime": STRING,
    "status": STRING,
    "error": STRING,
    "latency_ms": FLOAT64,
    "latency_mean_ms": FLOAT64,
    "latency_min_ms": FLOAT64,
    "latency_cv": FLOAT32,
    "latency_source": STRING,
    "noisy": BOOL,
    "repeats": INT32,
    "tries": INT32,
    "host_latency_ms": FLOAT64,
    "host_runs": INT32,
    "reference_ms": FLOAT64,
    "memory_mib": FLOAT64,
    "reserved_mib": FLOAT64,
    "baseline_mib": FLOAT64,
    "parameters_mib": FLOAT64,
    "device_memory_mib": FLOAT64,
    "device_memory_source": STRING,
    "nvml_used_mib": FLOAT64,
    "nvml_idle_mib": FLOAT64,
    "process_peak_mib": FLOAT64,
    "power_w": FLOAT64,
    "energy_j": FLOAT64,
    "energy_window_s": FLOAT32,
    "energy_run_ms": FLOAT64,
    "energy_runs": INT32,
    "energy_error": STRING,
    "output_finite": BOOL,
    "process_state": STRING,
    "parameters": INT64,
    "module_macs": FLOAT64,
    "module_outputs": FLOAT64,
    "clock_mhz": INT32,
    "build_s": FLOAT32,
    "measure_s": FLOAT32,
    "alone_s": FLOAT32,
    "measured_at": STRING,
    **_CAMPAIGN,
}
_LAUNCH = {"grid_x": INT32, "grid_y": INT32, "grid_z": INT32, "block_x": INT16, "block_y": INT16, "block_z": INT16}
_KERNELS = {
    "campaign_id": STRING,
    "workload_id": STRING,
    "sequence": INT32,
    "name_id": INT64,
    "duration_us": FLOAT32,
    "hidden_us": FLOAT32,
    **_LAUNCH,
    "registers": INT16,
    "shared_bytes": INT32,
    "occupancy_pct": FLOAT32,
    "op_index": INT32,
    "op": STRING,
    "leaf_op": STRING,
    "module": STRING,
}
_SLICES = {
    "campaign_id": STRING,
    **_WORKLOAD,
    "method": STRING,
    "percent": FLOAT64,
    "sm_count": INT32,
    "latency_ms": FLOAT64,
    "latency_mean_ms": FLOAT64,
    "latency_min_ms": FLOAT64,
    "latency_cv": FLOAT32,
    "noisy": BOOL,
    "repeats": INT32,
    "tries": INT32,
    "clock_mhz": INT32,
    "alone_s": FLOAT32,
    "power_w": FLOAT64,
    "energy_j": FLOAT64,
    "energy_window_s": FLOAT32,
    "energy_runs": INT32,
    **_OUTCOME,
}
_COLOCATION = {
    "campaign_id": STRING,
    "group_id": STRING,
    "method": STRING,
    "members": INT32,
    "member": INT32,
    **_WORKLOAD,
    "percentage": FLOAT32,  # of the multiprocessors, under MPS; absent in older rows, which had no limits
    "solo_ms": FLOAT64,
    "solo_median_ms": FLOAT64,
    "solo_cv": FLOAT32,
    "together_ms": FLOAT64,
    "together_median_ms": FLOAT64,
    "together_cv": FLOAT32,
    "repeats": INT32,
    "overlap_s": FLOAT32,
    "clock_mhz": INT32,
    # on a CPU: a fixed product of matrices, timed just before the step was timed alone, and together with others
    "solo_reference_ms": FLOAT64,
    "reference_ms": FLOAT64,
    **_OUTCOME,
}
_MIXES = {
    "campaign_id": STRING,
    "mix_id": STRING,
    "method": STRING,
    "max_jobs": INT32,
    "jobs": INT32,
    "job": INT32,
    **_WORKLOAD,
    "percentage": FLOAT32,
    "solo_ms": FLOAT64,
    "steps": INT32,
    "arrival_s": FLOAT64,
    "start_s": FLOAT64,
    "end_s": FLOAT64,
    **_OUTCOME,
}
_OCCUPANCY = {
    "campaign_id": STRING,
    **_WORKLOAD,
    "kernels": INT32,
    "kernel_ms": FLOAT64,
    "occupancy_mean": FLOAT32,
    "occupancy_weighted": FLOAT32,
    "profile_s": FLOAT32,
    **_OUTCOME,
}
_OCCUPANCY_KERNELS = {
    "campaign_id": STRING,
    "workload_id": STRING,
    "sequence": INT32,
    "name": STRING,
    "duration_us": FLOAT32,
    "occupancy_pct": FLOAT32,
    **_LAUNCH,
}
_COMPILED = {
    "campaign_id": STRING,
    **_WORKLOAD,
    "eager_ms": FLOAT64,
    "eager_cv": FLOAT32,
    "compiled_ms": FLOAT64,
    "compiled_cv": FLOAT32,
    "kernels": INT32,
    "kernel_ms": FLOAT64,
    "compile_s": FLOAT32,
    "graph_breaks": INT32,
    "clock_mhz": INT32,
    **_OUTCOME,
}
_COMPILED_KERNELS = {
    "campaign_id": STRING,
    "workload_id": STRING,
    "sequence": INT32,
    "name": STRING,
    "duration_us": FLOAT32,
    "hidden_us": FLOAT32,
    **_LAUNCH,
}
_COMPILED_CALLS = {
    "campaign_id": STRING,
    "workload_id": STRING,
    "call": INT32,
    "library": BOOL,
    "name": STRING,
    "nodes": STRING,
    "operators": STRING,
    "modules": STRING,
    "sizes": STRING,
    "reduced": INT64,
    "reads": STRING,
    "writes": STRING,
    "read_bytes": INT64,
    "written_bytes": INT64,
    "loads": INT32,
    "stores": INT32,
    "arguments": STRING,
    "first_kernel": INT32,
    "kernels": INT32,
    "duration_us": FLOAT32,
}
_GRAPHS = {
    "graph_hash": STRING,
    "campaign_id": STRING,
    "spec": STRING,
    "input_shape": STRING,
    "batch_size": INT32,
    "mode": STRING,
    "nodes": INT32,
    "parameters": INT64,
    "torch": STRING,
    "document": STRING,
}
_FUSION_GRAPHS = {
    "campaign_id": STRING,
    "fusion_id": STRING,
    "backend": STRING,
    "backend_version": STRING,
    "spec": STRING,
    "family": STRING,
    "batch_size": INT32,
    "input_shape": STRING,
    "dtype": STRING,
    "mode": STRING,
    "graph_hash": STRING,
    "nodes": INT32,
    "groups": INT32,
    "edges": INT32,
    "fused_edges": INT32,
    "compile_s": FLOAT32,
    **_OUTCOME,
    "host": STRING,
}
_FUSION_NODES = {
    "campaign_id": STRING,
    "fusion_id": STRING,
    "node": INT32,
    "op_type": STRING,
    "group": INT32,
    "kernel": STRING,
}
_FUSION_EDGES = {"campaign_id": STRING, "fusion_id": STRING, "source": INT32, "target": INT32, "fused": BOOL}
_KERNEL_NODES = {"campaign_id": STRING, "workload_id": STRING, "graph_hash": STRING, "op_index": INT32, "node": INT32}


def _tables(*tables: Table) -> Mapping[str, Table]:
    return MappingProxyType({table.name: table for table in tables})


# The order in which one store is copied into another: rows come after the rows that they refer to.
TABLES: Mapping[str, Table] = _tables(
    Table("campaigns", ("campaign_id",), _CAMPAIGN | {"runtime": STRING, "date": STRING}),
    Table("measurements", ("campaign_id", "workload_id"), _MEASUREMENTS),
    Table("kernel_names", ("name_id",), {"name_id": INT64, "name": STRING}),
    Table("kernels", ("campaign_id", "workload_id", "sequence"), _KERNELS),
    Table("graphs", ("graph_hash", "spec", "input_shape", "mode"), _GRAPHS),
    Table("kernel_nodes", ("workload_id", "op_index"), _KERNEL_NODES),
    Table("slices", ("campaign_id", "workload_id", "method", "percent"), _SLICES),
    Table("colocation", ("campaign_id", "group_id", "member"), _COLOCATION),
    Table("mixes", ("campaign_id", "mix_id", "job"), _MIXES),
    Table("occupancy", ("campaign_id", "workload_id"), _OCCUPANCY),
    Table("occupancy_kernels", ("campaign_id", "workload_id", "sequence"), _OCCUPANCY_KERNELS),
    Table("compiled", ("campaign_id", "workload_id"), _COMPILED),
    Table("compiled_kernels", ("campaign_id", "workload_id", "sequence"), _COMPILED_KERNELS),
    Table("compiled_calls", ("campaign_id", "workload_id", "call"), _COMPILED_CALLS),
    Table("fusion_graphs", ("campaign_id", "fusion_id"), _FUSION_GRAPHS),
    Table("fusion_nodes", ("campaign_id", "fusion_id", "node"), _FUSION_NODES),
    Table("fusion_edges", ("campaign_id", "fusion_id", "source", "target"), _FUSION_EDGES),
)
# name → the query that it shows
VIEWS: Mapping[str, str] = MappingProxyType(
    {
        "training": "SELECT * FROM measurements WHERE mode = 'training'",
        "llm": "SELECT * FROM measurements WHERE mode IN ('prefill', 'decode')",
        # graphs with a campaign are the input of a compiler and have other nodes
        "measured_graphs": "SELECT m.*, g.graph_hash FROM measurements m LEFT JOIN (SELECT DISTINCT spec, input_shape, "
        "mode, graph_hash FROM graphs WHERE campaign_id IS NULL) g USING (spec, input_shape, mode)",
    }
)


def name_number(name: str) -> int:
    """The number of a kernel's name, the same in every folder: 63 bits of a hash, so collisions do not occur."""
    return int.from_bytes(hashlib.sha256(name.encode()).digest()[:8], "big") >> 1
