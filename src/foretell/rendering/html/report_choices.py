"""Rendering: the sections of a report about other batch sizes, other devices and where to run the model."""

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

_MAX_PLACES = 8
_HALF_WIDTH = 460  # the width of one of two pictures side by side; narrow enough that the text is legible on a phone
_EXTRAPOLATED = "extrapolated"
_EXTRAPOLATED_NOTE = (
    "Extrapolated: the predictor was not fitted to measurements of that device. It uses the peaks of the datasheet "
    "and, for most GPUs, times on an H200; the interval is wide."
)
_BUSY_NOTE, _INSTANCES_NOTE = (
    "Costs assume that every device is always busy.",
    "Dollars include the idle time of the instances.",
)
_COSTS_NOTE = (
    "Energy is that of the devices, times the PUE of the data centre if it is known. "
    "Carbon is that of the power grid in the region of the instance."
)


def batches_section(report: Report) -> str:
    """Latency and throughput over the batch size as charts with intervals, and as a table."""
    lead = f"On {report.device_name}. The bands are the 90 % intervals."
    if not report.batches:
        return section("batches", "Batch size", "", note(report.missing[BATCHES]))
    fitting = [row for row in report.batches if row.fits is not False]
    content = []
    if fitting:
        latency = _curve("latency", [(row, row.prediction.latency_ms) for row in fitting])
        throughput = _curve("throughput", [(row, row.prediction.throughput_per_s) for row in fitting])
        batch = Axis("items a batch", log=True)
        pictures = (
            xy_chart([latency], batch, Axis("ms", log=True), title="Latency", width=_HALF_WIDTH, height=320),
            xy_chart([throughput], batch, Axis("items a second"), title="Throughput", width=_HALF_WIDTH, height=320),
        )
        content.append(f'<div class="pair">{"".join(f"<div>{picture}</div>" for picture in pictures)}</div>')
    too_large = [row for row in report.batches if row.fits is False]
    if too_large and fitting:
        content.append(
            note(f"From batch {too_large[0].name} on it does not fit into {mib_text(too_large[0].capacity_mib or 0)}.")
        )
    elif too_large:
        content.append(note("It does not fit at any batch size.", alarm=True))
    unsure = [row for row in report.batches if row.prediction.fits == "perhaps"]
    if unsure:
        content.append(note(f"Batch {unsure[0].name} perhaps does not fit: the interval crosses the capacity."))
    columns = [Column("batch", "number"), Column("latency, ms", "number"), Column("items/s", "number"),
               Column("device memory, MiB", "number"), Column("J an item", "number", minor=True)]  # fmt: skip
    has_occupancy = any(row.prediction.occupancy is not None for row in report.batches)
    if has_occupancy:
        columns.append(Column("occupancy, %", "number", minor=True))
    if report.saturation:
        content.append(note(report.saturation))
    lines = []
    for row in report.batches:
        prediction = row.prediction
        need = value(row.need_mib) + ("<small>perhaps too much</small>" if prediction.fits == "perhaps" else "")
        cells = (row.name, with_range(prediction.latency_ms), with_range(prediction.throughput_per_s),
                 need if row.fits is not False else f'<span class="bad">{need}</span>',
                 value(prediction.energy_j, prediction.batch_size),
                 *((value(prediction.occupancy),) if has_occupancy else ()))  # fmt: skip
        is_requested = prediction.batch_size == report.prediction.batch_size
        lines.append(Line(cells, "own" if is_requested else "off" if row.fits is False else ""))
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
    """One row for each device: the fastest first, devices without enough memory last."""
    requested = report.prediction
    ranked = sorted(report.devices, key=lambda row: (row.fits is False, _latency(row.prediction)))
    fastest = min((_latency(row.prediction) for row in ranked if row.fits is not False), default=0.0)
    columns = (Column("device"), Column("latency, ms", "number"), Column("items/s", "number"),
               Column("device memory", "number"), Column("W", "number"), Column("J an item", "number"),
               Column("speed", "share"))  # fmt: skip
    lines = []
    for row in ranked:
        prediction = row.prediction
        name = safe(row.name) + (f" {tag(_EXTRAPOLATED)}" if prediction.extrapolated else "")
        if row.fits is False and row.need_mib and row.capacity_mib:
            why = f"does not fit: needs {mib_text(row.need_mib.value)}, has {mib_text(row.capacity_mib)}"
            lines.append(Line((f"{name}<small>{why}</small>", ABSENT, ABSENT, ABSENT, ABSENT, ABSENT, ""), "off"))
            continue
        filled = ABSENT
        if row.need_mib and row.capacity_mib:
            doubt = ", perhaps too much" if prediction.fits == "perhaps" else ""
            filled = f"{row.need_mib.value / row.capacity_mib:.1%}<small>of {mib_text(row.capacity_mib)}{doubt}</small>"
        cells = (name, with_range(prediction.latency_ms), value(prediction.throughput_per_s), filled,
                 value(prediction.power_w), value(prediction.energy_j, prediction.batch_size),
                 share_bar(fastest / _latency(prediction)))  # fmt: skip
        lines.append(Line(cells, "own" if prediction.device == requested.device else ""))
    content = [table(columns, lines, cards=True)]
    if any(row.prediction.extrapolated for row in ranked):
        content.append(note(_EXTRAPOLATED_NOTE))
    if not fastest:
        content.insert(0, note("It fits on none of these devices.", alarm=True))
    others = [name for name in report.missing if name not in (ADVICE, BATCHES, KERNELS, ROOFLINE)]
    content += [note(f"{name}: {report.missing[name]}") for name in others]
    lead = f"The same model at batch {requested.batch_size} in {requested.dtype}; the fastest first."
    return section("devices", "Devices", lead, *content)


def _latency(prediction: Prediction) -> float:
    # Unknown latencies sort last.
    return prediction.latency_ms.value if prediction.latency_ms else float("inf")


def advice_section(report: Report) -> str:
    """The best places and their costs, latency against cost, and why the other places were refused."""
    advice = report.advice
    if advice is None:
        return section("advice", "Where to run it", "", note(report.missing[ADVICE]))
    content = []
    if advice.rows:
        content.append(_places(advice, advice.rows[:_MAX_PLACES]))
        if len(advice.rows) > _MAX_PLACES:
            rest = advice.rows[_MAX_PLACES:]
            content.append(folded(f"{len(rest)} more places", _places(advice, rest)))
        content.append(note(f"{_INSTANCES_NOTE if advice.rows[0].instances else _BUSY_NOTE} {_COSTS_NOTE}"))
        if len(advice.front) > 1:
            content.append(_front(advice))
    else:
        content.append(note("No place meets the requirements.", alarm=True))
    if advice.refused:
        lines = [Line((safe(place), safe(reason))) for place, reason in advice.refused]
        reasons = table((Column("place"), Column("why")), lines)
        # Without any choice the reasons are the answer, so they are shown at once.
        count = f"{len(lines)} place{'s' if len(lines) > 1 else ''} refused"
        content.append(folded(count, reasons) if advice.rows else reasons)
    costs = f"dollars, energy and carbon are those of {advice.amount}"
    lead = f"Each place at its best batch size on its cheapest instance; {costs}."
    if advice.limits:
        lead += f" Requirements: {'; '.join(advice.limits)}."
    elif report.prediction.mode != "training":
        lead += " There are no requirements, so large batches win."
    if report.prediction.mode in ("prefill", "decode"):
        lead += " Costs are those of plain forward passes."
    return section("advice", "Where to run it", lead, *content)


def _places(advice: AdviceTable, rows: Sequence[AdviceRow]) -> str:
    # A column appears only if some row has a value for it.
    trained = any(row.hours is not None for row in advice.rows)
    fleet = any(row.instances is not None for row in advice.rows)
    best = {
        name: min((estimate.value for row in advice.rows if (estimate := getattr(row, name)) is not None), default=None)
        for name in ("usd", "kwh", "kg_co2e")
    }

    def cost(row: AdviceRow, name: str) -> str:
        estimate: Estimate | None = getattr(row, name)
        if estimate is None:
            return ABSENT
        shown = number(estimate.value)
        return (
            f"{f'<strong>{shown}</strong>' if estimate.value == best[name] else shown}<small>{span(estimate)}</small>"
        )

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
        lines.append(Line([*cells, *(cost(row, metric) for metric in ("usd", "kwh", "kg_co2e"))]))
    return table(columns, lines, cards=True)


def _front(advice: AdviceTable) -> str:
    points = [(point.latency_ms, point.usd) for point in advice.front]
    notes = [f"{point.label}: {number(point.latency_ms)} ms, {number(point.usd)} $" for point in advice.front]
    line = Series("the best for their latency", points, notes=notes)
    chart = xy_chart([line], Axis("latency, ms", log=True), Axis(f"$ for {advice.amount}", log=True),
                     title="Latency against cost", width=_HALF_WIDTH, height=320)  # fmt: skip
    lines = [Line((safe(point.label), number(point.latency_ms), number(point.usd))) for point in advice.front]
    columns = (Column("none is both faster and cheaper"), Column("ms", "number"), Column("$", "number"))
    return f'<div class="pair"><div>{chart}</div><div>{table(columns, lines)}</div></div>'
