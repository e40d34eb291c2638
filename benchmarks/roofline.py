"""Compare the analytic roofline with what was measured on an H200: latency, memory and power, by mode and dtype.

python benchmarks/roofline.py data/h200 --models 150 --report reports/roofline.md
"""

import argparse
import math
import random
import statistics
import warnings
from collections import defaultdict
from pathlib import Path
from typing import Any

from foretell import predict
from foretell.errors import ForetellError

ZOOS = ("timm", "torchvision")
FITTED, FITTED_DAY = 80, "2026-11-15"


def measured(folder: Path) -> list[dict[str, Any]]:
    """Every good measurement of an architecture that a front-end reads by name."""
    import pyarrow.parquet as parquet

    rows = [
        row for file in sorted(folder.glob("*/measurements.parquet")) for row in parquet.read_table(file).to_pylist()
    ]
    return [r for r in rows if r["status"] == "ok" and r["zoo"] in ZOOS and r["latency_source"] == "cuda-graph"]


def compare(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Predicted over measured for every row that can be read."""
    results = []
    for row in rows:
        try:
            p = predict(
                row["spec"],
                batch_size=row["batch_size"],
                input_shape=row["input_shape"],
                dtype=row["dtype"],
                mode=row["mode"],
                optimizer=row["optimizer"] or None,
                predictor="roofline",
            )
        except ForetellError as error:
            print(f"{row['spec']}: {error}", flush=True)
            continue
        kept = {
            key: row[key]
            for key in (
                "spec",
                "family",
                "mode",
                "dtype",
                "batch_size",
                "latency_ms",
                "memory_mib",
                "power_w",
                "device_memory_mib",
            )
        }
        ratios = {"latency": p.latency_ms.value / row["latency_ms"], "memory": p.memory_mib.value / row["memory_mib"]}
        if row["power_w"]:
            ratios["power"] = p.power_w.value / row["power_w"]
        results.append({**kept, "ratios": ratios, "inside": p.latency_ms.low <= row["latency_ms"] <= p.latency_ms.high})
    return results


def summary(ratios: list[float]) -> str:
    """Count, median ratio, 5–95 % quantiles, mean absolute percentage error."""
    ordered = sorted(ratios)
    low, high = ordered[math.floor(0.05 * (len(ordered) - 1))], ordered[math.ceil(0.95 * (len(ordered) - 1))]
    error = statistics.mean(abs(r - 1) for r in ratios)
    return f"{len(ratios)} | {statistics.median(ratios):.2f} | {low:.2f} – {high:.2f} | {error:.1%}"


def main() -> None:
    warnings.simplefilter("ignore")
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--models", type=int, default=100)
    parser.add_argument("--fitted", action="store_true", help="the architectures that the constants were fitted to")
    parser.add_argument("--report", type=Path, default=Path("reports/roofline.md"))
    arguments = parser.parse_args()
    rows = measured(arguments.folder)
    by_model = defaultdict(list)
    for row in rows:
        by_model[row["spec"]].append(row)
    first_day = sorted({row["spec"] for row in rows if str(row["measured_at"]).startswith(FITTED_DAY)})
    fitted = random.Random(0).sample(first_day, FITTED)
    rest = [spec for spec in sorted(by_model) if spec not in fitted]
    chosen = fitted if arguments.fitted else random.Random(1).sample(rest, min(arguments.models, len(rest)))
    results = compare([row for spec in chosen for row in by_model[spec]])
    lines = [
        "# The roofline against an H200",
        "",
        f"{len(results)} measured workloads of {len(chosen)} architectures to which no constant was fitted; "
        "predicted / measured. Remade by `python benchmarks/roofline.py data/h200 --models 150`.",
        "",
    ]
    lines += ["| quantity | group | n | median | 5–95 % | MAPE |", "|---|---|---|---|---|---|"]
    for quantity in ("latency", "memory", "power"):
        groups: dict[str, list[float]] = defaultdict(list)
        for r in results:
            if quantity in r["ratios"]:
                for group in ("all", r["mode"], f"{r['mode']} {r['dtype']}"):
                    groups[group].append(r["ratios"][quantity])
        lines += [f"| {quantity} | {group} | {summary(ratios)} |" for group, ratios in groups.items()]
    inside = statistics.mean(r["inside"] for r in results)
    lines += [
        "",
        f"The latency interval holds the measurement in {inside:.1%} of cases.",
        "",
        "## Farthest off in memory",
        "",
    ]
    lines += ["| workload | mode | predicted / measured |", "|---|---|---|"]
    worst = sorted(results, key=lambda r: -abs(math.log(r["ratios"]["memory"])))[:20]
    lines += [
        f"| {r['spec']} batch {r['batch_size']} {r['dtype']} | {r['mode']} | {r['ratios']['memory']:.2f} |"
        for r in worst
    ]
    lines += ["", "## Farthest off in latency", "", "| workload | mode | predicted / measured |", "|---|---|---|"]
    worst = sorted(results, key=lambda r: -abs(math.log(r["ratios"]["latency"])))[:20]
    lines += [
        f"| {r['spec']} batch {r['batch_size']} {r['dtype']} | {r['mode']} | {r['ratios']['latency']:.2f} |"
        for r in worst
    ]
    arguments.report.parent.mkdir(parents=True, exist_ok=True)
    arguments.report.write_text("\n".join(lines) + "\n")
    print("\n".join(lines))


if __name__ == "__main__":
    main()
