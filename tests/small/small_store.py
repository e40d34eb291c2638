"""A store of tiny networks that nobody had to export: measurements, traces tied to nodes, and graphs."""

from pathlib import Path
from typing import Any

from foretell.datasets.parquet_files import TableWriter, arrow_table, rename
from foretell.datasets.schema import TABLES
from foretell.features import extract_units
from foretell.graph.ir.serde import to_document
from foretell.predictors.roofline import RooflinePredictor
from foretell.testing import tiny_graph
from small.small_samples import noise, workload

WIDTHS = (8, 16, 24, 32, 48, 64, 96, 128, 192, 256)
SETTINGS = (
    (1, "fp32", "inference"), (8, "fp32", "inference"), (64, "fp32", "inference"), (16, "fp16", "inference"),
    (256, "fp16", "inference"), (64, "bf16", "inference"), (16, "fp32", "training"), (32, "bf16", "training"),
)  # fmt: skip


def write_table(folder: Path, table: str, rows: list[dict[str, Any]]) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    columns = {name: [row.get(name) for row in rows] for name in TABLES[table].columns}
    with TableWriter(folder / ".part", TABLES[table]) as writer:
        writer.write(arrow_table(TABLES[table], columns))
        rename(writer.finish(), folder / f"{table}.parquet")
    return folder / f"{table}.parquet"


def write_store(folder: Path, widths: tuple[int, ...] = WIDTHS) -> Path:
    """Every unit takes twice its bound; the first workload of each width is traced."""
    rows, kernels, ties, graphs = [], [], [], []
    for width in widths:
        spec = f"synthetic:tiny?width={width}"
        for number, (batch, dtype, mode) in enumerate(SETTINGS):
            work = workload(width, batch, dtype, mode)
            base, units = RooflinePredictor().predict(work), extract_units(work)
            assert base.memory_mib
            assert base.power_w
            name = f"{width}-{batch}-{dtype}-{mode}"
            latency_ms, power_w = float(units.bound_us.sum()) / 500 * noise(name), base.power_w.value * 0.9
            facts = {"campaign_id": "c", "workload_id": name, "spec": spec, "family": f"tiny{width % 3}", "mode": mode}
            rows.append(
                facts
                | {"zoo": "synthetic", "status": "ok", "dtype": dtype, "batch_size": batch, "input_shape": "3x16x16"}
                | {"optimizer": work.optimizer or "", "latency_ms": latency_ms, "latency_source": "cuda-graph"}
                | {"memory_mib": base.memory_mib.value * 1.1, "power_w": power_w, "noisy": False}
                | {"energy_j": power_w * latency_ms / 1000, "device_name": "NVIDIA H200"}
            )
            if number == 0:
                for place, (nodes, bound_us) in enumerate(zip(units.nodes, units.bound_us.tolist(), strict=True)):
                    call = {"campaign_id": "c", "workload_id": name, "op_index": place}
                    kernels.append(
                        call | {"sequence": place, "op": "aten::x", "module": "", "duration_us": 2 * bound_us}
                    )
                    ties.append(call | {"graph_hash": "g", "node": nodes[0]})
        for mode in ("inference", "training"):
            graph = tiny_graph(1, width)
            graphs.append(
                {"spec": spec, "input_shape": "3x16x16", "mode": mode, "campaign_id": "", "graph_hash": graph.hash}
                | {"document": to_document(graph), "batch_size": 1, "nodes": len(graph.nodes)}
                | {"parameters": graph.parameter_count}
            )
    write_table(folder / "one", "measurements", rows)
    write_table(folder / "one", "kernels", [{**kernel, "name_id": 1} for kernel in kernels])
    write_table(folder / "graphs", "kernel_nodes", ties)
    write_table(folder / "graphs", "graphs", graphs)
    return folder
