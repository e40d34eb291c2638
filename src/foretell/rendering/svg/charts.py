"""Rendering: line, point and bar charts as SVG, without scripts, every name escaped."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from foretell.rendering.svg.canvas import (
    CHART_CSS,
    COLOURS,
    DASHES,
    FONT,
    PAD,
    TITLE,
    Scale,
    axes,
    finite,
    heading,
    number,
    picture,
    safe,
    scale,
    shorten,
    svg_text,
    text_width,
    ticks_width,
)

__all__ = ["CHART_CSS", "Axis", "Bar", "Series", "bar_chart", "xy_chart"]

_MAX_NAMED_LINES = 6
_MAX_NAME_SHARE = 0.24  # of the width: longer names go to the legend
_LINE = 18.0
_ROW, _BAR = 26.0, 16.0
_MAX_DOTS = 40
_MAX_NOTE_CHARACTERS = 30
# Outlines of points, after the circle; all have about the same area as the circle.
_OUTLINES = (
    ((-0.89, -0.89), (0.89, -0.89), (0.89, 0.89), (-0.89, 0.89)),
    ((0.0, -1.25), (1.25, 0.0), (0.0, 1.25), (-1.25, 0.0)),
    ((0.0, -1.3), (1.2, 0.95), (-1.2, 0.95)),
    ((0.0, 1.3), (1.2, -0.95), (-1.2, -0.95)),
    ((-1.3, -0.6), (1.3, -0.6), (1.3, 0.6), (-1.3, 0.6)),
)


@dataclass(frozen=True)
class Axis:
    """The label of an axis, with its unit."""

    label: str
    log: bool = False


@dataclass(frozen=True)
class Series:
    """A curve or single points; ``band`` has (x, low, high), ``notes`` has a tooltip for each point."""

    name: str
    points: Sequence[tuple[float, float]]
    kind: Literal["line", "points"] = "line"
    band: Sequence[tuple[float, float, float]] = ()
    notes: Sequence[str] = ()


@dataclass(frozen=True)
class Bar:
    """One bar; ``low`` and ``high`` are the ends of its interval, ``note`` is shown after its value.

    ``colour`` is the number of a colour.
    """

    label: str
    value: float
    note: str = ""
    low: float | None = None
    high: float | None = None
    colour: int = 0


def xy_chart(series: Sequence[Series], x: Axis, y: Axis, *, title: str, width: int = 720, height: int = 420) -> str:
    """Curves and points over two axes; values that an axis cannot show (not finite, or ≤ 0 on a log one) are left out.

    >>> svg = xy_chart([Series("a", [(1, 2.0), (2, 3.0)])], Axis("batch"), Axis("ms"), title="Latency")
    >>> svg.startswith("<svg") and svg.endswith("</svg>")
    True
    """
    shown = [_visible(entry, x, y) for entry in series]
    named = _named_at_ends(shown, width)
    legend = [index for index, entry in enumerate(shown) if index not in named and len(shown) > 1]
    rows = _legend_rows([(index, shown[index]) for index in legend], width - 2 * PAD)
    top = PAD + TITLE + 26 + _LINE * len(rows) + (8 if rows else 0)
    bottom = height - 50.0
    ys = [value for entry in shown for _, value in entry.points]
    ys += [value for entry in shown for _, *ends in entry.band for value in ends]
    # The vertical scale comes first: the width of its labels decides where the plot begins.
    vertical = scale(ys, bottom, top, log=y.log, min_gap=44, from_zero=True)
    right = PAD + max((text_width(shown[index].name) + 10 for index in named), default=0.0)
    left = PAD + ticks_width(vertical) + 10
    xs = [value for entry in shown for value, *_ in (*entry.points, *entry.band)]
    across = scale(xs, left, width - right, log=x.log, min_gap=64)
    parts = [heading(title, width)]
    for line, row in enumerate(rows):
        parts += [_key(at, PAD + TITLE + 18 + _LINE * line, index, shown[index]) for at, index in row]
    parts += axes(across, vertical, x.label, y.label)
    if not xs:
        parts.append(svg_text(width / 2, (top + bottom) / 2, "nothing to show", tone="quiet", anchor="middle"))
    for index, entry in enumerate(shown):
        parts += _draw(entry, index, across, vertical)
    parts += _end_names([(index, shown[index]) for index in named], across, vertical)
    return picture(title, width, height, parts)


def _visible(series: Series, x: Axis, y: Axis) -> Series:
    """The series without values that the axes cannot show; the points of a line are sorted by x."""

    def holds(across: float, *values: float) -> bool:
        return bool(finite([across], x.log)) and len(finite(values, y.log)) == len(values)

    notes = [*series.notes, *[""] * max(0, len(series.points) - len(series.notes))]
    shown = [(point, note) for point, note in zip(series.points, notes) if holds(*point)]
    band = sorted(row for row in series.band if holds(*row))
    if series.kind == "line":
        shown.sort(key=lambda row: row[0][0])
    return Series(series.name, [point for point, _ in shown], series.kind, band, [note for _, note in shown])


def _named_at_ends(series: Sequence[Series], width: float) -> list[int]:
    """The lines whose names are at their ends: all lines, or none if there are too many or a name is too long."""
    lines = [index for index, entry in enumerate(series) if entry.kind == "line" and entry.points]
    fits = all(text_width(series[index].name) <= _MAX_NAME_SHARE * width for index in lines)
    return lines if fits and len(lines) <= _MAX_NAMED_LINES and len(series) > 1 else []


def _legend_rows(entries: Sequence[tuple[int, Series]], width: float) -> list[list[tuple[float, int]]]:
    rows: list[list[tuple[float, int]]] = []
    at = width
    for index, entry in entries:
        needed = 24 + text_width(shorten(entry.name, width - 30)) + 14
        if not rows or at + needed > width + 14:
            rows.append([])
            at = 0.0
        rows[-1].append((PAD + at, index))
        at += needed
    return rows


def _key(x: float, y: float, index: int, series: Series) -> str:
    """An entry of the legend: a piece of the line or a point, and the name."""
    if series.kind == "line":
        sign = f'<path d="M{x:.1f} {y - 4:.1f}h18"{_pen(index)}/>'
    else:
        sign = mark(x + 9, y - 4, index, 4.5)
    return sign + svg_text(x + 24, y, shorten(series.name, 640))


def _pen(index: int) -> str:
    dash = DASHES[index % len(DASHES)]
    dashes = f' stroke-dasharray="{dash}"' if dash else ""
    return f' fill="none" class="ch-s-{index % COLOURS}" stroke-width="2" stroke-linejoin="round"{dashes}'


def mark(x: float, y: float, index: int, radius: float, note: str = "", extra: str = "") -> str:
    """A point. Every colour has its own shape, for readers who cannot distinguish the colours."""
    shape, tooltip = index % COLOURS, _tooltip(note)
    if shape == 0:
        return f'<circle cx="{x:.1f}" cy="{y:.1f}" r="{radius:.2f}" class="ch-f-0"{extra}>{tooltip}</circle>'
    corners = "L".join(f"{x + a * radius:.1f} {y + b * radius:.1f}" for a, b in _OUTLINES[shape - 1])
    return f'<path d="M{corners}Z" class="ch-f-{shape}"{extra}>{tooltip}</path>'


def _tooltip(note: str) -> str:
    return f"<title>{safe(note)}</title>" if note else ""


def _draw(series: Series, index: int, x: Scale, y: Scale) -> list[str]:
    places = [(x.place(a), y.place(b)) for a, b in series.points]
    notes = [note or f"{series.name}: {number(a)}, {number(b)}" for note, (a, b) in zip(series.notes, series.points)]
    parts = []
    if len(series.band) > 1:
        around = [(x.place(a), y.place(high)) for a, _, high in series.band]
        around += [(x.place(a), y.place(low)) for a, low, _ in reversed(series.band)]
        path = "L".join(f"{a:.1f} {b:.1f}" for a, b in around)
        parts.append(f'<path d="M{path}Z" class="ch-f-{index % COLOURS}" fill-opacity="0.16"/>')
    if series.kind == "points":
        return parts + [mark(a, b, index, 4.5, note, ' fill-opacity="0.8"') for (a, b), note in zip(places, notes)]
    if len(places) > 1:
        parts.append(f'<path d="M{"L".join(f"{a:.1f} {b:.1f}" for a, b in places)}"{_pen(index)}/>')
    # Dots on a dense line would hide it.
    if len(places) <= _MAX_DOTS:
        parts += [mark(a, b, index, 3.2, note) for (a, b), note in zip(places, notes)]
    return parts


def _end_names(entries: Sequence[tuple[int, Series]], x: Scale, y: Scale) -> list[str]:
    """Names at the ends of lines, moved apart where they would overlap."""
    ends = sorted((y.place(entry.points[-1][1]), x.place(entry.points[-1][0]), index, entry.name)
                    for index, entry in entries)  # fmt: skip
    heights = spread([at for at, *_ in ends], FONT + 3, y.end, y.start)
    return [
        svg_text(max(x.end, across) + 8 if len(ends) > 1 else across + 8, at + 4, name, tone=str(index % COLOURS))
        for at, (_, across, index, name) in zip(heights, ends)
    ]


def spread(places: Sequence[float], gap: float, low: float, high: float) -> list[float]:
    """Move sorted positions at least ``gap`` apart, with the least movement, between ``low`` and ``high`` if they fit.

    Positions that are too close form a group around their mean; groups that then overlap merge. It is the algorithm of
    isotonic regression (pool adjacent violators). At last, what exceeds an end is pushed back inside.

    >>> spread([10.0, 11.0, 50.0], 10.0, 0.0, 60.0)
    [5.5, 15.5, 50.0]
    """
    groups: list[tuple[float, int]] = []  # centre and number of members of each group
    for place in places:
        middle, count = place, 1
        while groups and groups[-1][0] + (groups[-1][1] + count) * gap / 2 > middle:
            other, others = groups.pop()
            middle, count = (middle * count + other * others) / (count + others), count + others
        groups.append((middle, count))
    positions = [middle + (k - (count - 1) / 2) * gap for middle, count in groups for k in range(count)]
    if positions and positions[-1] > high:
        over = high
        for k in reversed(range(len(positions))):
            positions[k] = min(positions[k], over)
            over = positions[k] - gap
    under = low
    for k, place in enumerate(positions):
        positions[k] = max(place, under)
        under = positions[k] + gap
    return positions


def bar_chart(bars: Iterable[Bar], *, title: str, unit: str, width: int = 720) -> str:
    """Horizontal bars in the given order: labels on the left, values on the right.

    >>> svg = bar_chart([Bar("conv", 2.5, low=2.0, high=3.0)], title="Time by operator", unit="ms")
    >>> "conv" in svg and "2.5 ms" in svg
    True
    """
    rows = [bar for bar in bars if finite([bar.value], False)]
    top = PAD + TITLE + 16
    values = [f"{number(bar.value)} {unit}".strip() for bar in rows]
    notes = [bar.note if len(bar.note) <= _MAX_NOTE_CHARACTERS else "" for bar in rows]
    # Labels and values get a limited share of the width, so that bars stay visible.
    left = PAD + min(max((text_width(bar.label) for bar in rows), default=0.0), 0.36 * width) + 8
    tails = [text_width(value) + (text_width(note) + 8 if note else 0) for value, note in zip(values, notes)]
    right = PAD + min(max(tails, default=0.0), 0.4 * width) + 9  # one more, or rounding would cut the last letter
    ends = [end for bar in rows for end in (bar.value, bar.low, bar.high) if end is not None]
    reach = [0.0, *finite(ends, False)]
    # If all values are 0, the scale still needs a length.
    low, high = min(reach), max(reach) if max(reach) > min(reach) else min(reach) + 1
    along = Scale(low, high, left, width - right, False, ())
    parts = [heading(title, width)]
    for line, (bar, value, note) in enumerate(zip(rows, values, notes)):
        parts += _bar(bar, value, note, along, top + _ROW * line + _ROW / 2, width)
    if not rows:
        parts.append(svg_text(PAD, top + 14, "nothing to show", tone="quiet"))
    zero = along.place(0.0)
    height = top + _ROW * max(1, len(rows)) + PAD
    parts.append(f'<path d="M{zero:.1f} {top:.1f}V{height - PAD:.1f}" class="ch-s-axis"/>')
    return picture(title, width, height, parts)


def _bar(bar: Bar, value: str, note: str, along: Scale, middle: float, width: float) -> list[str]:
    zero, end = along.place(0.0), along.place(bar.value)
    tip = " · ".join(part for part in (f"{bar.label}: {value}", bar.note) if part)
    parts = [
        svg_text(along.start - 8, middle + 4, shorten(bar.label, along.start - 8 - PAD), anchor="end"),
        f'<rect x="{min(zero, end):.1f}" y="{middle - _BAR / 2:.1f}" width="{abs(end - zero):.1f}" height="{_BAR:g}"'
        f' rx="2" class="ch-f-{bar.colour % COLOURS}">{_tooltip(tip)}</rect>',
    ]
    furthest = end
    if bar.low is not None and bar.high is not None and len(finite([bar.low, bar.high], False)) == 2:
        a, b = along.place(bar.low), along.place(bar.high)
        furthest = max(end, b)
        parts.append(
            f'<path d="M{a:.1f} {middle:.1f}H{b:.1f}M{a:.1f} {middle - 4:.1f}v8M{b:.1f} {middle - 4:.1f}v8"'
            ' class="ch-s-ink" stroke-width="1.4" fill="none"/>'
        )
    at = max(furthest, zero) + 8
    parts.append(svg_text(at, middle + 4, value))
    if note:
        at += text_width(value) + 8
        parts.append(svg_text(at, middle + 4, shorten(note, width - PAD - at), tone="quiet"))
    return parts
