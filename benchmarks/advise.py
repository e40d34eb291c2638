"""Check `advise` by brute force: ten models, every device, MIG slice and batch size, costs worked out anew.

The table is predicted once more, prices are read from their file, and the arithmetic is written out here: the best row
must be the first choice.

python benchmarks/advise.py --report reports/advise.md
"""

import argparse
import time
import tomllib
from dataclasses import dataclass
from pathlib import Path

import foretell
from foretell.advisors.placement import Requirements
from foretell.workflows.advise import advise_serving
from foretell.workflows.sweep import Point, sweep

MODELS = (
    "timm:resnet50", "timm:mobilenetv3_large_100", "timm:efficientnet_b0", "timm:vit_base_patch16_224",
    "timm:swin_tiny_patch4_window7_224", "timm:convnext_tiny", "torchvision:densenet121", "torchvision:vgg16",
    "hf:bert-base-uncased", "hf:gpt2",
)  # fmt: skip
BATCHES = (1, 2, 4, 8, 16)
SAME = 1e-6  # relative: networks compute in single precision, and rows beside each other change the last digits
PRICES = Path(foretell.__file__).parent / "advisors" / "prices.toml"


@dataclass(frozen=True)
class Row:
    """One way to serve a model, and what a million inferences cost there."""

    place: str
    batch_size: int
    instance: str
    latency_ms: float
    value: float


def predicted(model: str) -> list[Point]:
    """Every device, whole and in MIG slices of which there are several, at every batch size."""
    points = []
    for device in foretell.devices():
        slices = [None, *(f"mig:{profile.name}" for profile in device.mig_profiles if profile.max_instances > 1)]
        points += sweep(model, devices=[device], slices=slices, batch_sizes=BATCHES, dtypes=["fp16"])
    return points


def by_hand(points: list[Point], slo_ms: float | None, by: str) -> list[Row]:
    """All rows that fit and keep the limit, worked out with nothing but the predictions and the price list."""
    devices = {device.id: device for device in foretell.devices()}
    prices = tomllib.loads(PRICES.read_text(encoding="utf-8"))["price"]
    rented = {price["device"] for price in prices}
    # what nobody rents out may be somebody's own: it costs energy, and no known dollars
    prices = [
        *prices,
        *(
            {"device": name, "cloud": "not", "instance": "rented", "region": "–"}
            for name in devices
            if name not in rented
        ),
    ]
    rows = []
    for point in points:
        told = point.prediction
        need = told.device_memory_mib or told.memory_mib
        if told.latency_ms is None or need is None or need.high > told.facts["memory_capacity_mib"]:
            continue
        if slo_ms is not None and told.latency_ms.value > slo_ms:
            continue
        copies = {f"mig:{each.name}": each.max_instances for each in devices[told.device].mig_profiles}
        seconds = told.latency_ms.value / 1e3 * 1e6 / told.batch_size
        place = f"{told.device} {told.slice}" if told.slice else told.device
        for price in prices:
            if price["device"] != told.device:
                continue
            name = f"{price['cloud']} {price['instance']} ({price['region']})"
            if by == "energy" and told.slice is None and told.energy_j is not None:
                value = told.energy_j.value * 1e6 / told.batch_size / 3.6e6
            elif by == "usd" and "usd_per_h" in price:
                at_once = price.get("devices", 1) * copies.get(told.slice or "", 1)
                value = seconds / 3600 * price["usd_per_h"] / at_once
            else:
                continue
            rows.append(Row(place, told.batch_size, name, told.latency_ms.value, value))
    return sorted(rows, key=lambda row: (row.value, row.latency_ms, row.batch_size))


def check(model: str, points: list[Point], slo_ms: float | None, by: str) -> tuple[bool, str]:
    """Whether the first choice is the best row, and a line for the table."""
    rows = by_hand(points, slo_ms, by)
    found = advise_serving(model, Requirements(slo_ms=slo_ms, max_batch=max(BATCHES), objective=by), dtype="fp16")  # type: ignore[arg-type]
    limit = "–" if slo_ms is None else f"{slo_ms:.3g}"
    if not rows or not found.choices:
        right = not rows and not found.choices
        return right, f"| {model} | {by} | {limit} | {len(rows)} | nothing fits | | | {'yes' if right else 'NO'} |"
    best, choice = rows[0], found.choices[0]
    told = choice.candidate
    # several instances may cost the same: any of the best will do
    ties = {(row.place, row.batch_size) for row in rows if abs(row.value / best.value - 1) < SAME}
    right = abs(choice.value / best.value - 1) < SAME and (told.place, told.batch_size) in ties
    unit = "$" if by == "usd" else "kWh"
    cells = f"{told.place}, batch {told.batch_size} | {choice.offer.name} | {choice.value:.4g} {unit}"
    return right, f"| {model} | {by} | {limit} | {len(rows):,} | {cells} | {'yes' if right else 'NO: ' + str(best)} |"


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--report", type=Path)
    given = arguments.parse_args()
    begin, lines, right, total = time.monotonic(), [], 0, 0
    for model in MODELS:
        points = predicted(model)
        fastest = min(point.prediction.latency_ms.value for point in points if point.prediction.latency_ms)
        asked = [(3 * fastest, "usd"), (None, "energy")]
        for slo_ms, by in asked if lines else [*asked, (None, "usd"), (fastest / 2, "usd")]:
            good, line = check(model, points, slo_ms, by)
            right, total, lines = right + good, total + 1, [*lines, line]
            print(line, flush=True)
    head = (
        "# Advice checked by brute force\n\nRemade by `python benchmarks/advise.py --report reports/advise.md`.\n\n"
        f"{right} of {total} first choices are the best row of the predicted table ({len(MODELS)} models, "
        f"{len(foretell.devices())} devices, their MIG slices, {len(BATCHES)} batch sizes, fp16; costs of a million "
        "inferences). Limits are three times the fastest prediction, and once half of it: there nothing may fit.\n\n"
        "| model | by | limit, ms | possible rows | first choice | instance | a million | the best row |\n"
        "|---|---|---:|---:|---|---|---:|---|\n"
    )
    print(f"{right} of {total} right, {time.monotonic() - begin:.0f} s")
    if given.report:
        given.report.write_text(head + "\n".join(lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
