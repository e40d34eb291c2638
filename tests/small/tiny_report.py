"""A small report with known numbers, for tests of pages; every text that a model could bring is hostile."""

from dataclasses import replace
from typing import Any

from foretell.records import Estimate, KernelShare, OperatorShare, Prediction, UnitShare
from foretell.rendering.html.report_content import (
    ADVICE,
    BATCHES,
    KERNELS,
    ROOFLINE,
    AdviceRow,
    AdviceTable,
    FrontPoint,
    MemoryParts,
    Provenance,
    Report,
    Row,
    Source,
)

HOSTILE = "<script>alert('x')</script>"


def spread(value: float) -> Estimate:
    """A value, a tenth less and a fifth more."""
    return Estimate(value, value * 0.9, value * 1.2)


def tiny_prediction(device: str = "h200", batch_size: int = 8, **others: Any) -> Prediction:
    """1 ms and 1,000 MiB for each item of a batch."""
    prediction = Prediction(
        model=HOSTILE, device=device, slice=None, runtime="cuda-graph", mode="inference", batch_size=batch_size,
        dtype="fp16", predictor="unit-network", latency_ms=spread(1.0 * batch_size), throughput_per_s=spread(1000.0),
        memory_mib=spread(1000.0 * batch_size), device_memory_mib=spread(1000.0 * batch_size),
        energy_j=spread(0.5 * batch_size), power_w=spread(500.0),
        breakdown=tuple(OperatorShare(f"{HOSTILE}{n}", 3, 0.8 / 2**n, 0.5 / 2**n, "memory") for n in range(10)),
        units=(UnitShare(HOSTILE, HOSTILE, HOSTILE, 3, 0.4, 0.5, 2.5),),
        kernels=(KernelShare(HOSTILE, (HOSTILE,), 3, 0.4, 0.5, 0.75),),
        warnings=(f"Odd: {HOSTILE}",), facts={"parameters": 1234.0, "macs": 1e7, "memory_capacity_mib": 16000.0},
    )  # fmt: skip
    return replace(prediction, **others)


def tiny_row(name: str, batch_size: int = 8, device: str = "h200", **others: Any) -> Row:
    """A row that fits where it needs less than 16,000 MiB."""
    prediction = tiny_prediction(device, batch_size, **others)
    assert prediction.device_memory_mib is not None
    return Row(prediction, name, prediction.device_memory_mib.value <= 16000.0)


def tiny_report(**others: Any) -> Report:
    """All parts but the roofline, of which it says why."""
    rows = (
        AdviceRow("l4", HOSTILE, 2, 16, spread(9.0), spread(0.25), spread(0.5), None, True, note=HOSTILE),
        AdviceRow("h200", "one", 0, 64, spread(3.0), spread(0.75), spread(0.125), spread(0.0625), False, at_risk=True),
    )
    front = (FrontPoint(3.0, 0.75, "h200, batch 64"), FrontPoint(9.0, 0.25, f"l4 {HOSTILE}"))
    source = Source("prices", ("2026-08", HOSTILE), HOSTILE)
    report = Report(
        name=HOSTILE,
        device_name="Device 200",
        prediction=tiny_prediction(),
        memory=MemoryParts((("weights", 2000.0), (HOSTILE, 6000.0)), spread(8000.0), 16000.0),
        provenance=Provenance(
            "1.2.3", "2026-11-15", "cafe", 7, (HOSTILE,), 4242, {"latency_ms": 0.083}, (source,), HOSTILE
        ),
        batches=(tiny_row("1", 1), tiny_row("8", 8), tiny_row("32", 32)),
        devices=(
            tiny_row("Slow", device="l4", latency_ms=spread(32.0), predictor="roofline", extrapolated=True),
            tiny_row("Device 200"),
        ),
        advice=AdviceTable("a million inferences", rows, (("t4", HOSTILE),), front),
        missing={ROOFLINE: f"No roof: {HOSTILE}"},
    )  # fmt: skip
    return replace(report, **others)


def bare_report() -> Report:
    """A report of which only the prediction is known, and why the rest is not."""
    prediction = tiny_prediction(
        predictor="roofline", kernels=(), units=(), breakdown=(), memory_mib=None, device_memory_mib=None,
        energy_j=None, power_w=None, facts={},
    )  # fmt: skip
    missing = {part: f"why no {part}" for part in (ADVICE, BATCHES, KERNELS, ROOFLINE, "Device 9")}
    bare = tiny_report(prediction=prediction, memory=None, batches=(), devices=(), advice=None, missing=missing)
    return replace(bare, provenance=replace(bare.provenance, trained_on=None, held_out={}, sources=()))
