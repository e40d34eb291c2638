"""Web: answers as HTML for the page: figures with their intervals, tables, charts; every text is escaped."""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from foretell.rendering.svg.canvas import number, safe
from foretell.rendering.svg.charts import Axis, Bar, Series, bar_chart, xy_chart

UNITS = {
    "latency_ms": ("latency", "ms"),
    "host_latency_ms": ("latency, eager", "ms"),
    "throughput_per_s": ("throughput", "items/s"),
    "memory_mib": ("memory", "MiB"),
    "device_memory_mib": ("device memory", "MiB"),
    "energy_j": ("energy", "J"),
    "power_w": ("power", "W"),
    "occupancy": ("occupancy", ""),
}
FACTS = {"parameters": "parameters", "macs": "MACs", "flops": "FLOPs"}
ABSENT = "–"
_FIGURES = ("latency_ms", "throughput_per_s", "device_memory_mib", "memory_mib", "energy_j", "power_w")
_MOST_FIGURES = 5
_MOST_OPERATORS = 8
_MOST_CHOICES = 8
_MOST_REASONS = 5
_WIDTH = 480  # of charts: letters are still to be read on a phone

Values = Mapping[str, Any]


def show_prediction(told: Values, rows: Sequence[Values]) -> str:
    """One prediction, and a sweep over devices and batch sizes around it."""
    here = [row for row in rows if row["batch_size"] == told["batch_size"]]
    own = [row for row in rows if row["device"] == told["device"]]
    parts = [_head(told["model"], _where(told)), _figures(told)]
    if told.get("mig_profile"):
        profile = told["mig_profile"]
        parts.append(_line(f"MIG profile: {profile['name'] or 'none'}; {profile['reason']}"))
    charts = []
    if len(here) > 1:
        parts.append(_devices(here))
        bars = [
            Bar(row["device"], row["latency_ms"], _fits(row), row["latency_ms_low"], row["latency_ms_high"])
            for row in here
            if row["latency_ms"] is not None
        ]
        charts.append(bar_chart(bars, title="Latency by device", unit="ms", width=_WIDTH))
    shares = [Bar(each["operator"], each["latency_ms"], f"{each['share']:.0%}") for each in told["breakdown"]]
    if shares:
        charts.append(bar_chart(shares[:_MOST_OPERATORS], title="Time by operator", unit="ms", width=_WIDTH))
    charts.append(_over_batches(own, told))
    return _page(*parts, _grid(charts), _notes(told["warnings"]), _source(told))


def show_comparison(found: Values) -> str:
    """Two predictions side by side."""
    first, second = found["models"]
    names = [each["model"] for each in (first, second)]
    if names[0] == names[1]:
        names = [f"{name} ({place})" for name, place in zip(names, ("first", "second"))]
    rows = []
    for key, (label, unit) in UNITS.items():
        if key in first or key in second:
            cells = [_with_interval(each.get(key)) for each in (first, second)]
            rows.append((f"{label}{f', {unit}' if unit else ''}", *cells, _times(found["times"].get(key))))
    charts = [
        bar_chart(
            [Bar(name, each[key]["value"], "", each[key]["low"], each[key]["high"])
             for name, each in zip(names, (first, second)) if key in each],
            title=UNITS[key][0].capitalize(), unit=UNITS[key][1], width=_WIDTH,
        )
        for key in ("latency_ms", "memory_mib", "energy_j")
        if key in first and key in second
    ]  # fmt: skip
    ratio = found["times"].get("latency_ms")
    said = f"{names[1]} takes {number(ratio)} times as long as {names[0]}" if ratio else " and ".join(names)
    warnings = dict.fromkeys([*first["warnings"], *second["warnings"]])
    sizes = [
        f"{number(found['times'][key])} times the {label}" for key, label in FACTS.items() if key in found["times"]
    ]
    table = _table(("", *names, "times"), rows) + _line(" · ".join(sizes))
    return _page(_head(said, _where(first)), table, _grid(charts), _notes(list(warnings)), _source(first))


def show_advice(found: Values, model: str) -> str:
    """The best places, the front of latency against cost, and why the others fell out."""
    choices = found["choices"]
    if not choices:
        return _page(_head(f"{model}: no place will do", ""), _reasons(found["refused"]))
    best = choices[0]
    where = f"{best['device']}{' ' + best['slice'] if best['slice'] else ''}"
    rows = [
        (
            f"{each['device']} {each['slice'] or ''}".strip() + ("" if each["calibrated"] else " ≈"),
            each["instance"], str(each["batch_size"]), _with_interval(each["latency_ms"]),
            _with_interval(each["usd_per_million"]), _value(each["kwh_per_million"]),
            _value(each["kg_co2e_per_million"]), _value(each["instances"]),
        )
        for each in choices[:_MOST_CHOICES]
    ]  # fmt: skip
    head = ("where", "instance", "batch", "ms", "$ a million", "kWh", "kg CO₂e", "instances")
    front = [each for each in found["front"] if each["usd_per_million"]]
    chart = xy_chart(
        [
            Series(
                "not beaten in both",
                [(each["latency_ms"]["value"], each["usd_per_million"]["value"]) for each in front],
                "points",
                notes=[f"{each['device']} {each['slice'] or ''}, batch {each['batch_size']}" for each in front],
            )
        ],
        Axis("latency, ms", log=True),
        Axis("$ a million inferences", log=True),
        title="Latency against cost",
        width=_WIDTH,
        height=320,
    )
    said = f"{len(choices)} places will do; ≈ is extrapolated: the device was not measured"
    title = f"{model}: {where}, batch {best['batch_size']}"
    return _page(_head(title, said), _table(head, rows, 2), _grid([chart] if front else []), _reasons(found["refused"]))


def show_problem(text: str) -> str:
    """An error, in words."""
    return f"<div class='ft ft-problem' role='alert'><b>That did not work.</b><p>{safe(text)}</p></div>"


def show_nothing(text: str) -> str:
    """What stands there before the first answer."""
    return f"<div class='ft ft-empty'>{safe(text)}</div>"


def _where(told: Values) -> str:
    part = f" {told['slice']}" if told["slice"] else ""
    return f"{told['device']}{part} · {told['mode']} · batch {told['batch_size']} · {told['dtype']}"


def _head(title: str, line: str) -> str:
    return f"<h3>{safe(title)}</h3>{_line(line)}"


def _line(text: str) -> str:
    return f"<p class='ft-line'>{safe(text)}</p>" if text else ""


def _figures(told: Values) -> str:
    """The main values, large, each with its interval."""
    keys = [key for key in _FIGURES if key in told and not (key == "memory_mib" and "device_memory_mib" in told)]
    cards = [
        f"<div class='ft-card'><span>{safe(UNITS[key][0])}</span><b>{number(told[key]['value'])}"
        f"<small> {safe(UNITS[key][1])}</small></b><i>{_range(told[key])}</i></div>"
        for key in keys[:_MOST_FIGURES]
    ]
    return f"<div class='ft-cards'>{''.join(cards)}</div>"


def _over_batches(rows: Sequence[Values], told: Values) -> str:
    shown = [row for row in rows if row["latency_ms"] is not None]
    line = Series(
        told["device"],
        [(row["batch_size"], row["latency_ms"]) for row in shown],
        band=[(row["batch_size"], row["latency_ms_low"], row["latency_ms_high"]) for row in shown],
        notes=[f"batch {row['batch_size']}: {number(row['latency_ms'])} ms {_fits(row)}" for row in shown],
    )
    axes = Axis("batch size", log=True), Axis("latency, ms", log=True)
    return xy_chart([line], *axes, title=f"Latency over batch sizes on {told['device']}", width=_WIDTH, height=300)


def _devices(rows: Sequence[Values]) -> str:
    keys = ("latency_ms", "throughput_per_s", "device_memory_mib", "energy_j")
    body = [
        (row["device"], *(_with_interval(_estimate(row, key)) for key in keys), row["predictor"], _fits(row))
        for row in rows
    ]
    return _table(("device", "ms", "items/s", "MiB", "J", "by", ""), body)


def _estimate(row: Values, key: str) -> Values | None:
    return None if row[key] is None else {"value": row[key], "low": row[f"{key}_low"], "high": row[f"{key}_high"]}


def _fits(row: Values) -> str:
    return "does not fit" if row["fits"] is False else ""


def _with_interval(estimate: Values | None) -> str:
    return ABSENT if estimate is None else f"{number(estimate['value'])}\n{_range(estimate)}"


def _value(estimate: Values | None) -> str:
    return ABSENT if estimate is None else number(estimate["value"])


def _range(estimate: Values) -> str:
    if estimate["low"] == estimate["high"]:
        return ""
    return f"{number(estimate['low'])} – {number(estimate['high'])}"


def _times(value: float | None) -> str:
    return ABSENT if value is None else f"{number(value)}×"


def _table(head: Sequence[str], rows: Sequence[Sequence[str]], texts: int = 1) -> str:
    """A table; what follows the first line of a cell is set small. The first columns hold texts, the others numbers."""
    kinds = [" class='ft-text'" if place < texts else "" for place in range(len(head))]
    titles = "".join(f"<th{kind}>{safe(each)}</th>" for kind, each in zip(kinds, head))
    lines = []
    for row in rows:
        cells = []
        for kind, text in zip(kinds, row):
            main, _, aside = text.partition("\n")
            cells.append(f"<td{kind}>{safe(main)}{f'<small>{safe(aside)}</small>' if aside else ''}</td>")
        lines.append(f"<tr>{''.join(cells)}</tr>")
    return (
        f"<div class='ft-scroll'><table><thead><tr>{titles}</tr></thead><tbody>{''.join(lines)}</tbody></table></div>"
    )


def _grid(charts: Sequence[str]) -> str:
    return f"<div class='ft-charts'>{''.join(f'<div>{chart}</div>' for chart in charts)}</div>" if charts else ""


def _notes(texts: Sequence[str]) -> str:
    return f"<ul class='ft-notes'>{''.join(f'<li>{safe(text)}</li>' for text in texts)}</ul>" if texts else ""


def _reasons(refused: Sequence[Values]) -> str:
    """Why places fell out, the most frequent reason first."""
    if not refused:
        return ""
    lines = []
    counted = Counter(each["reason"] for each in refused)
    for reason, count in counted.most_common(_MOST_REASONS):
        first = next(each["place"] for each in refused if each["reason"] == reason)
        lines.append(f"not {first}{f' and {count - 1} more' if count > 1 else ''}: {reason}")
    if len(counted) > _MOST_REASONS:
        lines.append(f"and {len(counted) - _MOST_REASONS} more reasons, all in the JSON")
    return _notes(lines)


def _source(told: Values) -> str:
    known = f", which knows {told['coverage']:.0%} of the work" if told["coverage"] < 1 else ""
    said = f"{told['source']} by {told['predictor']}{known}; intervals hold the truth nine times in ten"
    return _line(said)


def _page(*parts: str) -> str:
    return f"<div class='ft'>{''.join(parts)}</div>"
