"""Rendering: a report as one HTML page that needs nothing else: no network, no script, no font."""

from foretell.rendering.html.report_choices import advice_section, batches_section, devices_section
from foretell.rendering.html.report_content import Report
from foretell.rendering.html.report_parts import brief, entries, figure, number, section, span
from foretell.rendering.html.report_style import REPORT_CSS
from foretell.rendering.html.report_work import memory_section, roofline_section, time_section
from foretell.rendering.svg.canvas import safe
from foretell.units import engineering

_LINKS = (
    ("summary", "Summary"), ("memory", "Memory"), ("time", "Time"), ("roofline", "Roofline"), ("batches", "Batch size"),
    ("devices", "Devices"), ("advice", "Where to run it"), ("provenance", "Provenance"),
)  # fmt: skip
# whatever a model is named, the page asks nobody for anything and runs nothing
_POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:"
_SHOWN_INPUTS = 6
_ERRORS = {"latency_ms": "latency", "memory_mib": "memory", "power_w": "power", "energy_j": "energy"}


def report_page(report: Report) -> str:
    """The page; every text that comes from a model is escaped."""
    parts = (
        _summary(report), memory_section(report), time_section(report), roofline_section(report),
        batches_section(report),
        devices_section(report), advice_section(report), _provenance(report),
    )  # fmt: skip
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        '<meta name="color-scheme" content="light dark">\n<link rel="icon" href="data:,">\n'
        f"<title>{safe(report.name)} on {safe(report.device_name)} – foretell</title>\n"
        f"<style>{REPORT_CSS}</style>\n</head>\n<body>\n{_header(report)}\n<main>\n"
        + "\n".join(parts)
        + f"\n</main>\n<footer>foretell {safe(report.provenance.version)} · {safe(report.provenance.made)}</footer>\n"
        "</body>\n</html>\n"
    )


def _header(report: Report) -> str:
    told = report.prediction
    setting = [report.device_name, told.mode, f"batch {told.batch_size}", told.dtype]
    setting += [told.optimizer] if told.optimizer else []
    counted = (("parameters", " parameters"), ("macs", "MACs"), ("flops", "FLOPs"))
    counts = [engineering(told.facts[key], unit) for key, unit in counted if key in told.facts]
    links = "".join(f'<a href="#{name}">{title}</a>' for name, title in _LINKS)
    return (
        f'<header><p class="over">foretell report</p><h1>{safe(report.name)}</h1>'
        f'<p class="where">{safe(" · ".join(setting))}</p><p class="counts">{safe(" · ".join(counts))}</p>'
        f"<nav>{links}</nav></header>"
    )


def _summary(report: Report) -> str:
    told = report.prediction
    item = f"{number(told.energy_j.value / told.batch_size)} J an item" if told.energy_j and told.batch_size > 1 else ""
    figures = (
        ("Latency", told.latency_ms, "ms", ""),
        ("Throughput", told.throughput_per_s, "items/s", ""),
        ("Memory", told.device_memory_mib or told.memory_mib, "MiB", ""),
        ("Energy", told.energy_j, "J", item),
        ("Power", told.power_w, "W", ""),
    )
    shown = "".join(figure(label, found, unit, text) for label, found, unit, text in figures if found is not None)
    missing = [label.lower() for label, found, *_ in figures if found is None]
    rows = [("Predictor", f"{safe(told.predictor)}, {'measured' if told.source == 'measured' else _how_good(report)}")]
    rows.append(("Coverage", f"{100 * told.coverage:.3g} % of the model's cost is in operators that foretell knows"))
    if told.host_latency_ms is not None:
        host = told.host_latency_ms
        rows.append(("Eager latency", f"{number(host.value)} ms ({span(host)}) where a host launches every kernel"))
    if missing:
        rows.append(("Not told", safe(", ".join(missing))))
    warnings = "".join(f"<li>{safe(text)}</li>" for text in told.warnings)
    content = [f'<div class="figures">{shown}</div>', entries(rows)]
    content += [f'<ul class="note alarm">{warnings}</ul>'] if warnings else []
    lead = "Below each number is the interval that should hold the truth nine times in ten."
    return section("summary", "Summary", lead, *content)


def _how_good(report: Report) -> str:
    error = report.provenance.held_out.get("latency_ms")
    if error is None:
        return "extrapolated: no measurement of this device went into it"
    return f"{error:.1%} off on average in the latency of architectures that it had not seen"


def _provenance(report: Report) -> str:
    found, told = report.provenance, report.prediction
    errors = ", ".join(
        f"{label} {found.held_out[name]:.1%}" for name, label in _ERRORS.items() if name in found.held_out
    )
    more = len(found.inputs) - _SHOWN_INPUTS
    fitted = f"{found.trained_on:,} measured workloads; " if found.trained_on else ""
    rows = [
        ("foretell", safe(found.version)),
        ("Made", safe(found.made)),
        ("Predictor", f"{safe(told.predictor)} for {safe(told.device)}"),
        ("Held-out error", f"{fitted}on architectures it had not seen, mean error of {errors}" if errors else
                           _how_good(report)),
        ("Model", f"{found.nodes:,} operators, {told.facts.get('parameters', 0):,.0f} parameters, "
                  f"{told.facts.get('macs', 0):,.0f} MACs, {told.facts.get('flops', 0):,.0f} FLOPs a batch"),
        ("Inputs", "<br>".join([*map(brief, found.inputs[:_SHOWN_INPUTS]), *([f"{more} more"] if more > 0 else [])])),
        ("Graph hash", f"<code>{safe(found.graph_hash)}</code>"),
    ]  # fmt: skip
    for source in found.sources:
        rows.append((source.kind.capitalize(), f"{safe('; '.join(source.about))}: {safe(source.text)}"))
    content = (entries(rows), "<h3>Make it again</h3>", f"<pre>{safe(found.command)}</pre>")
    return section("provenance", "Provenance", "Where the numbers come from.", *content)
