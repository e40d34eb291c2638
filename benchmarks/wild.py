"""How far the shipped predictor is off on networks that no zoo contains, by field, from the measurements in data/.

python benchmarks/wild.py            prints the tables and writes reports/wild.md; needs foretell[data]
"""

from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np

from foretell.devices import find_device
from foretell.files import write_whole
from foretell.predictors import find_predictor
from foretell.profiling.zoos.wild.zoo import judges
from foretell.records import Target
from foretell.training.examples.graphs import GraphKey, read_graphs
from foretell.training.examples.workloads import measured_rows, workload_of

ROOT = Path(__file__).parents[1]
STORE, REPORT = ROOT / "data", ROOT / "reports" / "wild.md"
METRICS = ("latency_ms", "memory_mib", "power_w", "energy_j")
WORST = 20


def predictions() -> list[dict[str, Any]]:
    """Of every measured wild workload the relative error of each metric, and whether its interval holds the truth."""
    target, predictor = Target(find_device("h200")), find_predictor(None, "h200")
    waiting = defaultdict(list)
    for row in measured_rows(STORE).values():
        if row["spec"].startswith("wild:"):
            waiting[GraphKey.of(row)].append(row)
    rows = []
    for key, _, graph in read_graphs(STORE, list(waiting)):
        for row in waiting[key]:
            prediction = predictor.predict(workload_of(row, graph, target))
            errors = {name: row[name] for name in ("spec", "family", "batch_size", "dtype", "mode")}
            for metric in METRICS:
                estimate, truth = getattr(prediction, metric), row[metric]
                if estimate is not None and truth:
                    errors[metric] = estimate.value / truth - 1
                    errors[f"{metric} held"] = estimate.low <= truth <= estimate.high
            rows.append(errors)
    return rows


def line(title: str, rows: list[dict[str, Any]]) -> str:
    cells = [title, str(len(rows))]
    for metric in METRICS:
        errors = np.abs([row[metric] for row in rows if metric in row])
        held = [row[f"{metric} held"] for row in rows if metric in row]
        cells.append(f"{np.mean(errors):.1%}, {np.median(errors):.1%}; {np.mean(held):.0%}" if len(errors) else "–")
    return f"| {' | '.join(cells)} |"


def main() -> None:
    rows = predictions()
    head = ["| | workloads | latency | memory | power | energy |", "|---|--:|---|---|---|---|"]
    sides = {"judging fields": True, "teaching fields": False}
    by_side = [
        line(f"{side}, {mode}", [row for row in rows if judges(row["family"]) is judging and row["mode"] == mode])
        for side, judging in sides.items()
        for mode in ("inference", "training")
    ]
    by_side += [
        line(side, [row for row in rows if judges(row["family"]) is judging]) for side, judging in sides.items()
    ]
    families = defaultdict(list)
    for row in rows:
        families[row["family"]].append(row)
    ordered = sorted(families, key=lambda name: -np.mean(np.abs([row["latency_ms"] for row in families[name]])))
    by_field = [line(name + (" (judges)" if judges(name) else ""), families[name]) for name in ordered]
    worst = []
    for metric in METRICS:
        known = sorted((row for row in rows if metric in row), key=lambda row: -abs(row[metric]))[:WORST]
        worst += [
            f"\n## The worst {WORST} of {metric}\n",
            "| error | network | batch | dtype | mode |",
            "|--:|---|--:|---|---|",
        ]
        worst += [
            f"| {row[metric]:+.0%} | `{row['spec']}` | {row['batch_size']} | {row['dtype']} | {row['mode']} |"
            for row in known
        ]
    text = [
        "# Networks that no zoo contains\n",
        "Mean and median error of the shipped predictor, then how many truths its 90 % intervals hold; an H200, each "
        "workload in a fresh process. Remade by `python benchmarks/wild.py`; "
        "[what was learned](../docs/lab/0064-without-a-gpu.md).\n",
        *head, *by_side, "\n## By field\n", *head, *by_field, *worst,
    ]  # fmt: skip
    print("\n".join([*head, *by_side]))
    write_whole(REPORT, ("\n".join(text) + "\n").encode())
    print(f"written: {REPORT}")


if __name__ == "__main__":
    main()
