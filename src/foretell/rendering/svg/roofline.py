"""Rendering: a roofline: operations a second over operations a byte of units of work, under the device's ceilings.

S. Williams, A. Waterman, D. Patterson: Roofline, CACM 52(4), 2009. One ``<svg>``, or a page with it and a table.
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
    text_width,
    ticks_width,
    words,
)
from foretell.rendering.svg.charts import mark
from foretell.units import engineering, seconds_from_us

_OTHERS = COLOURS - 1  # the colour of what is not named
_LARGEST_RADIUS, _SMALLEST_RADIUS = 20.0, 2.5
_LARGEST_SHARE = 0.25  # of the time; more has no larger area
_NAMED_POINTS, _LONGEST_NAME = 6, 150.0
_LINE = 18.0
_DECADES = 5  # below the highest roof; what is slower computes next to nothing
_TOLD_SHARE = 0.0005
_STEPS = 60  # of a slope, for what has to keep away from it

Box = tuple[float, float, float, float]  # left, top, right, bottom

LIMITS = {
    "compute": "the arithmetic's ceiling is the nearest",
    "memory": "the memory's ceiling is the nearest",
    "cache": "faster than the memory allows: data came from the cache",
    "launch": "starting the kernel takes half of the time or more",
    "kernel": "less than a quarter of any ceiling: too small for the device, or a kernel that fits badly",
}
"""What can limit units of work."""


@dataclass(frozen=True, slots=True)
class Roof:
    """A ceiling: bytes or FLOP a second. ``used``: this workload can reach it."""

    name: str
    kind: Literal["memory", "compute"]
    per_s: float
    used: bool
    measured: bool
    source: str


@dataclass(frozen=True, slots=True)
class Point:
    """Equal units of work. ``time_us``, ``flops`` and ``bytes`` are those of one, ``share`` is of all of them.

    ``reached`` is the least time that the ceilings allow over the time; above 1 where data come from a cache.
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
        """FLOP a byte; None where nothing is moved."""
        return self.flops / self.bytes if self.bytes else None

    @property
    def flops_per_s(self) -> float:
        """What is computed a second."""
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
    """What is drawn: ceilings, points with the slowest first, groups likewise."""

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
        """Model and place in one line."""
        place = " ".join(part for part in (self.device_name, self.slice) if part)
        return f"{self.model} on {place}, batch {self.batch_size}, {self.dtype}"

    def to_dict(self) -> dict[str, Any]:
        """For JSON."""
        found = asdict(self)
        for row, point in zip(found["points"], self.points):
            row |= {"intensity": point.intensity, "flops_per_s": point.flops_per_s}
        return found


def draw_roofline(roofline: Roofline, *, width: int = 860, height: int = 560) -> str:
    """The picture: area is share of the time, colour and shape say which operator or kernel."""
    placed = [point for point in roofline.points if point.flops and point.bytes and point.time_us > 0]
    deepest = max(roof.per_s for roof in roofline.roofs if roof.kind == "compute") / 10**_DECADES
    drawn = [point for point in placed if point.flops_per_s >= deepest]
    legend = _legend(roofline.groups, width)
    x, y = _scales(drawn, roofline.roofs, width, PAD + TITLE + 34 + _LINE * len(legend), height - 66.0)
    parts = [heading(roofline.title, width)]
    for line, row in enumerate(legend):
        for at, colour, text in row:
            middle = PAD + TITLE + 18 + _LINE * line
            parts += [mark(at + 6, middle - 4, colour, 5.0), words(at + 16, middle, text)]
    parts += axes(x, y, "arithmetic intensity, FLOP a byte moved", "FLOP a second")
    lines, names, boxes = _ceilings(roofline.roofs, x, y)
    parts += lines
    colours = {group.name: min(row, _OTHERS) for row, group in enumerate(roofline.groups)}
    rows = {id(point): row for row, point in enumerate(roofline.points)}
    for point in sorted(drawn, key=lambda each: -each.share):  # small ones on top
        at, up = _place(point, x, y)
        looks = ' fill-opacity="0.75"'
        shape = mark(at, up, colours[point.group], _radius(point.share), told(point), looks)
        parts.append(f'<g class="ch-point ch-s-paper" stroke-width="0.9" data-row="{rows[id(point)]}">{shape}</g>')
    names += _names(drawn, boxes, x, y)
    # over the marks, each with a rim of the ground
    parts.append(
        f'<g class="ch-s-paper" stroke-width="3" stroke-linejoin="round" paint-order="stroke">{"".join(names)}</g>'
    )
    note = " ".join([
        f"Area: share of {number(roofline.latency_ms)} ms ({roofline.predictor}).",
        *_left_out("Not shown, no arithmetic", roofline.points, placed),
        *_left_out("Further below", placed, drawn),
    ])  # fmt: skip
    parts.append(words(PAD, height - 12, shorten(note, width - 2 * PAD, SMALL), tone="quiet", size=SMALL))
    return picture(f"Roofline: {roofline.title}", width, height, parts)


def _left_out(why: str, all_points: Sequence[Point], kept: Sequence[Point]) -> list[str]:
    share = sum(point.share for point in all_points) - sum(point.share for point in kept)
    return [f"{why}: {share:.1%}."] if share >= _TOLD_SHARE else []


def told(point: Point) -> str:
    """A point in some lines, for whoever points at it."""
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
    """Axes that hold all points and the corners of all roofs."""
    slopes = [roof.per_s for roof in roofs if roof.kind == "memory"]
    flats = [roof.per_s for roof in roofs if roof.kind == "compute"]
    corners = [flat / slope for flat in flats for slope in slopes]
    ups = [point.flops_per_s for point in drawn]
    y = scale([*ups, max(flats) * 1.7, min(flats) / 10], bottom, top, log=True, every=36)
    acrosses = [point.flops / point.bytes for point in drawn]
    # names of roofs stand at the right, beyond the points
    ends = [*acrosses, *(each * 10 for each in acrosses), min(corners) / 10, max(corners) * 8]
    return scale(ends, PAD + ticks_width(y) + 10, width - PAD, log=True, every=60), y


def _place(point: Point, x: Scale, y: Scale) -> tuple[float, float]:
    return x.place(point.flops / point.bytes), y.place(point.flops_per_s)


def _radius(share: float) -> float:
    return max(_SMALLEST_RADIUS, _LARGEST_RADIUS * math.sqrt(min(1.0, share / _LARGEST_SHARE)))


def _legend(groups: Sequence[Group], width: float) -> list[list[tuple[float, int, str]]]:
    """Entries in rows: place, colour, text; what has no colour of its own is one entry."""
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
    """Slopes of memories and flats of arithmetic, their names, and the boxes that other names leave free."""
    slopes = sorted((roof for roof in roofs if roof.kind == "memory"), key=lambda roof: roof.per_s)
    flats = sorted((roof for roof in roofs if roof.kind == "compute"), key=lambda roof: -roof.per_s)
    highest, steepest = flats[0].per_s, slopes[-1].per_s
    angle = -math.degrees(math.atan2(_decade(y), _decade(x)))
    found, names, boxes = [], [], []
    for row, roof in enumerate(slopes):
        start = max(x.low, y.low / roof.per_s)
        a, b = x.place(start), y.place(start * roof.per_s)
        c, d = x.place(highest / roof.per_s), y.place(highest)
        found.append(f'<path d="M{a:.1f} {b:.1f}L{c:.1f} {d:.1f}"{_pen(roof)}/>')
        # names of two memories stand on different sides of their lines
        lift = 13.0 if row == 0 and len(slopes) > 1 else -6.0
        turned = f' transform="translate({(a + c) / 2:.1f} {(b + d) / 2:.1f}) rotate({angle:.1f})"'
        name = words(0, lift, _name(roof), tone=_tone(roof), anchor="middle", size=SMALL)
        names.append(f"<g{turned}>{name}</g>")
        steps = [step / _STEPS for step in range(_STEPS + 1)]
        boxes += [(a + s * (c - a) - 4, b + s * (d - b) - 4, a + s * (c - a) + 4, b + s * (d - b) + 4) for s in steps]
    above = y.end
    for roof in flats:
        begin, up = x.place(roof.per_s / steepest), y.place(roof.per_s)
        found.append(f'<path d="M{begin:.1f} {up:.1f}H{x.end:.1f}"{_pen(roof)}/>')
        # where the next roof is just above, the name stands below its own
        base = up - 5 if up - above > SMALL + 4 else up + SMALL + 2
        names.append(words(x.end - 4, base, _name(roof), tone=_tone(roof), anchor="end", size=SMALL))
        boxes += [(begin, up - 2, x.end, up + 2)]
        boxes.append((x.end - 4 - text_width(_name(roof), SMALL), base - SMALL, x.end, base + 3))
        above = max(up, base)
    return found, names, boxes


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
    """The names of the slowest points, where there is room beside them."""
    marks = [(*_place(point, x, y), _radius(point.share)) for point in drawn]
    taken = [*boxes, *(_around(each) for each in marks)]
    found = []
    for point in sorted(drawn, key=lambda each: -each.share)[:_NAMED_POINTS]:
        (at, up), radius = _place(point, x, y), _radius(point.share)
        text = shorten(point.module or point.operator, _LONGEST_NAME, SMALL)
        wide, middle = text_width(text, SMALL), up + 4
        aside = 1.3 * radius + 4
        sides = ((at + aside, middle), (at - aside - wide, middle))
        ends = ((at - wide / 2, up - aside), (at - wide / 2, up + aside + 8))
        for left, base in (*sides, *ends):
            box = (left, base - SMALL, left + wide, base + 3)
            inside = x.start < box[0] and box[2] < x.end and y.end < box[1] and box[3] < y.start
            if inside and not any(_overlap(box, other) for other in taken):
                taken.append(box)
                found.append(words(left, base, text, size=SMALL))
                break
    return found


def _around(each: tuple[float, float, float]) -> Box:
    at, up, radius = each
    return at - 0.7 * radius, up - 0.7 * radius, at + 0.7 * radius, up + 0.7 * radius


def _overlap(a: Box, b: Box) -> bool:
    return a[0] < b[2] and b[0] < a[2] and a[1] < b[3] and b[1] < a[3]
