"""Rendering: the sections of a report about the model on its device: memory, time and roofline."""

from collections.abc import Sequence

from foretell.records import KernelShare, OperatorShare, UnitShare, fits_into
from foretell.rendering.html.report_content import KERNELS, ROOFLINE, Report
from foretell.rendering.html.report_parts import (
    ABSENT,
    Column,
    Line,
    brief,
    folded,
    mib_text,
    note,
    number,
    section,
    share_bar,
    table,
)
from foretell.rendering.svg.canvas import safe
from foretell.rendering.svg.roofline import draw_roofline
from foretell.rendering.words import MEANINGS, MIG
from foretell.units import seconds_from_ms, us

_MAX_ROWS = 8
_PHONE_WIDTH, _PHONE_HEIGHT = 440, 520  # the size of a picture for a phone


def memory_section(report: Report) -> str:
    """Two bars: how full the device gets, and what the memory is used for."""
    memory, prediction = report.memory, report.prediction
    if memory is None:
        return section(
            "memory",
            "Memory",
            "",
            note(f"The predictor {prediction.predictor} does not predict memory on this device."),
        )
    need, capacity = memory.need, memory.capacity_mib
    over = need.value > capacity
    scale = max(capacity, need.high)
    content = []
    fits = fits_into(need, capacity)
    if fits == "no":
        content.append(
            note(f"It does not fit: {mib_text(need.value)} are needed, {report.device_name} has {mib_text(capacity)}.",
                 alarm=True)
        )  # fmt: skip
    elif fits == "perhaps":
        content.append(note(f"It perhaps does not fit: up to {mib_text(need.high)} may be needed.", alarm=True))
    # What exceeds the device is drawn after what fits, in a warning colour.
    used = f'<i class="c0" style="width:{100 * min(need.value, capacity) / scale:.2f}%"></i>'
    beyond = f'<i class="over-capacity" style="width:{100 * (need.value - capacity) / scale:.2f}%"></i>' if over else ""
    content.append(
        f'<div class="stack">{used}{beyond}</div><p class="scale"><span>{mib_text(need.value)} needed '
        f"({mib_text(need.low)} – {mib_text(need.high)})</span>"
        f"<span>{need.value / capacity:.1%} of {mib_text(capacity)}</span></p>"
    )
    parts = [(name, mib, index) for index, (name, mib) in enumerate(memory.parts)]
    total = sum(mib for _, mib, _ in parts) or 1.0
    bars = "".join(f'<i class="c{n}" style="width:{100 * mib / total:.2f}%"></i>' for _, mib, n in parts)
    keys = "".join(
        f'<li><i class="c{n}"></i><span>{safe(name)}</span>{mib_text(mib)} · {mib / total:.1%}</li>'
        for name, mib, n in parts
    )
    content += ["<h3>What the memory is used for</h3>", f'<div class="stack">{bars}</div><ul class="key">{keys}</ul>']
    if prediction.mig_reason is not None:
        content.append(note(f"{MIG[:1].upper()}{MIG[1:]}: {prediction.mig or 'none'}; {prediction.mig_reason}."))
    kind = "device memory" if prediction.device_memory_mib else "peak memory"
    lead = f"The {kind} ({MEANINGS[kind]}), compared with what the device has."
    return section("memory", "Memory", lead, *content)


def time_section(report: Report) -> str:
    """Time by operator and by kernel side by side, then the slowest layers."""
    prediction = report.prediction
    operators = "<h3>By operator</h3>" + (
        _operators(prediction.breakdown) if prediction.breakdown else note("The model does no work on the device.")
    )
    kernels = "<h3>By kernel</h3>" + (
        _kernels(prediction.kernels) if prediction.kernels else note(report.missing[KERNELS])
    )
    units = folded(f"The {len(prediction.units)} slowest layers", _units(prediction.units)) if prediction.units else ""
    lead = "Predicted device time of one pass. A kernel is the likeliest class of each operator's main kernel."
    pair = f'<div class="pair"><div>{operators}</div><div>{kernels}</div></div>'
    return section("time", "Where the time goes", lead, pair, units)


def _operators(rows: Sequence[OperatorShare]) -> str:
    most = max(row.share for row in rows)
    lines = [
        Line((f"{brief(row.operator)}<small>{row.count} × · {safe(row.bound)}-bound</small>", number(row.latency_ms),
              f"{row.share:.1%}", share_bar(row.share / most)))
        for row in rows[:_MAX_ROWS]
    ]  # fmt: skip
    rest = rows[_MAX_ROWS:]
    if rest:
        share = sum(row.share for row in rest)
        cells = (
            f"{len(rest)} more",
            number(sum(row.latency_ms for row in rest)),
            f"{share:.1%}",
            share_bar(share / most),
        )
        lines.append(Line(cells, "off"))
    return table((Column("operator"), Column("ms", "number"), Column("share", "number"), Column("", "share")), lines)


def _kernels(rows: Sequence[KernelShare]) -> str:
    most = max(row.share for row in rows)
    lines = [
        Line((f"{brief(row.kernel)}<small>{brief(', '.join(row.operators))} · {row.probability:.0%} likely</small>",
              number(us(seconds_from_ms(row.latency_ms))), f"{row.share:.1%}", share_bar(row.share / most)))
        for row in rows[:_MAX_ROWS]
    ]  # fmt: skip
    rest = rows[_MAX_ROWS:]
    if rest:
        share = sum(row.share for row in rest)
        time_us = number(us(seconds_from_ms(sum(row.latency_ms for row in rest))))
        lines.append(Line((f"{len(rest)} more", time_us, f"{share:.1%}", share_bar(share / most)), "off"))
    return table((Column("kernel"), Column("µs", "number"), Column("share", "number"), Column("", "share")), lines)


def _units(units: Sequence[UnitShare]) -> str:
    columns = (Column("layer"), Column("shapes"), Column("count", "number"), Column("ms", "number"),
               Column("share", "number"), Column("× its bound", "number"))  # fmt: skip
    lines = [
        Line((f"{brief(unit.module or unit.operator)}<small>{brief(unit.operator)}</small>", brief(unit.shapes),
              str(unit.count), number(unit.latency_ms), f"{unit.share:.1%}",
              ABSENT if unit.over_bound is None else f"{unit.over_bound:.2g}"))
        for unit in units
    ]  # fmt: skip
    return table(columns, lines, cards=True)


def roofline_section(report: Report) -> str:
    """The roofline. It is drawn twice, because a wide picture scaled down to a phone would be illegible."""
    if report.roofline is None:
        return section("roofline", "Roofline", "", note(report.missing[ROOFLINE]))
    wide = draw_roofline(report.roofline)
    narrow = draw_roofline(report.roofline, width=_PHONE_WIDTH, height=_PHONE_HEIGHT)
    pictures = f'<div class="wide-only">{wide}</div><div class="narrow-only">{narrow}</div>'
    lead = "FLOP a second over FLOP a byte of each operator. The area of a point is its share of the time."
    notes = " ".join(text for text in report.roofline.notes if text not in report.prediction.warnings)
    content = [f'<div class="picture">{pictures}</div>', *([note(notes)] if notes else [])]
    return section("roofline", "Roofline", lead, *content)
