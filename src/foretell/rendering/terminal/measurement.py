"""Rendering: a measurement on a terminal."""

from collections import defaultdict
from pathlib import Path
from typing import Literal

from rich import box
from rich.console import Console, Group
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from foretell.records import Estimate, Measurement, Prediction
from foretell.rendering.terminal.numbers import number
from foretell.rendering.terminal.prediction import console
from foretell.rendering.terminal.printable import printable

_ROWS = {
    "latency_ms": ("latency", "ms"),
    "host_latency_ms": ("eager latency on this host", "ms"),
    "throughput_per_s": ("throughput", "items/s"),
    "memory_mib": ("peak memory", "MiB"),
    "device_memory_mib": ("device memory", "MiB"),
    "process_peak_mib": ("peak memory of the process", "MiB"),
    "energy_j": ("energy", "J"),
    "power_w": ("power", "W"),
    "occupancy": ("occupancy", "%"),
}
_MAX_ROWS = 10


def show_measurement(measured: Measurement, predicted: Prediction | None = None) -> None:
    """Print a box with the numbers, the prediction of the same workload beside them, and the kernels by operator."""
    part = f" {measured.slice}" if measured.slice else ""
    where = f"{measured.device}{part} · {measured.runtime} · {measured.mode} · batch {measured.batch_size}"
    for text in (_shape(measured), measured.dtype, measured.optimizer):
        where += f" · {text}" if text else ""
    table = Table.grid(padding=(0, 2))
    for style in ("bold", "", "", "dim", "cyan"):
        justify: Literal["left", "right"] = "right" if len(table.columns) == 1 else "left"
        table.add_column(style=style, justify=justify, no_wrap=True)
    for name, (label, unit) in _ROWS.items():
        estimate: Estimate | None = getattr(measured, name)
        if estimate is not None:
            spread = f"{number(estimate.low)} – {number(estimate.high)}" if estimate.low < estimate.high else ""
            table.add_row(label, number(estimate.value), unit, spread, _beside(predicted, name))
    facts = measured.facts
    counted = [f"{facts['repeats']} runs"] if "repeats" in facts else []
    counted += [f"{facts['threads']} threads"] if facts.get("threads", 1) != 1 else []
    counted += [str(facts["latency_source"])] if "latency_source" in facts else []
    library = "onnxruntime" if measured.runtime == "onnxruntime" else "torch"
    counted += [f"{library} {facts['libraries'][library]}"] if library in facts.get("libraries", {}) else []
    body = Group(Text(printable(where), style="bold"), Text(), table, Text(), Text(" · ".join(counted), style="dim"))
    out = console()
    title = printable(Path(measured.model).name if Path(measured.model).exists() else measured.model)
    out.print(
        Panel(
            body,
            title=Text(title),
            title_align="left",
            expand=False,
            padding=(1, 2),
            subtitle=Text("measured"),
            subtitle_align="right",
        )
    )
    _show_kernels(out, measured)
    _show_fusion(out, measured)
    for warning in measured.warnings:
        out.print(Text(printable(f"! {warning}"), style="yellow"), soft_wrap=True)


def _shape(measured: Measurement) -> str:
    shape = "x".join(map(str, measured.input_shape))
    return f"context {shape}" if measured.mode == "decode" and shape else shape


def _beside(predicted: Prediction | None, name: str) -> str:
    estimate: Estimate | None = getattr(predicted, name, None)
    return f"predicted {number(estimate.value)}" if estimate is not None else ""


def _show_kernels(out: Console, measured: Measurement) -> None:
    if not measured.kernels:
        return
    durations: dict[str, list[float]] = defaultdict(list)
    for kernel in measured.kernels:
        durations[kernel.operator or kernel.name].append(kernel.duration_us)
    total = sum(kernel.duration_us for kernel in measured.kernels) or 1.0
    what = "operator" if measured.device == "cpu" else "kernel"
    title = f"{len(measured.kernels)} {what}{'s' if len(measured.kernels) > 1 else ''} of one run, by type"
    table = Table(box=box.SIMPLE, title=title, title_justify="left", title_style="dim")
    for column in ("operator", "count", "µs", "share"):
        table.add_column(column, justify="left" if column == "operator" else "right")
    ranked = sorted(durations.items(), key=lambda item: -sum(item[1]))
    for name, times in ranked[:_MAX_ROWS]:
        table.add_row(printable(name), str(len(times)), number(sum(times)), f"{sum(times) / total:.1%}")
    rest = [time for _, times in ranked[_MAX_ROWS:] for time in times]
    if rest:
        table.add_row(f"{len(ranked) - _MAX_ROWS} more", str(len(rest)), number(sum(rest)), f"{sum(rest) / total:.1%}")
    out.print(table)


def _show_fusion(out: Console, measured: Measurement) -> None:
    fusion = measured.fusion
    if fusion:
        line = f"{fusion['backend']}: {fusion['nodes']} operators in {fusion['groups']} kernels"
        out.print(Text(printable(f"{line}, {fusion['fused_edges']} of {fusion['edges']} edges fused")))
