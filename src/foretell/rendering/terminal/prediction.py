"""Rendering: predictions and costs on a terminal."""

import sys
from pathlib import Path

from rich import box
from rich.console import Console, Group, RenderableType
from rich.panel import Panel
from rich.table import Table
from rich.text import Text
from rich.tree import Tree

from foretell.devices.cpu_runs import ONNX_RUNTIME
from foretell.graph import Cost, CostTable
from foretell.records import Estimate, Parallelism, Prediction
from foretell.rendering.terminal.numbers import number
from foretell.rendering.terminal.printable import printable
from foretell.rendering.words import QUANTITIES, fit_sentence
from foretell.units import bytes_from_mib, engineering, seconds_from_ms, size, us

PLAIN_WIDTH = 120
_FIT_STYLES = {"yes": "bold green", "perhaps": "bold yellow", "no": "bold red"}


def console() -> Console:
    """A console on stdout, as wide as the terminal; without a terminal the width is fixed."""
    width = None if sys.stdout.isatty() else PLAIN_WIDTH
    # Names from models may look like markup or emoji codes of rich.
    return Console(file=sys.stdout, width=width, highlight=False, markup=False, emoji=False)


def show_prediction(prediction: Prediction, model: str) -> None:
    """Print whether it fits, a box with the numbers, a bar for the memory, and where the time goes."""
    part = f" {prediction.slice}" if prediction.slice else ""
    where = f"{prediction.device}{part} · {prediction.mode} · batch {prediction.batch_size} · {prediction.dtype}"
    if prediction.optimizer:
        where += f" · {prediction.optimizer}"
    if prediction.runtime == ONNX_RUNTIME:
        where += " · ONNX Runtime"
    if prediction.threads != 1:
        where += f" · {prediction.threads} threads"
    if prediction.parallel is not None:
        where += f" · {prediction.parallel.gpus:,} GPUs, {prediction.parallel.strategy}"
    metrics = Table.grid(padding=(0, 2))
    metrics.add_column(style="bold")
    metrics.add_column(justify="right")
    metrics.add_column()
    metrics.add_column(style="dim")
    for name, (label, unit) in QUANTITIES.items():
        estimate: Estimate | None = getattr(prediction, name)
        if estimate is not None:
            metrics.add_row(label, number(estimate.value), unit, f"{number(estimate.low)} – {number(estimate.high)}")
    facts = prediction.facts
    counts = [f"{engineering(facts['parameters'])} parameters"]
    counts += [engineering(facts[key], unit) for key, unit in (("macs", "MACs"), ("flops", "FLOPs"))]
    counted = Text(" · ".join(counts), style="dim")
    heading = Text(printable(where), style="bold")
    content: list[RenderableType] = [heading, Text(), metrics, Text(), _memory_bar(prediction), counted]
    out = console()
    said = fit_sentence(prediction)
    if said:
        out.print(Text(printable(said), style=_FIT_STYLES[prediction.fits or "yes"]), soft_wrap=True)
    out.print(
        Panel(
            Group(*content),
            title=Text(printable(Path(model).name if Path(model).exists() else model)),
            title_align="left",
            expand=False,
            padding=(1, 2),
            subtitle=Text("measured" if prediction.source == "measured" else prediction.predictor),
            subtitle_align="right",
        )
    )
    if prediction.latency_ms is not None and prediction.eager_latency_ms is not None:
        out.print(Text(gain(prediction.latency_ms.value, prediction.eager_latency_ms.value)), soft_wrap=True)
    if prediction.parallel is not None:
        out.print(Text(printable(_shared(prediction.parallel))), soft_wrap=True)
    if prediction.mig_reason is not None:
        advice = f"MIG profile {prediction.mig or 'none'}: {prediction.mig_reason}"
        out.print(Text(printable(advice)), soft_wrap=True)
    _show_shares(out, prediction)
    _show_kernels(out, prediction)
    _show_units(out, prediction)
    for warning in prediction.warnings:
        out.print(Text(printable(f"! {warning}"), style="yellow"), soft_wrap=True)


def _shared(parallel: Parallelism) -> str:
    """What several GPUs make of a step, in words."""
    share, exposed = parallel.efficiency, parallel.exposed_ms
    return (
        f"{parallel.gpus:,} GPUs, {parallel.strategy}: "
        f"efficiency {share.value:.0%} ({share.low:.0%} – {share.high:.0%}); "
        f"communication {number(parallel.communication_ms.value)} ms a step, of which {number(exposed.value)} ms "
        f"({number(exposed.low)} – {number(exposed.high)}) are not hidden; batch {parallel.batch_size:,} in all"
    )


def gain(latency_ms: float, eager_ms: float) -> str:
    """How much torch.compile gains over eager mode, in words.

    >>> gain(0.5, 0.8), gain(1.0, 0.8)
    ('torch.compile: 1.60x faster than eager (0.8 ms)', 'torch.compile: 1.25x slower than eager (0.8 ms)')
    """
    ratio, word = (eager_ms / latency_ms, "faster") if latency_ms <= eager_ms else (latency_ms / eager_ms, "slower")
    return f"torch.compile: {ratio:.2f}x {word} than eager ({number(eager_ms)} ms)"


def _memory_bar(prediction: Prediction, width: int = 40) -> Text:
    capacity = prediction.facts.get("memory_capacity_mib", 0.0)
    need = prediction.need_mib
    if need is None or not capacity:
        return Text()
    share = need.value / capacity
    # At least one block, so that small models are visible.
    filled = min(width, max(1, round(share * width)))
    text = Text("device memory  " if prediction.device_memory_mib else "peak memory  ")
    text.append("█" * filled, style="red" if share > 1 else "green")
    text.append("░" * (width - filled), style="dim")
    text.append(f"  {share:.1%} of {size(bytes_from_mib(capacity))}")
    return text


def _show_shares(out: Console, prediction: Prediction, most: int = 8) -> None:
    if not prediction.breakdown:
        return
    title = f"where the time goes ({prediction.predictor})"
    table = Table(box=box.SIMPLE, title=title, title_justify="left", title_style="dim")
    for column in ("operator", "count", "ms", "share", "bound by"):
        table.add_column(column, justify="left" if column in ("operator", "bound by") else "right")
    for row in prediction.breakdown[:most]:
        table.add_row(printable(row.operator), str(row.count), number(row.latency_ms), f"{row.share:.1%}", row.bound)
    rest = prediction.breakdown[most:]
    if rest:
        table.add_row(
            f"{len(rest)} more",
            str(sum(r.count for r in rest)),
            number(sum(r.latency_ms for r in rest)),
            f"{sum(r.share for r in rest):.1%}",
            "",
        )
    out.print(table)


def _show_kernels(out: Console, prediction: Prediction, most: int = 16) -> None:
    if not prediction.kernels:
        return
    title = "kernels by class: the likeliest main kernel of each unit"
    table = Table(box=box.SIMPLE, title=title, title_justify="left", title_style="dim")
    for column in ("kernel", "operators", "units", "µs", "share", "likely"):
        table.add_column(column, justify="left" if column in ("kernel", "operators") else "right", overflow="fold")
    for row in prediction.kernels[:most]:
        names = (printable(row.kernel), printable(", ".join(row.operators)))
        time_us = number(us(seconds_from_ms(row.latency_ms)))
        table.add_row(*names, str(row.count), time_us, f"{row.share:.1%}", f"{row.probability:.0%}")
    rest = prediction.kernels[most:]
    if rest:
        time_us = number(us(seconds_from_ms(sum(row.latency_ms for row in rest))))
        counted = (str(sum(row.count for row in rest)), time_us, f"{sum(row.share for row in rest):.1%}", "")
        table.add_row(f"{len(rest)} more", "", *counted)
    out.print(table)


def _show_units(out: Console, prediction: Prediction) -> None:
    if not prediction.units:
        return
    table = Table(box=box.SIMPLE, title="units of work, equal ones together", title_justify="left", title_style="dim")
    kernels = ("likeliest kernel",) if prediction.kernels else ()
    for column in ("operator", "first of them", "shapes", "count", "ms", "share", "× its bound", *kernels):
        right = column in ("count", "ms", "share", "× its bound")
        table.add_column(column, justify="right" if right else "left", overflow="fold")
    for unit in prediction.units:
        over = f"{unit.over_bound:.2g}" if unit.over_bound is not None else "–"
        names = (printable(unit.operator), printable(unit.module), printable(unit.shapes))
        kernel = [printable(f"{unit.kernel} ({unit.probability:.0%})")] if unit.kernel else []
        table.add_row(*names, str(unit.count), number(unit.latency_ms), f"{unit.share:.1%}", over, *kernel)
    out.print(table)


def cost_table(rows: dict[str, tuple[int, Cost]], title: str, total: Cost) -> Table:
    """A table of costs: one row for each group, the total last."""
    table = Table(box=box.SIMPLE, title=title, title_justify="left", title_style="dim")
    for column in (
        title.partition(" ")[0] or "name",
        "count",
        "parameters",
        "MACs",
        "FLOPs",
        "read",
        "written",
        "activations",
    ):
        table.add_column(column, justify="left" if not table.columns else "right")
    for name, (count, cost) in rows.items():
        table.add_row(printable(name) or "(model)", str(count), *_cells(cost))
    table.add_section()
    table.add_row(
        "total", str(sum(count for count, _ in rows.values())) if title.startswith("operator") else "", *_cells(total)
    )
    return table


def _cells(cost: Cost) -> list[str]:
    counts = [engineering(v) if v else "·" for v in (cost.parameters, cost.macs, cost.flops)]
    return counts + [size(v) if v else "·" for v in (cost.bytes_read, cost.bytes_written, cost.activation_bytes)]


def module_tree(costs: CostTable, name: str, depth: int) -> Tree:
    """The modules of a model as a tree, each with its share of the MACs."""
    total = costs.total
    root = Tree(Text.assemble((printable(name), "bold"), f"  {_summary(total, total)}"))
    branches: dict[str, Tree] = {"": root}
    for path, (_, cost) in costs.by_module(depth).items():
        parent = path.rpartition(".")[0]
        branches[path] = branches.get(parent, root).add(
            Text.assemble((printable(path.rpartition(".")[2]), "cyan"), f"  {_summary(cost, total)}")
        )
    return root


def _summary(cost: Cost, total: Cost) -> str:
    share = f" ({cost.macs / total.macs:.1%})" if total.macs else ""
    counted = f"{engineering(cost.parameters)} parameters · {engineering(cost.macs)} MACs{share}"
    return f"{counted} · {size(cost.activation_bytes)} activations"
