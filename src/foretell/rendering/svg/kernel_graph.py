"""Rendering: a graph of kernels as an SVG picture, without scripts, every name escaped."""

import math
import unicodedata
from collections.abc import Sequence
from itertools import groupby
from xml.sax.saxutils import escape, quoteattr

from foretell.predictors.fusion.kernel_graph import KINDS, LEFT_OUT, MAX_KERNELS, Flow, Kernel, KernelGraph, shorten
from foretell.rendering.svg.graph_columns import fold
from foretell.rendering.svg.graph_layout import Box, Route, lay_out
from foretell.rendering.terminal.printable import printable
from foretell.units import ms, seconds_from_us, size

MAX_ARROWS = 2000
MAX_BOXES = 36  # what can be read on one screen
_MAX_LINES = 6
_MAX_CHARACTERS = 34
_FONT, _SMALL = 12.0, 11.0
_LINE, _PAD, _MARGIN, _SWATCH = 16.0, 9.0, 24.0, 8.0
_HEAD_LINE = 20.0
# By kind: the text in the legend, the colour of lines, and the colour of areas.
_STYLES = {
    "product": ("convolution, product, attention", "#2b6cb0", "#e6f0fa"),
    "normalisation": ("normalisation", "#2f855a", "#e5f5ec"),
    "other": ("reduction, pooling, other", "#7049b8", "#f1ebfb"),
    "pointwise": ("pointwise", "#c05621", "#fdf0e3"),
    "movement": ("data movement", "#667080", "#eff1f4"),
    LEFT_OUT: ("left out", "#8a8f98", "#ffffff"),
}
_STYLE = (
    "text{font-family:sans-serif;fill:#1a202c}"
    ".flow{fill:none;stroke:#8490a0}.flow:hover{stroke:#1a202c;stroke-width:3px}"
)

Line = tuple[str, str | None]  # a text, and the kind whose colour is shown before it


def draw(graph: KernelGraph, title: str, most: int = MAX_BOXES) -> str:
    """Draw the picture in columns, about as wide as a screen.

    Of many kernels and arrows some are left out, repeats first; a note in the picture says so.
    """
    graph = shorten(graph, min(most, MAX_KERNELS))
    # If there are too many, the shortest arrows stay: long ones make the picture hard to read.
    flows = sorted(graph.flows, key=lambda flow: (flow.target - flow.source, flow.source))[:MAX_ARROWS]
    notes = [*graph.notes, "An arrow is a tensor, wider where it has more bytes: point at it to read how many."]
    if len(flows) < len(graph.flows):
        notes.append(f"{len(graph.flows) - len(flows)} of {len(graph.flows)} arrows are left out, the longest ones.")
    total_us = sum(kernel.time_us or 0.0 for kernel in graph.kernels)
    lines = [_lines(kernel, total_us) for kernel in graph.kernels]
    edges = [(flow.source, flow.target) for flow in flows]
    layout = fold(lay_out([_size_of(box_lines) for box_lines in lines], edges), edges)
    head, head_width = _head(title, notes, graph)
    top = 2 * _MARGIN + _HEAD_LINE * (len(notes) + 2)
    width = max(layout.width, head_width) + 2 * _MARGIN
    height = top + layout.height + _MARGIN
    left = (width - layout.width) / 2
    largest = max((flow.bytes for flow in flows), default=0)
    paths = [
        layout.crossing.get(number) or (_path_in_lane(route) if route.lane else _path_among_boxes(route))
        for number, route in enumerate(layout.routes)
    ]
    body = [_arrow(flow, path, largest) for flow, path in zip(flows, paths)]
    body += [_box(kernel, box_lines, box) for kernel, box_lines, box in zip(graph.kernels, lines, layout.boxes)]
    return "\n".join([
        '<?xml version="1.0" encoding="UTF-8"?>',
        # a viewer scales the picture to its window, and never beyond its own size
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width:.0f}" height="{height:.0f}"'
        f' viewBox="0 0 {width:.0f} {height:.0f}" style="max-width:100%;max-height:100vh">',
        f"<title>{_safe(title)}</title>",
        f"<style>{_STYLE}</style>",
        '<defs><marker id="tip" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="8" markerHeight="8"'
        ' markerUnits="userSpaceOnUse" orient="auto"><path d="M0 0L8 4L0 8Z" fill="#667080"/></marker></defs>',
        f'<rect width="{width:.0f}" height="{height:.0f}" fill="#ffffff"/>',
        *head,
        f'<g transform="translate({left:.1f} {top:.1f})">',
        *body,
        "</g>",
        "</svg>",
        "",
    ])  # fmt: skip


def _safe(text: str) -> str:
    """A name from inside a model, escaped for XML."""
    return escape(printable(text))


def _short(text: str) -> str:
    # The end of a name stays, because it says more: layer4.2.conv1.
    return text if len(text) <= _MAX_CHARACTERS else "…" + text[1 - _MAX_CHARACTERS :]


def _text_width(text: str, font: float) -> float:
    """An estimate of the width of a text. The fonts of readers differ, so it is rather too large."""
    wide = sum(unicodedata.east_asian_width(c) in "WF" for c in text)
    capital = sum(c.isupper() or c in "mwMW_%×…" for c in text)
    return font * (0.55 * len(text) + 0.17 * capital + 0.5 * wide)


def _lines(kernel: Kernel, total_us: float) -> list[Line]:
    """The lines of a box: name, time, and operators; repeated operators share a line."""
    lines: list[Line] = [(_short(kernel.label), None)]
    if kernel.time_us is not None and total_us > 0:
        long_ms = ms(seconds_from_us(kernel.time_us))
        took = f"{long_ms:.3g} ms" if long_ms >= 1 else f"{kernel.time_us:.3g} µs"
        lines.append((f"{took} · {kernel.time_us / total_us:.1%}", None))
    runs = [(pair, len(list(run))) for pair, run in groupby(zip(kernel.operators, kernel.kinds))]
    shown = runs if len(runs) <= _MAX_LINES else runs[: _MAX_LINES - 1]
    lines += [(_short(f"{name} × {count}" if count > 1 else name), kind) for (name, kind), count in shown]
    if len(shown) < len(runs):
        lines.append((f"… {sum(count for _, count in runs[len(shown) :])} more", None))
    return lines


def _size_of(lines: Sequence[Line]) -> tuple[float, float]:
    widths = [_text_width(lines[0][0], _FONT) * 1.2]  # the name is bold, hence wider
    widths += [_text_width(text, _SMALL) + (_SWATCH + 5 if kind else 0) for text, kind in lines[1:]]
    return max(70.0, max(widths) + 2 * _PAD), _LINE * len(lines) + _PAD


def _box(kernel: Kernel, lines: Sequence[Line], box: Box) -> str:
    _, strong, pale = _STYLES[kernel.kind]
    dashed = ' stroke-dasharray="5 4"' if kernel.kind == LEFT_OUT else ""
    parts = [
        f"<g><title>{_safe(_tooltip(kernel))}</title>",
        f'<rect x="{box.x:.1f}" y="{box.y:.1f}" width="{box.width:.1f}" height="{box.height:.1f}" rx="5"'
        f' fill="{pale}" stroke="{strong}" stroke-width="1.2"{dashed}/>',
    ]
    for row, (text, kind) in enumerate(lines):
        x, y = box.x + _PAD, box.y + _LINE * (row + 1) - 1.0
        if kind:
            parts.append(
                f'<rect x="{x:.1f}" y="{y - _SWATCH:.1f}" width="{_SWATCH:g}" height="{_SWATCH:g}"'
                f' rx="1.5" fill="{_STYLES[kind][1]}"/>'
            )
            x += _SWATCH + 5
        style = f'font-size="{_FONT:g}" font-weight="bold"' if row == 0 else f'font-size="{_SMALL:g}"'
        parts.append(f'<text x="{x:.1f}" y="{y:.1f}" {style}>{_safe(text)}</text>')
    return "".join([*parts, "</g>"])


def _tooltip(kernel: Kernel) -> str:
    """The tooltip of a box."""
    if kernel.kind == LEFT_OUT:
        return f"{kernel.stands_for} kernels are left out here"
    max_operators = 60
    more = f" … {len(kernel.operators) - max_operators} more" if len(kernel.operators) > max_operators else ""
    return f"{kernel.label[:500]}: {' '.join(kernel.operators[:max_operators])}{more}"


def _arrow(flow: Flow, path: str, largest: int) -> str:
    # Square root: sizes of tensors span many orders of magnitude.
    stroke = 1.0 + 2.0 * math.sqrt(flow.bytes / largest) if largest else 1.0
    return (
        f'<path class="flow" d="{path}" stroke-width="{stroke:.1f}" marker-end="url(#tip)">'
        f"<title>{escape(size(flow.bytes))}</title></path>"
    )


def _path_among_boxes(route: Route) -> str:
    """The path of an arrow between boxes: vertical pieces, joined by curves."""
    (x, y, end), *rest = route.pieces
    path = [f"M{x:.1f} {y:.1f}V{end:.1f}" if end > y else f"M{x:.1f} {y:.1f}"]
    for to, top, bottom in rest:
        middle = (end + top) / 2
        path.append(f"C{x:.1f} {middle:.1f} {to:.1f} {middle:.1f} {to:.1f} {top:.1f}")
        if bottom > top:
            path.append(f"V{bottom:.1f}")
        x, end = to, bottom
    return "".join(path)


def _path_in_lane(route: Route) -> str:
    """The path of an arrow that leaves to a lane beside the boxes, follows it, and returns, with round corners."""
    (start, bottom, leave), (lane, _, _), (to, arrive, top) = route.pieces
    turn = 6.0
    return (
        f"M{start:.1f} {bottom:.1f}V{leave - turn:.1f}Q{start:.1f} {leave:.1f} {start + turn:.1f} {leave:.1f}"
        f"H{lane - turn:.1f}Q{lane:.1f} {leave:.1f} {lane:.1f} {leave + turn:.1f}"
        f"V{arrive - turn:.1f}Q{lane:.1f} {arrive:.1f} {lane - turn:.1f} {arrive:.1f}"
        f"H{to + turn:.1f}Q{to:.1f} {arrive:.1f} {to:.1f} {arrive + turn:.1f}V{top:.1f}"
    )


def _head(title: str, notes: Sequence[str], graph: KernelGraph) -> tuple[list[str], float]:
    """The title, the legend of the colours in use and the notes, and their width."""
    y = _MARGIN + _FONT
    parts = [f'<text x="{_MARGIN:g}" y="{y:g}" font-size="15" font-weight="bold">{_safe(title)}</text>']
    width = _text_width(title, 15) * 1.2
    used = {kernel.kind for kernel in graph.kernels} | {kind for kernel in graph.kernels for kind in kernel.kinds}
    x, y = _MARGIN, y + _HEAD_LINE + 3
    for kind in (*KINDS, LEFT_OUT):
        if kind not in used:
            continue
        name, strong, pale = _STYLES[kind]
        dashed = ' stroke-dasharray="3 2"' if kind == LEFT_OUT else ""
        parts.append(
            f'<rect x="{x:.1f}" y="{y - 10:.1f}" width="16" height="12" rx="2" fill={quoteattr(pale)}'
            f' stroke="{strong}" stroke-width="2"{dashed}/>'
            f'<text x="{x + 22:.1f}" y="{y:.1f}" font-size="{_FONT:g}">{escape(name)}</text>'
        )
        x += 22 + _text_width(name, _FONT) + 20
    width = max(width, x - _MARGIN)
    for note in notes:
        y += _HEAD_LINE - 2
        parts.append(f'<text x="{_MARGIN:g}" y="{y:.1f}" font-size="{_SMALL:g}">{_safe(note)}</text>')
        width = max(width, _text_width(note, _SMALL))
    return parts, width
