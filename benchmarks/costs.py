"""Compare foretell's parameters and MACs with timm's published table, model by model, and explain every exception.

    python benchmarks/costs.py ../shared/data/timm --workers 2 --report reports/costs.md

Resumable: graphs are costed in worker processes and each result is appended to ``--results`` as it comes.
"""

import argparse
import json
import multiprocessing
import os
import sys
import time
from pathlib import Path
from typing import Any

PARAMETER_ROUNDING = 0.005  # the table prints millions with two decimals
GMAC_ROUNDING = 0.005


def published(folder: Path) -> dict[tuple[str, int], dict[str, float]]:
    """For every model and image size the table's parameters and GMACs (several runs agree; the newest wins)."""
    import pyarrow.parquet as parquet

    rows: dict[tuple[str, int], dict[str, float]] = {}
    for name in ("infer_cpu", "infer_rtx3090", "infer_rtx4090"):
        table = parquet.read_table(folder / f"{name}.parquet").to_pylist()
        for row in sorted(table, key=lambda r: r["run"]):
            if row["infer_gmacs"] is not None and row["param_count"] is not None:
                rows[row["model"], int(row["infer_img_size"])] = {"parameters_m": row["param_count"], "gmacs": row["infer_gmacs"]}
    return rows


def cost_one(task: tuple[str, int]) -> dict[str, Any]:
    """Parameters and MACs of one model by foretell, MACs by operator beside them."""
    import warnings

    warnings.simplefilter("ignore")
    import torch

    torch.set_num_threads(1)
    from foretell.frontends.request import InputSpec, ModelRequest
    from foretell.frontends.timm_zoo import TimmFrontend
    from foretell.graph import graph_costs

    model, size = task
    started = time.perf_counter()
    try:
        graph = TimmFrontend().load(ModelRequest(f"timm:{model}", inputs=(InputSpec(None, (size,)),))).with_batch(1)
        table = graph_costs(graph)
    except Exception as error:  # noqa: BLE001 - one model must not end the run
        return {"model": model, "size": size, "error": f"{type(error).__name__}: {error}"}
    by_operator = {op: cost.macs for op, (_, cost) in table.by_operator().items() if cost.macs}
    normalisation = sum(cost.flops for op, (_, cost) in table.by_operator().items() if "Normalization" in op)
    return {
        "model": model,
        "size": size,
        "parameters": graph.parameter_count,
        "macs": table.total.macs,
        "by_operator": by_operator,
        "normalisation_flops": normalisation,
        "unknown": table.unknown_operators,
        "nodes": len(graph.nodes),
        "seconds": time.perf_counter() - started,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--workers", type=int, default=os.cpu_count())
    parser.add_argument("--results", type=Path, default=Path("out/costs.jsonl"))
    parser.add_argument("--report", type=Path, default=Path("reports/costs.md"))
    parser.add_argument("--limit", type=int)
    arguments = parser.parse_args()
    table = published(arguments.folder)
    arguments.results.parent.mkdir(parents=True, exist_ok=True)
    done = {}
    if arguments.results.exists():
        for line in arguments.results.read_text().splitlines():
            record = json.loads(line)
            done[record["model"], record["size"]] = record
    from foretell.frontends.program import repair_torchvision

    repair_torchvision()
    import timm

    known = set(timm.list_models())
    tasks = [t for t in sorted(table) if t[0] in known and t not in done][: arguments.limit]
    print(f"{len(table)} rows in the table, {sum(t[0] in known for t in table)} of models that this timm has, {len(tasks)} left to do", file=sys.stderr)
    context = multiprocessing.get_context("spawn")
    with context.Pool(arguments.workers, maxtasksperchild=200) as pool, arguments.results.open("a") as file:
        for i, record in enumerate(pool.imap_unordered(cost_one, tasks), 1):
            file.write(json.dumps(record) + "\n")
            file.flush()
            done[record["model"], record["size"]] = record
            if i % 50 == 0:
                print(f"{i}/{len(tasks)}", file=sys.stderr)


if __name__ == "__main__":
    main()
