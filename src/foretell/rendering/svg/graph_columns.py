"""Rendering: folds a tall layout into columns, side by side, so that a picture of many rows fits a screen.

Boxes keep their places within a row; a row never breaks. An arrow inside a column is only moved. An arrow into a later
column leaves at the bottom, goes up between the columns, and comes down from the top.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from foretell.rendering.svg.graph_layout import ROW_GAP, Box, Layout, Route

SCREEN = 1.6  # width over height
_GUTTER, _STEP, _MAX_STEPS = 56.0, 4.0, 10


@dataclass(frozen=True)
class Columns:
    """The boxes in their new places; arrows within a column; the paths of arrows between columns, by their number."""

    boxes: tuple[Box, ...]
    routes: tuple[Route, ...]
    crossing: dict[int, str]
    width: float
    height: float


def fold(layout: Layout, edges: Sequence[tuple[int, int]]) -> Columns:
    """The layout in as many columns as make it about as wide as a screen."""
    count = max(1, round(math.sqrt(SCREEN * layout.height / max(layout.width, 1.0))))
    starts = _starts(layout, layout.height / count)
    if len(starts) == 1:
        return Columns(layout.boxes, layout.routes, {}, layout.width, layout.height)
    top = ROW_GAP  # room for arrows that come from another column
    ends = [*starts[1:], layout.height + ROW_GAP]
    height = max(end - start for start, end in zip(starts, ends, strict=True)) + top
    column_of = [sum(start <= box.y for start in starts) - 1 for box in layout.boxes]

    def moved(column: int) -> tuple[float, float]:
        return column * (layout.width + _GUTTER), top - starts[column]

    boxes = tuple(
        Box(box.x + moved(column)[0], box.y + moved(column)[1], box.width, box.height)
        for box, column in zip(layout.boxes, column_of, strict=True)
    )
    routes, crossing = [], dict[int, str]()
    for number, ((source, target), route) in enumerate(zip(edges, layout.routes, strict=True)):
        x, y = moved(column_of[source])
        if column_of[source] == column_of[target]:
            pieces = tuple((at + x, begin + y, end + y) for at, begin, end in route.pieces)
            routes.append(Route(pieces, route.lane))
            continue
        routes.append(route)
        # arrows between columns lie beside each other, not on each other
        aside = _STEP * (len(crossing) % _MAX_STEPS)
        begin, end = boxes[source], boxes[target]
        gutter = (column_of[source] + 1) * (layout.width + _GUTTER) - _GUTTER / 2 - aside
        crossing[number] = (
            f"M{begin.x + begin.width / 2:.1f} {begin.y + begin.height:.1f}v{_STEP + aside:.1f}H{gutter:.1f}"
            f"V{_STEP + aside / 2:.1f}H{end.x + end.width / 2:.1f}V{end.y:.1f}"
        )
    width = len(starts) * (layout.width + _GUTTER) - _GUTTER
    return Columns(boxes, tuple(routes), crossing, width, height)


def _starts(layout: Layout, tall: float) -> list[float]:
    """Where the columns begin: at rows, each when the one before is as tall as asked for."""
    starts = [0.0]
    for y in sorted({box.y for box in layout.boxes}):
        if y - starts[-1] >= tall:
            starts.append(y)
    return starts
