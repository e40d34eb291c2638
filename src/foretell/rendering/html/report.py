"""Rendering: a report as one HTML page that loads nothing: no network, no script, no font."""

from foretell.rendering.html.report_choices import advice_section, batches_section, devices_section
from foretell.rendering.html.report_content import Report
from foretell.rendering.html.report_parts import brief, entries, figure, mib_text, number, section, span
from foretell.rendering.html.report_style import REPORT_CSS
from foretell.rendering.html.report_work import memory_section, roofline_section, time_section
from foretell.rendering.svg.canvas import safe
from foretell.rendering.words import fit_sentence, source_of
from foretell.units import engineering

_LINKS = (
    ("verdict", "Verdict"), ("summary", "Summary"), ("memory", "Memory"), ("time", "Time"), ("roofline", "Roofline"),
    ("batches", "Batch size"), ("devices", "Devices"), ("advice", "Where to run it"), ("provenance", "Provenance"),
)  # fmt: skip
# A second line of defence after escaping: whatever a name in a model contains, the page loads and runs nothing.
_CONTENT_POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:"
_MAX_INPUTS = 6
_ERRORS = {"latency_ms": "latency", "memory_mib": "memory", "power_w": "power", "energy_j": "energy"}


def report_page(report: Report) -> str:
    """The page; every text that comes from a model is escaped."""
    parts = (
        _verdict(report), _summary(report), memory_section(report), time_section(report), roofline_section(report),
        batches_section(report),
        devices_section(report), advice_section(report), _provenance(report),
    )  # fmt: skip
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{_CONTENT_POLICY}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        '<meta name="color-scheme" content="light dark">\n<link rel="icon" href="data:,">\n'
        f"<title>{safe(report.name)} on {safe(report.device_name)} – foretell</title>\n"
        f"<style>{REPORT_CSS}</style>\n</head>\n<body>\n{_header(report)}\n<main>\n"
        + "\n".join(parts)
        + f"\n</main>\n<footer>foretell {safe(report.provenance.version)} · {safe(report.provenance.made)}</footer>\n"
        "</body>\n</html>\n"
    )


def _header(report: Report) -> str:
    prediction = report.prediction
    setting = [report.device_name, prediction.mode, f"batch {prediction.batch_size}", prediction.dtype]
    setting += [prediction.optimizer] if prediction.optimizer else []
    counted = (("parameters", " parameters"), ("macs", "MACs"), ("flops", "FLOPs"))
    counts = [engineering(prediction.facts[key], unit) for key, unit in counted if key in prediction.facts]
    links = "".join(f'<a href="#{name}">{title}</a>' for name, title in _LINKS)
    return (
        f'<header><p class="over">foretell report</p><h1>{safe(report.name)}</h1>'
        f'<p class="where">{safe(" · ".join(setting))}</p><p class="counts">{safe(" · ".join(counts))}</p>'
        f"<nav>{links}</nav></header>"
    )


def _verdict(report: Report) -> str:
    """Three lines: does it fit, how fast is it, where would one run it."""
    prediction, latency = report.prediction, report.prediction.latency_ms
    lines = [f'<span class="fits-{prediction.fits}">{safe(fit_sentence(prediction))}</span>'] if prediction.fits else []
    if latency is not None and prediction.throughput_per_s is not None:
        what = "a training step" if prediction.mode == "training" else f"a batch of {prediction.batch_size}"
        per_s = f"{number(prediction.throughput_per_s.value)} items a second"
        lines.append(safe(f"Takes {number(latency.value)} ms ({span(latency)}) for {what}: {per_s}."))
    if report.advice is not None and report.advice.rows:
        best = report.advice.rows[0]
        usd = "" if best.usd is None else f", {number(best.usd.value)} $ for {report.advice.amount}"
        lines.append(safe(f"Cheapest: {best.place} ({best.instance}), batch {best.batch_size}{usd}."))
    return f'<section id="verdict"><h2>Verdict</h2><p class="verdict">{"<br>".join(lines)}</p></section>'


def _summary(report: Report) -> str:
    prediction = report.prediction
    item = (
        f"{number(prediction.energy_j.value / prediction.batch_size)} J an item"
        if prediction.energy_j and prediction.batch_size > 1
        else ""
    )
    capacity = "" if prediction.capacity_mib is None else f"of {mib_text(prediction.capacity_mib)}"
    figures = (
        ("Latency", prediction.latency_ms, "ms", ""),
        ("Throughput", prediction.throughput_per_s, "items/s", ""),
        ("Device memory" if prediction.device_memory_mib else "Peak memory", prediction.need_mib, "MiB", capacity),
        ("Energy", prediction.energy_j, "J", item),
        ("Power", prediction.power_w, "W", ""),
        ("Occupancy", prediction.occupancy, "%", ""),
    )
    shown = "".join(
        figure(label, estimate, unit, text) for label, estimate, unit, text in figures if estimate is not None
    )
    missing = [label.lower() for label, estimate, *_ in figures if estimate is None]
    rows = [
        (
            "From",
            "measured"
            if prediction.source == "measured"
            else f"{source_of(prediction.predictor)}: {_accuracy(report)}",
        )
    ]
    rows.append(
        ("Coverage", f"{100 * prediction.coverage:.3g} % of the model's cost is in operators that foretell knows")
    )
    if prediction.host_latency_ms is not None:
        host = prediction.host_latency_ms
        rows.append(("Eager latency", f"{number(host.value)} ms ({span(host)}) where a host launches every kernel"))
    if missing:
        rows.append(("Not predicted", safe(", ".join(missing))))
    warnings = "".join(f"<li>{safe(text)}</li>" for text in prediction.warnings)
    content = [f'<div class="figures">{shown}</div>', entries(rows)]
    content += [f'<ul class="note alarm">{warnings}</ul>'] if warnings else []
    lead = "Below each number is its interval, which should contain the true value nine times in ten."
    return section("summary", "Summary", lead, *content)


def _accuracy(report: Report) -> str:
    error = report.provenance.held_out.get("latency_ms")
    if error is None:
        return "extrapolated, not fitted to measurements of this device"
    median = report.provenance.held_out.get("latency_ms_median")
    middle = "" if median is None else f" (median {median:.1%})"
    return f"{error:.1%}{middle} mean error of the latency for architectures that it was not fitted to"


def _provenance(report: Report) -> str:
    provenance, prediction = report.provenance, report.prediction
    errors = ", ".join(
        f"{label} {provenance.held_out[name]:.1%}" for name, label in _ERRORS.items() if name in provenance.held_out
    )
    more = len(provenance.inputs) - _MAX_INPUTS
    inputs = [*map(brief, provenance.inputs[:_MAX_INPUTS]), *([f"{more} more"] if more > 0 else [])]
    facts = prediction.facts
    fitted = f"{provenance.trained_on:,} measured workloads; " if provenance.trained_on else ""
    rows = [
        ("foretell", safe(provenance.version)),
        ("Made", safe(provenance.made)),
        ("Predictor", f"{safe(prediction.predictor)} for {safe(prediction.device)}"),
        ("Held-out error", f"{fitted}mean error for architectures that it was not fitted to: {errors}" if errors else
                           _accuracy(report)),
        ("Model", f"{provenance.nodes:,} operators, {facts.get('parameters', 0):,.0f} parameters, "
                  f"{facts.get('macs', 0):,.0f} MACs, {facts.get('flops', 0):,.0f} FLOPs a batch"),
        ("Inputs", "<br>".join(inputs)),
        ("Graph hash", f"<code>{safe(provenance.graph_hash)}</code>"),
    ]  # fmt: skip
    for source in provenance.sources:
        rows.append((source.kind.capitalize(), f"{safe('; '.join(source.about))}: {safe(source.text)}"))
    content = (entries(rows), "<h3>Make this report again</h3>", f"<pre>{safe(provenance.command)}</pre>")
    return section("provenance", "Provenance", "Where the numbers come from.", *content)
