"""Counters of the tiny networks of `small_store`: each call launches one kernel whose occupancy follows its grid."""

from pathlib import Path
from typing import Any

import numpy as np

from foretell.training.examples.workloads import measured_rows
from small.small_store import write_store, write_table

ADDED_US = 1.0
NODES = (0, 1, 2, 4)  # of the tiny network: node 3 is a view, which runs nothing
NAMES = ("at::native::vectorized_elementwise_kernel<4>", "splitKreduce_kernel")


def kernel_rows(name: str, width: int) -> list[dict[str, Any]]:
    """Four kernels of a workload; wide networks have larger grids."""
    rows = []
    for place in range(4):
        launch = {"grid_x": width * (place + 1) * 4, "grid_y": 1, "grid_z": 1, "block_x": 128, "block_y": 1}
        rows.append(
            {"campaign_id": "c", "workload_id": name, "sequence": place, "block_z": 1, **launch}
            | {"op_index": place, "op": "aten::x", "module": "", "duration_us": 2.0 + place}
            | {"registers": 32, "shared_bytes": 0, "name_id": 1 + place % 2}
        )
    return rows


def occupancy_pct(row: dict[str, Any]) -> float:
    """Four warps a block, 132 SMs, and nine tenths of what the grid could reach."""
    return min(max(row["grid_x"] / 132, 1.0), 16.0) * 4 / 64 * 90


def write_counts(folder: Path, widths: tuple[int, ...]) -> Path:
    """A store whose inference workloads at batch 1 and 8 in fp32 are traced and counted."""
    write_store(folder, widths)
    traces, counted, wholes, ties = [], [], [], []
    for name, row in measured_rows(folder).items():
        if row["mode"] == "inference" and row["dtype"] == "fp32" and row["batch_size"] in (1, 8):
            kernels = kernel_rows(name, int(name.split("-")[0]) * row["batch_size"])
            # a copy, which no counter sees
            traces += [{**kernels[0], "sequence": -1, "grid_x": 0, "duration_us": 9.0}, *kernels]
            own = [
                {**kernel, "name": NAMES[kernel["name_id"] - 1], "occupancy_pct": occupancy_pct(kernel)}
                | {"duration_us": kernel["duration_us"] + ADDED_US}
                for kernel in kernels
            ]
            counted += own
            times, full = np.array([[kernel["duration_us"], kernel["occupancy_pct"]] for kernel in own]).T
            facts = {key: row[key] for key in ("workload_id", "spec", "family", "mode", "dtype", "batch_size")}
            weighted = float((times * full).sum() / times.sum())
            wholes.append({**facts, "campaign_id": "o", "status": "ok", "kernels": 4, "occupancy_weighted": weighted})
            ties += [
                {"campaign_id": "c", "workload_id": name, "graph_hash": "g", "op_index": place, "node": node}
                for place, node in enumerate(NODES)
            ]
    failed = {**wholes[0], "workload_id": "absent", "status": "run_error", "occupancy_weighted": None}
    write_table(folder / "one", "kernels", traces)
    write_table(folder / "one", "kernel_names", [{"name_id": 1, "name": NAMES[0]}, {"name_id": 2, "name": NAMES[1]}])
    write_table(folder / "graphs", "kernel_nodes", ties)
    write_table(folder / "two", "occupancy", [*wholes, failed])
    write_table(folder / "two", "occupancy_kernels", [{**row, "campaign_id": "o"} for row in counted])
    return folder
