"""Rendering: what all pictures share: light and dark colours, escaped text, scales with round ticks, axes.

An ``<svg>`` has fixed colours inside, because not every viewer supports CSS variables. `CHART_CSS` lets a page replace
them by variables.
"""

import math
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from itertools import pairwise

FONT = 12.0
SMALL = 11.0
TITLE = 15.0
PAD = 16.0
COLOURS = 6
_MAX_VALUE = 1e100
DASHES = ("", "7 3", "2 3", "9 3 2 3", "12 4", "4 2")
_FONT_FAMILY = "system-ui,-apple-system,'Segoe UI',Roboto,'Helvetica Neue',Arial,'DejaVu Sans',sans-serif"
# Hues after Okabe and Ito (2008). They also differ in lightness, so that colour-blind readers can distinguish them.
# Text at the ends of lines has these colours, so all of them have a contrast of at least 4.5 with the background.
_LIGHT = {
    "paper": "#ffffff",
    "ink": "#1b2430",
    "quiet": "#5a6675",
    "grid": "#e3e7ec",
    "axis": "#8c98a6",
    "0": "#2166d8",
    "1": "#c2450c",
    "2": "#0b7f60",
    "3": "#8a1668",
    "4": "#5c4a00",
    "5": "#46525e",
}
_DARK = {
    "paper": "#14181f",
    "ink": "#e8ecf1",
    "quiet": "#a3aebb",
    "grid": "#2a323c",
    "axis": "#6b7785",
    "0": "#4a92ff",
    "1": "#f0703f",
    "2": "#74e8bb",
    "3": "#f7a0e4",
    "4": "#ffe27a",
    "5": "#8d959d",
}
_FILLS, _STROKES = ("paper", "ink", "quiet"), ("paper", "ink", "grid", "axis")


def _rules(scope: str, colours: dict[str, str] | None = None) -> str:
    """The CSS rules of all colours: with the given values, or else with variables."""
    numbers = [str(number) for number in range(COLOURS)]
    rules = []
    for kind, names in (("fill", (*_FILLS, *numbers)), ("stroke", (*_STROKES, *numbers))):
        for name in names:
            value = colours[name] if colours else f"var(--chart-{name})"
            rules.append(f"{scope}.ch-{kind[0]}-{name}{{{kind}:{value}}}")
    return "".join(rules)


def _variables(colours: dict[str, str]) -> str:
    return ":root{" + "".join(f"--chart-{name}:{value};" for name, value in colours.items()) + "}"


CHART_CSS = (
    f"{_variables(_LIGHT)}@media (prefers-color-scheme:dark){{{_variables(_DARK)}}}"
    f"@media print{{{_variables(_LIGHT)}}}"
    "svg.chart{display:block;width:100%;height:auto;break-inside:avoid}"
    f"{_rules('svg.chart ')}"
)
"""For a page with pictures: their colours as variables (``--chart-paper:transparent`` shows the page behind them)."""

_TEXT_RULE = f".chart text{{font-family:{_FONT_FAMILY};font-size:{FONT:g}px}}"
_OWN_STYLE = (
    f"<style>{_TEXT_RULE}{_rules('.chart ', _LIGHT)}"
    f"@media (prefers-color-scheme:dark){{{_rules('.chart ', _DARK)}}}"
    f"@media print{{{_rules('.chart ', _LIGHT)}}}</style>"
)


def with_fixed_colours(svg: str, *, dark: bool = False) -> str:
    """The picture in one colour scheme. A bitmap needs this: it cannot follow the reader's setting."""
    plain = _TEXT_RULE.replace(_FONT_FAMILY, f"'Source Sans Pro',{_FONT_FAMILY}")
    return svg.replace(_OWN_STYLE, f"<style>{plain}{_rules('.chart ', _DARK if dark else _LIGHT)}</style>")


def safe(text: str) -> str:
    """Text escaped for XML, without control characters: names come from models of unknown authors.

    >>> safe('<b>"a"&' + chr(27))
    '&lt;b&gt;&quot;a&quot;&amp;�'
    """
    visible = "".join(c if c.isprintable() or c == "\n" else "\N{REPLACEMENT CHARACTER}" for c in text)
    return escape(visible, quote=True)


def text_width(text: str, font: float = FONT) -> float:
    """An estimate of the width of a text. The fonts of readers differ, so it is rather too large."""
    wide = sum(unicodedata.east_asian_width(c) in "WF" for c in text)
    capital = sum(c.isupper() or c in "mwMW_%×…" for c in text)
    # 0.55 em is a typical width of letters; capitals and East Asian characters are wider.
    return font * (0.55 * len(text) + 0.17 * capital + 0.5 * wide)


def shorten(text: str, width: float, font: float = FONT) -> str:
    """The text, cut to a width in pixels.

    >>> shorten("convolution", 1000.0), shorten("convolution", 40.0)
    ('convolution', 'conv…')
    """
    if text_width(text, font) <= width:
        return text
    while text and text_width(text + "…", font) > width:
        text = text[:-1]
    return text.rstrip() + "…"


def number(value: float) -> str:
    """Three significant digits, thousands separated.

    >>> number(0.012345), number(2.8), number(1234567.0), number(0.00000123)
    ('0.0123', '2.8', '1,234,567', '1.23e-06')
    """
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def svg_text(x: float, y: float, text: str, *, tone: str = "ink", anchor: str = "start", size: float = FONT,
          extra: str = "") -> str:  # fmt: skip
    """One line of text; ``tone`` is ink, quiet or the number of a colour."""
    style = "" if size == FONT else f' style="font-size:{size:g}px"'
    where = "" if anchor == "start" else f' text-anchor="{anchor}"'
    return f'<text x="{x:.1f}" y="{y:.1f}" class="ch-f-{tone}"{where}{style}{extra}>{safe(text)}</text>'


def heading(title: str, width: float) -> str:
    """The title of a picture, cut to its width."""
    shown = shorten(title, width - 2 * PAD, TITLE)
    return svg_text(PAD, PAD + TITLE - 3, shown, size=TITLE, extra=' font-weight="600"')


def picture(title: str, width: float, height: float, parts: Sequence[str]) -> str:
    """A complete ``<svg>`` that scales, with title, colours and background."""
    return "\n".join([
        f'<svg xmlns="http://www.w3.org/2000/svg" class="chart" role="img" width="{width:g}" height="{height:g}"'
        f' viewBox="0 0 {width:g} {height:g}">',
        f"<title>{safe(title)}</title>",
        _OWN_STYLE,
        f'<rect width="{width:g}" height="{height:g}" rx="6" class="ch-f-paper"/>',
        *parts,
        "</svg>",
    ])  # fmt: skip


@dataclass(frozen=True, slots=True)
class Scale:
    """Maps values to positions along an axis, and has its ticks."""

    low: float
    high: float
    start: float
    end: float
    log: bool
    ticks: tuple[float, ...]

    def place(self, value: float) -> float:
        """The position of a value, in pixels."""
        low, high, value = (math.log10(v) if self.log else v for v in (self.low, self.high, value))
        return self.start + (value - low) / (high - low) * (self.end - self.start)

    def label(self, tick: float) -> str:
        """The label of a tick.

        >>> Scale(0, 2_500_000, 0, 1, False, (0, 500_000)).label(500_000)
        '500k'
        """
        return tick_label(tick)


def tick_label(value: float) -> str:
    """A round number in short form.

    >>> [tick_label(v) for v in (0, 0.25, 20, 1500, 2e6, 1e13, 1e-5)]
    ['0', '0.25', '20', '1,500', '2M', '10T', '1e-05']
    """
    for power, prefix in ((15, "P"), (12, "T"), (9, "G"), (6, "M"), (3, "k")):
        unit = 10.0**power
        # 1,500 reads better than 1.5k, and 10k better than 10,000
        if abs(value) >= (unit if power > 3 else 10 * unit):
            return f"{value / unit:,.4g}{prefix}"
    return f"{value:,.0f}" if abs(value) >= 100 and value == round(value) else f"{value:.4g}"


def finite(values: Sequence[float], log: bool) -> list[float]:
    """The values that an axis can show: positive on a log axis, and below 1e100, where scales would overflow."""
    return [value for value in values if abs(value) < _MAX_VALUE and (value > 1 / _MAX_VALUE or not log)]


def scale(values: Sequence[float], start: float, end: float, *, log: bool = False, min_gap: float = 70.0,
          from_zero: bool = False) -> Scale:  # fmt: skip
    """A scale that covers all values; its ticks are round and at least ``min_gap`` pixels apart."""
    shown = finite(values, log)
    low, high = (min(shown), max(shown)) if shown else (1.0, 10.0)
    max_ticks = max(2, int(abs(end - start) / min_gap))
    if log:
        return _log_scale(low, high, start, end, max_ticks, shown)
    if from_zero and low >= 0 and low < 0.7 * high:
        low = 0.0
    if high - low <= max(
        1e-9 * max(abs(high), abs(low)), 1 / _MAX_VALUE
    ):  # all values are equal: without a margin the step between ticks would be 0
        margin = abs(high) * 0.5 if abs(high) > 1 / _MAX_VALUE else 1.0
        low, high = low - margin, high + margin
    step = _round_step((high - low) / max_ticks)
    # The ends move out to whole steps; 1e-9 keeps rounding errors from adding a step.
    low, high = math.floor(low / step + 1e-9) * step, math.ceil(high / step - 1e-9) * step
    count = round((high - low) / step)
    return Scale(low, high, start, end, False, tuple(round(low + step * k, 12) for k in range(count + 1)))


def _round_step(step: float) -> float:
    size = 10.0 ** math.floor(math.log10(step))
    return next(size * factor for factor in (1, 2, 2.5, 5, 10) if size * factor >= step * (1 - 1e-9))


def _log_scale(low: float, high: float, start: float, end: float, max_ticks: int, shown: Sequence[float]) -> Scale:
    """A log scale with the densest round ticks that fit: from all digits of each decade to every n-th decade."""
    margin = max(0.04 * math.log10(high / low), 0.05)
    wide_low, wide_high = low / 10**margin, high * 10**margin
    distinct = sorted(set(shown))
    if 2 <= len(distinct) <= max_ticks and all(math.log2(value).is_integer() for value in distinct):
        return Scale(
            wide_low, wide_high, start, end, True, tuple(distinct)
        )  # powers of two, mostly batch sizes: each value is a tick
    decades = range(math.floor(math.log10(wide_low)), math.ceil(math.log10(wide_high)) + 1)
    for factors in ((1, 2, 3, 4, 5, 6, 7, 8, 9), (1, 2, 5), (1, 3), (1,)):
        ticks = [10.0**decade * factor for decade in decades for factor in factors]
        ticks = [tick for tick in ticks if wide_low <= tick <= wide_high]
        # Ticks are densest at the end of a decade, so the smallest gap decides.
        closest = min((math.log10(b / a) for a, b in pairwise(ticks)), default=1.0)
        if closest >= math.log10(wide_high / wide_low) / max_ticks and len(ticks) >= 2:
            return Scale(wide_low, wide_high, start, end, True, tuple(ticks))
    stride = math.ceil(len(decades) / max_ticks)
    ticks = [10.0**decade for decade in decades if decade % stride == 0]
    ticks = [tick for tick in ticks if wide_low <= tick <= wide_high]
    return Scale(wide_low, wide_high, start, end, True, tuple(ticks or distinct))


def axes(x: Scale, y: Scale, x_label: str, y_label: str) -> list[str]:
    """Grid, ticks and labels. The label of the y axis is above it, so that it need not be rotated."""
    left, right, bottom, top = x.start, x.end, y.start, y.end
    parts = []
    for tick in y.ticks:
        at = y.place(tick)
        parts.append(f'<path d="M{left:.1f} {at:.1f}H{right:.1f}" class="ch-s-grid"/>')
        parts.append(svg_text(left - 8, at + 4, y.label(tick), tone="quiet", anchor="end", size=SMALL))
    for tick in x.ticks:
        at = x.place(tick)
        parts.append(f'<path d="M{at:.1f} {top:.1f}V{bottom:.1f}" class="ch-s-grid"/>')
        parts.append(svg_text(at, bottom + 17, x.label(tick), tone="quiet", anchor="middle", size=SMALL))
    parts.append(f'<path d="M{left:.1f} {bottom:.1f}H{right:.1f}" class="ch-s-axis"/>')
    parts.append(svg_text((left + right) / 2, bottom + 36, x_label, tone="quiet", anchor="middle"))
    parts.append(svg_text(PAD, top - 12, y_label, tone="quiet"))
    return parts


def ticks_width(y: Scale) -> float:
    """The width of the labels of a vertical axis."""
    return max((text_width(y.label(tick), SMALL) for tick in y.ticks), default=0.0)
