"""Web: answers as HTML for the page: figures with intervals, tables and charts. Every text is escaped."""

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
    "occupancy": ("occupancy", "%"),
}
FACTS = {"parameters": "parameters", "macs": "MACs", "flops": "FLOPs"}
ABSENT = "–"
_FIGURES = ("latency_ms", "throughput_per_s", "device_memory_mib", "memory_mib", "energy_j", "power_w", "occupancy")
_MAX_FIGURES = 6
_MAX_OPERATORS = 8
_MAX_CHOICES = 8
_MAX_REASONS = 5
_WIDTH = 480  # of charts: narrow enough that the text stays legible on a phone

Values = Mapping[str, Any]


def show_prediction(prediction: Values, rows: Sequence[Values]) -> str:
    """One prediction, and a sweep over devices and batch sizes around it."""
    same_batch = [row for row in rows if row["batch_size"] == prediction["batch_size"]]
    same_device = [row for row in rows if row["device"] == prediction["device"]]
    parts = [_head(prediction["model"], _where(prediction)), _figures(prediction)]
    if prediction.get("mig_profile"):
        profile = prediction["mig_profile"]
        parts.append(_line(f"MIG profile: {profile['name'] or 'none'}; {profile['reason']}"))
    charts = []
    if len(same_batch) > 1:
        parts.append(_devices(same_batch))
        bars = [
            Bar(row["device"], row["latency_ms"], _fits(row), row["latency_ms_low"], row["latency_ms_high"])
            for row in same_batch
            if row["latency_ms"] is not None
        ]
        charts.append(bar_chart(bars, title="Latency by device", unit="ms", width=_WIDTH))
    shares = [Bar(share["operator"], share["latency_ms"], f"{share['share']:.0%}") for share in prediction["breakdown"]]
    if shares:
        charts.append(bar_chart(shares[:_MAX_OPERATORS], title="Time by operator", unit="ms", width=_WIDTH))
    charts.append(_over_batches(same_device, prediction))
    return _page(*parts, _grid(charts), _notes(prediction["warnings"]), _source(prediction))


def show_comparison(comparison: Values) -> str:
    """Two predictions side by side."""
    first, second = comparison["models"]
    names = [model["model"] for model in (first, second)]
    if names[0] == names[1]:
        names = [f"{name} ({place})" for name, place in zip(names, ("first", "second"))]
    rows = []
    for key, (label, unit) in UNITS.items():
        if key in first or key in second:
            cells = [_with_interval(model.get(key)) for model in (first, second)]
            rows.append((f"{label}{f', {unit}' if unit else ''}", *cells, _times(comparison["times"].get(key))))
    charts = [
        bar_chart(
            [Bar(name, model[key]["value"], "", model[key]["low"], model[key]["high"])
             for name, model in zip(names, (first, second)) if key in model],
            title=UNITS[key][0].capitalize(), unit=UNITS[key][1], width=_WIDTH,
        )
        for key in ("latency_ms", "memory_mib", "energy_j")
        if key in first and key in second
    ]  # fmt: skip
    ratio = comparison["times"].get("latency_ms")
    headline = f"{names[1]} takes {number(ratio)} times as long as {names[0]}" if ratio else " and ".join(names)
    warnings = dict.fromkeys([*first["warnings"], *second["warnings"]])
    sizes = [
        f"{number(comparison['times'][key])} times the {label}"
        for key, label in FACTS.items()
        if key in comparison["times"]
    ]
    table = _table(("", *names, "times"), rows) + _line(" · ".join(sizes))
    return _page(_head(headline, _where(first)), table, _grid(charts), _notes(list(warnings)), _source(first))


def show_sharing(sharing: Values) -> str:
    """Two models on one GPU: a bar alone and one together for each."""
    jobs = sharing["jobs"]
    names = [f"{place} {job['model']}" for place, job in enumerate(jobs, start=1)]
    bars = [
        Bar(name if key == "alone_ms" else "", job[key]["value"], word, job[key]["low"], job[key]["high"], colour)
        for name, job in zip(names, jobs)
        for colour, (key, word) in enumerate((("alone_ms", "alone"), ("together_ms", "together")))
        if key in job
    ]
    head = ("", "alone, ms", "together, ms", "times slower", "device memory, MiB")
    keys = ("alone_ms", "together_ms", "slowdown", "device_memory_mib")
    rows = [(name, *(_with_interval(job.get(key)) for key in keys)) for name, job in zip(names, jobs)]
    gain = sharing.get("throughput_gain")
    headline = "They do not fit together"
    if sharing["fits"] and gain:
        headline = f"Together they do {number(gain['value'])} times the work of one after the other ({_range(gain)})"
    first = jobs[0]
    where = " · ".join(
        [sharing["device"], sharing["method"], first["mode"], f"batch {first['batch_size']}", first["dtype"]]
    )
    chart = bar_chart(bars, title="One run of each model", unit="ms", width=_WIDTH)
    return _page(_head(headline, where), _table(head, rows), _grid([chart]), _notes(sharing["warnings"]))


def show_advice(advice: Values, model: str) -> str:
    """The best places, the front of latency against cost, and why the other places were refused."""
    choices = advice["choices"]
    if not choices:
        return _page(_head(f"{model}: no place meets the requirements", ""), _reasons(advice["refused"]))
    best = choices[0]
    where = best["place"]
    rows = [
        (
            choice["place"] + ("" if choice["calibrated"] else " ≈"),
            choice["instance"], str(choice["batch_size"]), _with_interval(choice["latency_ms"]),
            _with_interval(choice["usd_per_million"]), _value(choice["kwh_per_million"]),
            _value(choice["kg_co2e_per_million"]), _value(choice["instances"]),
        )
        for choice in choices[:_MAX_CHOICES]
    ]  # fmt: skip
    head = ("where", "instance", "batch", "ms", "$ a million", "kWh", "kg CO₂e", "instances")
    front = [choice for choice in advice["front"] if choice["usd_per_million"]]
    chart = xy_chart(
        [
            Series(
                "not beaten in both",
                [(choice["latency_ms"]["value"], choice["usd_per_million"]["value"]) for choice in front],
                "points",
                notes=[f"{choice['place']}, batch {choice['batch_size']}" for choice in front],
            )
        ],
        Axis("latency, ms", log=True),
        Axis("$ a million inferences", log=True),
        title="Latency against cost",
        width=_WIDTH,
        height=320,
    )
    summary = f"{len(choices)} places meet the requirements; ≈ extrapolated: the device was not measured"
    title = f"{model}: {where}, batch {best['batch_size']}"
    return _page(
        _head(title, summary),
        _table(head, rows, 2),
        _grid([chart] if front else []),
        _notes(advice["notes"]),
        _reasons(advice["refused"]),
    )


def show_problem(text: str) -> str:
    """An error message."""
    return f"<div class='ft ft-problem' role='alert'><b>That did not work.</b><p>{safe(text)}</p></div>"


def show_nothing(text: str) -> str:
    """What is shown before the first answer."""
    return f"<div class='ft ft-empty'>{safe(text)}</div>"


def _where(prediction: Values) -> str:
    part = f" {prediction['slice']}" if prediction["slice"] else ""
    setting = (prediction["mode"], f"batch {prediction['batch_size']}", prediction["dtype"])
    return " · ".join([f"{prediction['device']}{part}", *setting])


def _head(title: str, line: str) -> str:
    return f"<h3>{safe(title)}</h3>{_line(line)}"


def _line(text: str) -> str:
    return f"<p class='ft-line'>{safe(text)}</p>" if text else ""


def _figures(prediction: Values) -> str:
    """The main values, large, each with its interval."""
    keys = [
        key for key in _FIGURES if key in prediction and not (key == "memory_mib" and "device_memory_mib" in prediction)
    ]
    cards = [
        f"<div class='ft-card'><span>{safe(UNITS[key][0])}</span><b>{number(prediction[key]['value'])}"
        f"<small> {safe(UNITS[key][1])}</small></b><i>{_range(prediction[key])}</i></div>"
        for key in keys[:_MAX_FIGURES]
    ]
    return f"<div class='ft-cards'>{''.join(cards)}</div>"


def _over_batches(rows: Sequence[Values], prediction: Values) -> str:
    shown = [row for row in rows if row["latency_ms"] is not None]
    line = Series(
        prediction["device"],
        [(row["batch_size"], row["latency_ms"]) for row in shown],
        band=[(row["batch_size"], row["latency_ms_low"], row["latency_ms_high"]) for row in shown],
        notes=[f"batch {row['batch_size']}: {number(row['latency_ms'])} ms {_fits(row)}" for row in shown],
    )
    axes = Axis("batch size", log=True), Axis("latency, ms", log=True)
    return xy_chart(
        [line], *axes, title=f"Latency over batch sizes on {prediction['device']}", width=_WIDTH, height=300
    )


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
    """A table. The first ``texts`` columns hold text, the others numbers; the second line of a cell is small."""
    kinds = [" class='ft-text'" if place < texts else "" for place in range(len(head))]
    titles = "".join(f"<th{kind}>{safe(title)}</th>" for kind, title in zip(kinds, head))
    lines = []
    for row in rows:
        cells = []
        for kind, title, text in zip(kinds, head, row):
            main, _, aside = text.partition("\n")
            named = f" data-head='{safe(title)}'" if title else ""
            cells.append(f"<td{kind}{named}>{safe(main)}{f'<small>{safe(aside)}</small>' if aside else ''}</td>")
        lines.append(f"<tr>{''.join(cells)}</tr>")
    return (
        f"<div class='ft-scroll'><table><thead><tr>{titles}</tr></thead><tbody>{''.join(lines)}</tbody></table></div>"
    )


def _grid(charts: Sequence[str]) -> str:
    return f"<div class='ft-charts'>{''.join(f'<div>{chart}</div>' for chart in charts)}</div>" if charts else ""


def _notes(texts: Sequence[str]) -> str:
    return f"<ul class='ft-notes'>{''.join(f'<li>{safe(text)}</li>' for text in texts)}</ul>" if texts else ""


def _reasons(refused: Sequence[Values]) -> str:
    """Why places were refused, the most frequent reason first."""
    if not refused:
        return ""
    lines = []
    counted = Counter(refusal["reason"] for refusal in refused)
    for reason, count in counted.most_common(_MAX_REASONS):
        first = next(refusal["place"] for refusal in refused if refusal["reason"] == reason)
        lines.append(f"not {first}{f' and {count - 1} more' if count > 1 else ''}: {reason}")
    if len(counted) > _MAX_REASONS:
        lines.append(f"and {len(counted) - _MAX_REASONS} more reasons, all in the JSON")
    return _notes(lines)


def _source(prediction: Values) -> str:
    known = f", which knows {prediction['coverage']:.0%} of the work" if prediction["coverage"] < 1 else ""
    source = f"{prediction['source']} by {prediction['predictor']}{known}"
    return _line(f"{source}; the true value lies in the interval nine times in ten")


def _page(*parts: str) -> str:
    return f"<div class='ft'>{''.join(parts)}</div>"
