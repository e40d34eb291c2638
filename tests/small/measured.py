"""A table of earlier measurements, as campaigns select their workloads from it."""

import pyarrow
import pyarrow.parquet

from foretell.profiling.campaign.plan import Part, Plan, Selection
from foretell.profiling.workload import Workload, shape_text

PART = Part("tiny", 1.0, ("synthetic",), per_model=1)
TINY = tuple(f"synthetic:mlp?act=relu&widths=16-{width}-8" for width in (16, 32, 48, 64, 80, 96))


def row(spec=TINY[0], batch=1, **changes):
    workload = Workload(spec, batch, (16,), "fp32", changes.get("mode", "inference"), "", "synthetic-mlp")
    values = {
        "workload_id": workload.id, "spec": spec, "family": workload.family, "part": "tiny", "mode": workload.mode,
        "optimizer": "", "dtype": "fp32", "batch_size": batch, "input_shape": shape_text(workload.input_shape),
        "status": "ok", "latency_ms": 1.0, "latency_source": "cuda-graph", "noisy": False, "reserved_mib": 10.0,
    }  # fmt: skip
    return values | changes


def write(folder, rows):
    folder.mkdir(parents=True, exist_ok=True)
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), folder / "measurements.parquet")
    return folder


def plan_of(folder, specs=TINY, workloads=10, **changes):
    write(folder, [row(spec, latency_ms=1.0 + 0.5 * number) for number, spec in enumerate(specs)])
    return Plan(1, (PART,), selection=Selection((str(folder),), workloads), **changes)
