"""Web: answers as HTML for the page: figures with intervals, tables and charts. Every text is escaped."""

from collections.abc import Mapping, Sequence
from typing import Any

from foretell.advisors.placement import Advice, Refused
from foretell.rendering.svg.canvas import number, safe
from foretell.rendering.svg.charts import Axis, Bar, Series, bar_chart, xy_chart
from foretell.rendering.words import MEANINGS, MIG, QUANTITIES, fit_text, source_of
from foretell.units import bytes_from_mib, size

_RANKED = {"usd_per_million": "dollars", "kwh_per_million": "kWh", "kg_co2e_per_million": "kg CO₂e"}
_SERVING = {
    "ttft_ms": ("first token after", "ms"), "tpot_ms": ("then a token every", "ms"),
    "tokens_per_s": ("tokens a second", ""), "requests_per_s": ("requests a second", ""),
    "energy_j_per_token": ("energy of a token", "J"), "usd_per_million_tokens": ("a million tokens", "$"),
    "gco2_per_thousand_tokens": ("a thousand tokens", "g CO₂e"),
}  # fmt: skip
FACTS = {"parameters": "parameters", "macs": "MACs", "flops": "FLOPs"}
ABSENT = "–"
_FIGURES = ("latency_ms", "throughput_per_s", "device_memory_mib", "memory_mib", "energy_j", "power_w", "occupancy")
_FIT_NOTES = {"perhaps": "perhaps does not fit", "no": "does not fit"}
_MAX_FIGURES = 6
_MAX_OPERATORS = 8
_MAX_CHOICES = 8
_WIDTH = 480  # of charts: narrow enough that the text stays legible on a phone

Values = Mapping[str, Any]


def show_prediction(prediction: Values, rows: Sequence[Values]) -> str:
    """One prediction, and a sweep over devices and batch sizes around it."""
    same_batch = [row for row in rows if row["batch_size"] == prediction["batch_size"]]
    same_device = [row for row in rows if row["device"] == prediction["device"]]
    parts = [_head(prediction["model"], _where(prediction)), _verdict(prediction), _figures(prediction)]
    sure = [row["batch_size"] for row in same_device if row["verdict"] == "yes"]
    if sure and len(same_device) > 1:
        parts.append(_line(f"The largest batch that surely fits, of those tried: {max(sure)}."))
    if prediction.get("mig_profile"):
        profile = prediction["mig_profile"]
        parts.append(_line(f"{_sentence(MIG)}: {profile['name'] or 'none'}; {profile['reason']}"))
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
    for key, (label, unit) in QUANTITIES.items():
        if key in first or key in second:
            cells = [_with_interval(model.get(key)) for model in (first, second)]
            rows.append((f"{label}{f', {unit}' if unit else ''}", *cells, _times(comparison["times"].get(key))))
    charts = [
        bar_chart(
            [Bar(name, model[key]["value"], "", model[key]["low"], model[key]["high"])
             for name, model in zip(names, (first, second)) if key in model],
            title=QUANTITIES[key][0].capitalize(), unit=QUANTITIES[key][1], width=_WIDTH,
        )
        for key in ("latency_ms", "device_memory_mib", "energy_j")
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
    verdicts = "".join(dict.fromkeys(map(_verdict, (first, second))))
    return _page(_head(headline, _where(first)), verdicts, table, _grid(charts), _notes(list(warnings)), _source(first))


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
    need, tone = sharing.get("memory_mib"), "yes" if sharing["fits"] else "no"
    of = f": about {size(bytes_from_mib(need['value']))} of device memory together" if need else ""
    said = f"{'Both fit' if sharing['fits'] else 'They do not fit together'} on {sharing['device']}{of}."
    verdict = f"<p class='ft-verdict ft-{tone}'>{safe(said)}</p>"
    return _page(_head(headline, where), verdict, _table(head, rows), _grid([chart]), _notes(sharing["warnings"]))


def show_advice(advice: Values, model: str) -> str:
    """The best places, the front of latency against what is ranked by, and what is excluded."""
    choices, ranked_by = advice["choices"], advice.get("ranked_by", "usd_per_million")
    if not choices:
        return _page(_head(f"{model}: no place meets the requirements", ""), _reasons(advice["refused"]))
    label = _RANKED[ranked_by]
    best = choices[0]
    where = best["place"]
    rows = [
        (
            choice["place"] + ("" if choice["calibrated"] else " ≈") + (" +" if choice["incomplete"] else ""),
            choice["instance"], _with_interval(choice["usd_per_million"]), _with_interval(choice["latency_ms"]),
            str(choice["batch_size"]), _value(choice["kwh_per_million"]),
            _value(choice["kg_co2e_per_million"]), _value(choice["instances"]),
        )
        for choice in choices[:_MAX_CHOICES]
    ]  # fmt: skip
    head = ("where", "instance", "$ a million", "latency, ms", "batch", "kWh", "kg CO₂e", "instances")
    front = [choice for choice in advice["front"] if choice[ranked_by]]
    chart = xy_chart(
        [
            Series(
                "not beaten in both",
                [(choice["latency_ms"]["value"], choice[ranked_by]["value"]) for choice in front],
                "points",
                notes=[f"{choice['place']}, batch {choice['batch_size']}" for choice in front],
            )
        ],
        Axis("latency, ms", log=True),
        Axis(f"{label} a million inferences", log=True),
        title=f"Latency against {label}",
        width=_WIDTH,
        height=320,
    )
    summary = (
        f"{len(choices)} places meet the requirements, ranked by {label} a million inferences; ≈ extrapolated: the "
        "device was not measured"
    )
    if any(choice["incomplete"] for choice in choices[:_MAX_CHOICES]):
        summary += "; + the price leaves out the machine, so it is ranked last"
    title = f"{model}: {where}, batch {best['batch_size']}"
    return _page(
        _head(title, summary),
        _table(head, rows, 2),
        _grid([chart] if front else []),
        _notes(advice["notes"]),
        _reasons(advice["refused"]),
    )


def show_serving(answer: Values) -> str:
    """A language model as engines serve it."""
    fits, gpus, least = answer["fits"], answer["gpus"], answer.get("smallest_gpus")
    where = f"{gpus} × {answer['device']}"
    headline = f"{answer['model']} fits on {where}" if fits else f"{answer['model']} does not fit on {where}"
    if not fits:
        headline += f"; it takes {least} of them" if least else "; nor on 8 of them: take a larger GPU or int4 weights"
    line = (
        f"{answer['input_tokens']:,} tokens in, {answer['output_tokens']:,} out, {answer['concurrency']:,} requests "
        f"at a time · weights in {answer['weights']}"
    )
    shown = [(label, unit, answer[key]) for key, (label, unit) in _SERVING.items() if key in answer]
    cards = "".join(_card(label, unit, estimate) for label, unit, estimate in shown)
    memory = answer["memory_mib_per_gpu"]
    facts = [
        f"Weights: {size(bytes_from_mib(answer['weights_mib']))} in all; a token of the cache: "
        f"{size(bytes_from_mib(answer['kv_cache_mib_per_token']))}.",
        f"Memory of each GPU: about {size(bytes_from_mib(memory['value']))}; it holds "
        f"{answer['max_concurrency']:,} requests of this length at a time.",
    ]
    if answer.get("offer"):
        facts.append(f"Dollars are those of {answer['offer']}.")
    tone = "yes" if fits else "no"
    verdict = f"<p class='ft-verdict ft-{tone}'>{safe(headline)}.</p>"
    return _page(_head(answer["model"], line), verdict, f"<div class='ft-cards'>{cards}</div>",
                 *(_line(fact) for fact in facts), _notes(answer["warnings"]))  # fmt: skip


def show_places(advice: Values) -> str:
    """Where to serve a language model: the best places, and what is excluded."""
    lengths = f"{advice['input_tokens']:,} tokens in, {advice['output_tokens']:,} out"
    choices = advice["choices"]
    if not choices:
        return _page(_head(f"{advice['model']}: no place keeps the limits", lengths), _reasons(advice["refused"]))
    best, shown = choices[0], choices[:_MAX_CHOICES]
    head = (
        "where", "instance", "$ a million tokens", "first token, ms", "a token, ms", "tokens/s", "requests", "copies"
    )  # fmt: skip
    rows = [
        (
            one["place"] + (" ≈" if one["extrapolated"] else "") + (" !" if one["at_risk"] else ""), one["instance"],
            *(_with_interval(one.get(key)) for key in ("usd_per_million_tokens", "ttft_ms", "tpot_ms")),
            _value(one.get("tokens_per_s")), f"{one['concurrency']:,}", f"{one['copies']:,}",
        )
        for one in shown
    ]  # fmt: skip
    copies = f", {best['copies']:,} copies" if best["copies"] > 1 else ""
    title = f"{advice['model']}: {best['place']}, {best['concurrency']:,} requests at a time{copies}"
    summary = (
        f"{len(choices)} places for {lengths}, ranked by dollars a token; ≈ extrapolated: the device was not measured; "
        "! the upper end of an interval breaks a limit"
    )
    warnings = list(dict.fromkeys(text for one in shown for text in one["warnings"]))
    return _page(_head(title, summary), _table(head, rows, 2), _notes(warnings), _reasons(advice["refused"]))


def show_progress(text: str, seconds: int) -> str:
    """What is shown while an answer is made."""
    waited = f"{seconds} s" if seconds else ""
    return (
        f"<div class='ft ft-busy' role='status'><div class='ft-bar' aria-hidden='true'></div>"
        f"<p>{safe(text)}</p><span>{waited}</span></div>"
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
    cards = []
    for key in keys[:_MAX_FIGURES]:
        label, unit = QUANTITIES[key]
        capacity = prediction.get("capacity_mib") if key in ("device_memory_mib", "memory_mib") else None
        of = f"of {size(bytes_from_mib(capacity))}" if capacity else ""
        cards.append(_card(label, unit, prediction[key], of, MEANINGS.get(label, "")))
    return f"<div class='ft-cards'>{''.join(cards)}</div>"


def _card(label: str, unit: str, estimate: Values, aside: str = "", meaning: str = "") -> str:
    """One value, large, with its interval; ``meaning`` is shown when a pointer rests on it."""
    title = f" title='{safe(meaning)}'" if meaning else ""
    more = f"<i>{safe(aside)}</i>" if aside else ""
    return (
        f"<div class='ft-card'{title}><span>{safe(label)}</span><b>{number(estimate['value'])}"
        f"<small> {safe(unit)}</small></b><i>{_range(estimate)}</i>{more}</div>"
    )


def _verdict(prediction: Values) -> str:
    """Whether it fits, first and in colour."""
    said = fit_text(prediction)
    return f"<p class='ft-verdict ft-{safe(prediction['fits'])}'>{safe(said)}</p>" if said else ""


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
        (row["device"], *(_with_interval(_estimate(row, key)) for key in keys), _capacity(row), _fits(row))
        for row in rows
    ]
    head = ("device", "latency, ms", "items/s", "device memory, MiB", "energy, J", "capacity", "")
    return _table(head, body)


def _capacity(row: Values) -> str:
    return ABSENT if row["capacity_mib"] is None else size(bytes_from_mib(row["capacity_mib"]))


def _estimate(row: Values, key: str) -> Values | None:
    return None if row[key] is None else {"value": row[key], "low": row[f"{key}_low"], "high": row[f"{key}_high"]}


def _fits(row: Values) -> str:
    return _FIT_NOTES.get(row["verdict"] or "yes", "")


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
    """What is excluded and why, in one line; all of it is in the JSON."""
    places = tuple(Refused(refusal["place"], refusal["reason"], refusal.get("kind", "")) for refusal in refused)
    return _line(Advice((), places).exclusions)


def _source(prediction: Values) -> str:
    known = f", which knows {prediction['coverage']:.0%} of the work" if prediction["coverage"] < 1 else ""
    source = "measured" if prediction["source"] == "measured" else source_of(prediction["predictor"])
    return _line(f"{_sentence(source)}{known}; the true value lies in the interval nine times in ten.")


def _sentence(text: str) -> str:
    return text[:1].upper() + text[1:]


def _page(*parts: str) -> str:
    return f"<div class='ft'>{''.join(parts)}</div>"
