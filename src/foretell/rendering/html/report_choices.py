"""Rendering: what a report says of other batch sizes, devices and places; what is missing says why in its place."""

from collections.abc import Sequence

from foretell.records import Estimate, Prediction
from foretell.rendering.html.report_content import (
    ADVICE,
    BATCHES,
    KERNELS,
    ROOFLINE,
    AdviceRow,
    AdviceTable,
    Report,
    Row,
)
from foretell.rendering.html.report_parts import (
    ABSENT,
    Column,
    Line,
    folded,
    mib_text,
    note,
    number,
    section,
    share_bar,
    span,
    table,
    tag,
    value,
    with_range,
)
from foretell.rendering.svg.canvas import safe
from foretell.rendering.svg.charts import Axis, Series, xy_chart

_SHOWN_PLACES = 8
_HALF = 460  # the width of one of two pictures side by side: its letters stay legible on a phone
_EXTRAPOLATED = "extrapolated"
_WHAT_EXTRAPOLATED = (
    "Extrapolated: no measurement of that device went into the answer; it follows from the peaks of its datasheet, "
    "for most GPUs also from what work takes on an H200, and its interval is wide."
)
_BUSY, _WHOLE = "Every device is busy all the time.", "Dollars are those of whole instances, busy or not."
_WHAT_COUNTS = (
    "Energy is that of the devices, times the PUE of the data centre where one is "
    "known; carbon is that of the grid of the instance's region."
)


def batches_section(report: Report) -> str:
    """Latency and throughput over the batch, with their bands, and the numbers."""
    lead = f"On {report.device_name}. The bands are the 90 % intervals."
    if not report.batches:
        return section("batches", "Batch size", "", note(report.missing[BATCHES]))
    held = [row for row in report.batches if row.fits is not False]
    content = []
    if held:
        latency = _curve("latency", [(row, row.prediction.latency_ms) for row in held])
        throughput = _curve("throughput", [(row, row.prediction.throughput_per_s) for row in held])
        batch = Axis("items a batch", log=True)
        pictures = (
            xy_chart([latency], batch, Axis("ms", log=True), title="Latency", width=_HALF, height=320),
            xy_chart([throughput], batch, Axis("items a second"), title="Throughput", width=_HALF, height=320),
        )
        content.append(f'<div class="pair">{"".join(f"<div>{picture}</div>" for picture in pictures)}</div>')
    over = [row for row in report.batches if row.fits is False]
    if over and held:
        content.append(
            note(f"From batch {over[0].name} on it does not fit into {mib_text(over[0].capacity_mib or 0)}.")
        )
    elif over:
        content.append(note("It does not fit at any batch size.", alarm=True))
    columns = (Column("batch", "number"), Column("latency, ms", "number"), Column("items/s", "number"),
               Column("memory, MiB", "number"), Column("J an item", "number", minor=True))  # fmt: skip
    lines = []
    for row in report.batches:
        told = row.prediction
        need = value(row.need_mib)
        cells = (row.name, with_range(told.latency_ms), with_range(told.throughput_per_s),
                 need if row.fits is not False else f'<span class="bad">{need}</span>',
                 value(told.energy_j, told.batch_size))  # fmt: skip
        own = told.batch_size == report.prediction.batch_size
        lines.append(Line(cells, "own" if own else "off" if row.fits is False else ""))
    return section("batches", "Batch size", lead, *content, table(columns, lines))


def _curve(name: str, points: Sequence[tuple[Row, Estimate | None]]) -> Series:
    known = [(float(row.prediction.batch_size), estimate) for row, estimate in points if estimate is not None]
    return Series(
        name,
        [(batch, estimate.value) for batch, estimate in known],
        band=[(batch, estimate.low, estimate.high) for batch, estimate in known],
        notes=[f"batch {batch:g}: {number(e.value)} ({number(e.low)} – {number(e.high)})" for batch, e in known],
    )


def devices_section(report: Report) -> str:
    """A row a device, the fastest first, then those that do not hold the model."""
    told = report.prediction
    ranked = sorted(report.devices, key=lambda row: (row.fits is False, _latency(row.prediction)))
    fastest = min((_latency(row.prediction) for row in ranked if row.fits is not False), default=0.0)
    columns = (Column("device"), Column("latency, ms", "number"), Column("items/s", "number"),
               Column("memory", "number"), Column("W", "number"), Column("J an item", "number"),
               Column("speed", "share"))  # fmt: skip
    lines = []
    for row in ranked:
        each = row.prediction
        name = safe(row.name) + (f" {tag(_EXTRAPOLATED)}" if each.extrapolated else "")
        if row.fits is False and row.need_mib and row.capacity_mib:
            why = f"does not fit: needs {mib_text(row.need_mib.value)}, has {mib_text(row.capacity_mib)}"
            lines.append(Line((f"{name}<small>{why}</small>", ABSENT, ABSENT, ABSENT, ABSENT, ABSENT, ""), "off"))
            continue
        filled = ABSENT
        if row.need_mib and row.capacity_mib:
            filled = f"{row.need_mib.value / row.capacity_mib:.1%}<small>of {mib_text(row.capacity_mib)}</small>"
        cells = (name, with_range(each.latency_ms), value(each.throughput_per_s), filled, value(each.power_w),
                 value(each.energy_j, each.batch_size), share_bar(fastest / _latency(each)))  # fmt: skip
        lines.append(Line(cells, "own" if each.device == told.device else ""))
    content = [table(columns, lines, cards=True)]
    if any(row.prediction.extrapolated for row in ranked):
        content.append(note(_WHAT_EXTRAPOLATED))
    if not fastest:
        content.insert(0, note("It fits on none of these devices.", alarm=True))
    others = [name for name in report.missing if name not in (ADVICE, BATCHES, KERNELS, ROOFLINE)]
    content += [note(f"{name}: {report.missing[name]}") for name in others]
    lead = f"The same model at batch {told.batch_size} in {told.dtype}; the fastest first."
    return section("devices", "Devices", lead, *content)


def _latency(told: Prediction) -> float:
    return told.latency_ms.value if told.latency_ms else float("inf")


def advice_section(report: Report) -> str:
    """The best places with what they cost, latency against cost, and why the others fell out."""
    advice = report.advice
    if advice is None:
        return section("advice", "Where to run it", "", note(report.missing[ADVICE]))
    content = []
    if advice.rows:
        content.append(_places(advice, advice.rows[:_SHOWN_PLACES]))
        if len(advice.rows) > _SHOWN_PLACES:
            rest = advice.rows[_SHOWN_PLACES:]
            content.append(folded(f"{len(rest)} more places", _places(advice, rest)))
        content.append(note(f"{_WHOLE if advice.rows[0].instances else _BUSY} {_WHAT_COUNTS}"))
        if len(advice.front) > 1:
            content.append(_front(advice))
    else:
        content.append(note("No place will do: all fell out.", alarm=True))
    if advice.refused:
        lines = [Line((safe(place), safe(reason))) for place, reason in advice.refused]
        reasons = table((Column("place"), Column("why")), lines)
        # where nothing is left, the reasons are the answer
        count = f"{len(lines)} place{'s' if len(lines) > 1 else ''} fell out"
        content.append(folded(count, reasons) if advice.rows else reasons)
    costs = f"dollars, energy and carbon are those of {advice.amount}"
    lead = f"Each place at its best batch size on its cheapest instance; {costs}."
    if advice.limits:
        lead += f" Asked for: {'; '.join(advice.limits)}."
    elif report.prediction.mode != "training":
        lead += " No limit was given, so that large batches win."
    if report.prediction.mode in ("prefill", "decode"):
        lead += " Predicted as plain forward passes."
    return section("advice", "Where to run it", lead, *content)


def _places(advice: AdviceTable, rows: Sequence[AdviceRow]) -> str:
    trained = any(row.hours is not None for row in advice.rows)
    fleet = any(row.instances is not None for row in advice.rows)
    best = {
        name: min((found.value for row in advice.rows if (found := getattr(row, name)) is not None), default=None)
        for name in ("usd", "kwh", "kg_co2e")
    }

    def cost(row: AdviceRow, name: str) -> str:
        found: Estimate | None = getattr(row, name)
        if found is None:
            return ABSENT
        shown = number(found.value)
        return f"{f'<strong>{shown}</strong>' if found.value == best[name] else shown}<small>{span(found)}</small>"

    columns = [Column("place"), Column("batch", "number"), Column("latency, ms", "number")]
    columns += [Column("hours", "number")] if trained else []
    columns += [Column("instances", "number")] if fleet else []
    columns += [Column("$", "number"), Column("kWh", "number"), Column("kg CO₂e", "number")]
    lines = []
    for row in rows:
        marks = [tag(_EXTRAPOLATED)] if row.extrapolated else []
        marks += [tag("may miss the limit")] if row.at_risk else []
        others = f" · {row.others} more" if row.others else ""
        extra = f"<small>{safe(row.note)}</small>" if row.note else ""
        name = f"{safe(row.place)} {' '.join(marks)}<small>{safe(row.instance)}{others}</small>{extra}"
        cells = [name, str(row.batch_size), with_range(row.latency_ms)]
        cells += [value(row.hours)] if trained else []
        cells += [f"{row.instances.value:g}" if row.instances else ABSENT] if fleet else []
        lines.append(Line([*cells, *(cost(row, each) for each in ("usd", "kwh", "kg_co2e"))]))
    return table(columns, lines, cards=True)


def _front(advice: AdviceTable) -> str:
    points = [(point.latency_ms, point.usd) for point in advice.front]
    notes = [f"{point.label}: {number(point.latency_ms)} ms, {number(point.usd)} $" for point in advice.front]
    line = Series("the best for their latency", points, notes=notes)
    chart = xy_chart([line], Axis("latency, ms", log=True), Axis(f"$ for {advice.amount}", log=True),
                     title="Latency against cost", width=_HALF, height=320)  # fmt: skip
    lines = [Line((safe(point.label), number(point.latency_ms), number(point.usd))) for point in advice.front]
    columns = (Column("none is both faster and cheaper"), Column("ms", "number"), Column("$", "number"))
    return f'<div class="pair"><div>{chart}</div><div>{table(columns, lines)}</div></div>'
