"""Rendering: a roofline as SVG: FLOP a second over FLOP a byte of units of work, and the ceilings of the device.

S. Williams, A. Waterman, D. Patterson: Roofline, CACM 52(4), 2009.
"""

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

from foretell.rendering.svg.canvas import (
    COLOURS,
    PAD,
    SMALL,
    TITLE,
    Scale,
    axes,
    heading,
    number,
    picture,
    scale,
    shorten,
    svg_text,
    text_width,
    ticks_width,
)
from foretell.rendering.svg.charts import mark
from foretell.units import engineering, seconds_from_us

_OTHERS = COLOURS - 1  # the colour of groups without an entry in the legend
_LARGEST_RADIUS, _SMALLEST_RADIUS = 20.0, 2.5
_LARGEST_SHARE = 0.25  # of the time: points with more are not drawn larger
_MAX_NAMED_POINTS, _MAX_NAME_WIDTH = 6, 150.0
_LINE = 18.0
_SHOWN_DECADES = 5  # below the highest roof: slower units compute next to nothing and would stretch the axis
_MIN_NOTED_SHARE = 0.0005
_STEPS = 60  # a slope is approximated by this many boxes, which names must not overlap

Box = tuple[float, float, float, float]  # left, top, right, bottom

LIMITS = {
    "compute": "arithmetic is the nearest ceiling",
    "memory": "memory bandwidth is the nearest ceiling",
    "cache": "faster than the memory allows: data comes from the cache",
    "launch": "launching the kernel takes half of the time or more",
    "kernel": "less than a quarter of any ceiling: too small for the device, or an inefficient kernel",
}
"""What can limit a unit of work, with its explanation."""


@dataclass(frozen=True, slots=True)
class Roof:
    """A ceiling, in bytes or FLOP a second. ``used``: it applies to this workload."""

    name: str
    kind: Literal["memory", "compute"]
    per_s: float
    used: bool
    measured: bool
    source: str


@dataclass(frozen=True, slots=True)
class Point:
    """Equal units of work. ``time_us``, ``flops`` and ``bytes`` are those of one unit, ``share`` is that of all.

    ``reached`` is the least time that the ceilings allow over the time; it exceeds 1 if data comes from a cache.
    ``limit`` is a key of `LIMITS`.
    """

    operator: str
    module: str
    shapes: str
    group: str
    count: int
    flops: int
    bytes: int
    time_us: float
    share: float
    reached: float
    limit: str
    kernel: str | None = None
    probability: float | None = None

    @property
    def intensity(self) -> float | None:
        """FLOP a byte; None if no bytes are moved."""
        return self.flops / self.bytes if self.bytes else None

    @property
    def flops_per_s(self) -> float:
        """FLOP a second."""
        return self.flops / seconds_from_us(self.time_us)


@dataclass(frozen=True, slots=True)
class Group:
    """All points of one operator, or of one class of kernels."""

    name: str
    count: int
    flops: int
    bytes: int
    time_us: float
    share: float
    reached: float
    limit: str


@dataclass(frozen=True)
class Roofline:
    """What is drawn: ceilings, points and groups; the largest share of the time first."""

    model: str
    device: str
    device_name: str
    slice: str | None
    batch_size: int
    dtype: str
    mode: str
    predictor: str
    by: str
    latency_ms: float
    roofs: tuple[Roof, ...]
    points: tuple[Point, ...]
    groups: tuple[Group, ...]
    notes: tuple[str, ...] = ()

    @property
    def title(self) -> str:
        """Model, device, batch size and dtype in one line."""
        place = " ".join(part for part in (self.device_name, self.slice) if part)
        return f"{self.model} on {place}, batch {self.batch_size}, {self.dtype}"

    def to_dict(self) -> dict[str, Any]:
        """The object that ``foretell roofline --json`` prints."""
        values = asdict(self)
        for row, point in zip(values["points"], self.points):
            row |= {"intensity": point.intensity, "flops_per_s": point.flops_per_s}
        return values


def draw_roofline(roofline: Roofline, *, width: int = 860, height: int = 560) -> str:
    """Draw the picture: the area of a point is its share of the time, colour and shape show its operator or kernel."""
    with_arithmetic = [point for point in roofline.points if point.flops and point.bytes and point.time_us > 0]
    slowest = max(roof.per_s for roof in roofline.roofs if roof.kind == "compute") / 10**_SHOWN_DECADES
    drawn = [point for point in with_arithmetic if point.flops_per_s >= slowest]
    legend = _legend(roofline.groups, width)
    x, y = _scales(drawn, roofline.roofs, width, PAD + TITLE + 34 + _LINE * len(legend), height - 66.0)
    parts = [heading(roofline.title, width)]
    for line, row in enumerate(legend):
        for at, colour, text in row:
            middle = PAD + TITLE + 18 + _LINE * line
            parts += [mark(at + 6, middle - 4, colour, 5.0), svg_text(at + 16, middle, text)]
    parts += axes(x, y, "arithmetic intensity, FLOP a byte moved", "FLOP a second")
    lines, names, boxes = _ceilings(roofline.roofs, x, y)
    parts += lines
    colours = {group.name: min(row, _OTHERS) for row, group in enumerate(roofline.groups)}
    rows = {id(point): row for row, point in enumerate(roofline.points)}
    for point in sorted(
        drawn, key=lambda shown: -shown.share
    ):  # the largest first, so that small points are drawn over them
        at, up = _place(point, x, y)
        looks = ' fill-opacity="0.75"'
        shape = mark(at, up, colours[point.group], _radius(point.share), tooltip(point), looks)
        parts.append(f'<g class="ch-point ch-s-paper" stroke-width="0.9" data-row="{rows[id(point)]}">{shape}</g>')
    names += _names(drawn, boxes, x, y)
    # Names are drawn over the points, outlined in the colour of the background.
    parts.append(
        f'<g class="ch-s-paper" stroke-width="3" stroke-linejoin="round" paint-order="stroke">{"".join(names)}</g>'
    )
    note = " ".join([
        f"Area: share of {number(roofline.latency_ms)} ms ({roofline.predictor}).",
        *_left_out("Not shown, no arithmetic", roofline.points, with_arithmetic),
        *_left_out("Further below", with_arithmetic, drawn),
    ])  # fmt: skip
    parts.append(svg_text(PAD, height - 12, shorten(note, width - 2 * PAD, SMALL), tone="quiet", size=SMALL))
    return picture(f"Roofline: {roofline.title}", width, height, parts)


def _left_out(why: str, all_points: Sequence[Point], remaining: Sequence[Point]) -> list[str]:
    share = sum(point.share for point in all_points) - sum(point.share for point in remaining)
    return [f"{why}: {share:.1%}."] if share >= _MIN_NOTED_SHARE else []


def tooltip(point: Point) -> str:
    """The tooltip of a point."""
    many = f" × {point.count}" if point.count > 1 else ""
    lines = [f"{point.operator}{many}", point.module, point.shapes]
    if point.kernel is not None:
        lines.append(f"kernel: {point.kernel} ({point.probability or 0.0:.0%} likely)")
    lines.append(f"{point.share:.1%} of the time, {number(point.time_us)} µs each")
    if point.intensity is not None:
        lines.append(f"{number(point.intensity)} FLOP a byte, {engineering(point.flops_per_s, 'FLOP/s')}")
    return "\n".join([*(line for line in lines if line), f"{point.reached:.0%} of its ceiling, limit: {point.limit}"])


def _scales(
    drawn: Sequence[Point], roofs: Sequence[Roof], width: float, top: float, bottom: float
) -> tuple[Scale, Scale]:
    """Axes that cover all points and the corners of all roofs."""
    slopes = [roof.per_s for roof in roofs if roof.kind == "memory"]
    flats = [roof.per_s for roof in roofs if roof.kind == "compute"]
    corners = [flat / slope for flat in flats for slope in slopes]
    rates = [point.flops_per_s for point in drawn]
    y = scale([*rates, max(flats) * 1.7, min(flats) / 10], bottom, top, log=True, min_gap=36)
    intensities = [point.flops / point.bytes for point in drawn]
    # A decade more on the right leaves space for the names of the roofs.
    ends = [*intensities, *(intensity * 10 for intensity in intensities), min(corners) / 10, max(corners) * 8]
    return scale(ends, PAD + ticks_width(y) + 10, width - PAD, log=True, min_gap=60), y


def _place(point: Point, x: Scale, y: Scale) -> tuple[float, float]:
    return x.place(point.flops / point.bytes), y.place(point.flops_per_s)


def _radius(share: float) -> float:
    # The area, not the radius, is proportional to the share.
    return max(_SMALLEST_RADIUS, _LARGEST_RADIUS * math.sqrt(min(1.0, share / _LARGEST_SHARE)))


def _legend(groups: Sequence[Group], width: float) -> list[list[tuple[float, int, str]]]:
    """The entries of the legend in rows: x, colour, text. Groups without their own colour share one entry."""
    named = list(groups[:_OTHERS]) if len(groups) > COLOURS else list(groups)
    entries = [f"{shorten(group.name, 230)} {group.share:.0%}" for group in named]
    if len(groups) > len(named):
        rest = groups[len(named) :]
        entries.append(f"{len(rest)} others {sum(group.share for group in rest):.0%}")
    rows: list[list[tuple[float, int, str]]] = [[]]
    at = PAD
    for colour, text in enumerate(entries):
        needed = 16 + text_width(text) + 12
        if at + needed > width - PAD and rows[-1]:
            rows.append([])
            at = PAD
        rows[-1].append((at, colour, text))
        at += needed
    return rows


def _ceilings(roofs: Sequence[Roof], x: Scale, y: Scale) -> tuple[list[str], list[str], list[Box]]:
    """The roofs as lines, their names, and the boxes that names of points must not overlap."""
    slopes = sorted((roof for roof in roofs if roof.kind == "memory"), key=lambda roof: roof.per_s)
    flats = sorted((roof for roof in roofs if roof.kind == "compute"), key=lambda roof: -roof.per_s)
    highest, steepest = flats[0].per_s, slopes[-1].per_s
    angle = -math.degrees(math.atan2(_decade(y), _decade(x)))
    lines, names, boxes = [], [], []
    for row, roof in enumerate(slopes):
        start = max(x.low, y.low / roof.per_s)
        a, b = x.place(start), y.place(start * roof.per_s)
        c, d = x.place(highest / roof.per_s), y.place(highest)
        lines.append(f'<path d="M{a:.1f} {b:.1f}L{c:.1f} {d:.1f}"{_pen(roof)}/>')
        # The names of two memories are on different sides of their lines, which may be close together.
        lift = 13.0 if row == 0 and len(slopes) > 1 else -6.0
        turned = f' transform="translate({(a + c) / 2:.1f} {(b + d) / 2:.1f}) rotate({angle:.1f})"'
        name = svg_text(0, lift, _name(roof), tone=_tone(roof), anchor="middle", size=SMALL)
        names.append(f"<g{turned}>{name}</g>")
        steps = [step / _STEPS for step in range(_STEPS + 1)]
        boxes += [(a + s * (c - a) - 4, b + s * (d - b) - 4, a + s * (c - a) + 4, b + s * (d - b) + 4) for s in steps]
    above = y.end
    for roof in flats:
        begin, up = x.place(roof.per_s / steepest), y.place(roof.per_s)
        lines.append(f'<path d="M{begin:.1f} {up:.1f}H{x.end:.1f}"{_pen(roof)}/>')
        # If the next roof is just above, the name goes below its own roof.
        base = up - 5 if up - above > SMALL + 4 else up + SMALL + 2
        names.append(svg_text(x.end - 4, base, _name(roof), tone=_tone(roof), anchor="end", size=SMALL))
        boxes += [(begin, up - 2, x.end, up + 2)]
        boxes.append((x.end - 4 - text_width(_name(roof), SMALL), base - SMALL, x.end, base + 3))
        above = max(up, base)
    return lines, names, boxes


def _decade(axis: Scale) -> float:
    return abs(axis.end - axis.start) / math.log10(axis.high / axis.low)


def _pen(roof: Roof) -> str:
    return ' class="ch-s-ink" stroke-width="1.8"' if roof.used else ' class="ch-s-axis" stroke-dasharray="5 4"'


def _tone(roof: Roof) -> str:
    return "ink" if roof.used else "quiet"


def _name(roof: Roof) -> str:
    rate = engineering(roof.per_s, "B/s" if roof.kind == "memory" else "FLOP/s")
    return f"{roof.name} {rate}{', measured' if roof.measured else ''}"


def _names(drawn: Sequence[Point], boxes: Sequence[Box], x: Scale, y: Scale) -> list[str]:
    """The names of the points with the most time, if there is space beside them.

    Greedy: right, left, above and below are tried in this order; a name that fits nowhere is left out.
    """
    marks = [(*_place(point, x, y), _radius(point.share)) for point in drawn]
    occupied = [*boxes, *(_around(circle) for circle in marks)]
    names = []
    for point in sorted(drawn, key=lambda shown: -shown.share)[:_MAX_NAMED_POINTS]:
        (at, up), radius = _place(point, x, y), _radius(point.share)
        text = shorten(point.module or point.operator, _MAX_NAME_WIDTH, SMALL)
        wide, middle = text_width(text, SMALL), up + 4
        aside = 1.3 * radius + 4
        sides = ((at + aside, middle), (at - aside - wide, middle))
        ends = ((at - wide / 2, up - aside), (at - wide / 2, up + aside + 8))
        for left, base in (*sides, *ends):
            box = (left, base - SMALL, left + wide, base + 3)
            inside = x.start < box[0] and box[2] < x.end and y.end < box[1] and box[3] < y.start
            if inside and not any(_overlap(box, other) for other in occupied):
                occupied.append(box)
                names.append(svg_text(left, base, text, size=SMALL))
                break
    return names


def _around(circle: tuple[float, float, float]) -> Box:
    at, up, radius = circle
    # The square inside the circle: names may overlap the rim of a point a little.
    return at - 0.7 * radius, up - 0.7 * radius, at + 0.7 * radius, up + 0.7 * radius


def _overlap(a: Box, b: Box) -> bool:
    return a[0] < b[2] and b[0] < a[2] and a[1] < b[3] and b[1] < a[3]
