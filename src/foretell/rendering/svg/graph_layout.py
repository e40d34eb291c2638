"""Rendering: the layout of a graph: boxes in rows from top to bottom, and arrows between them.

K. Sugiyama, S. Tagawa, M. Toda, "Methods for Visual Understanding of Hierarchical System Structures", 1981:

1. A box goes to the row given by the longest path to it.
2. An arrow that passes a few rows gets an invisible item in each, so that boxes keep clear of it. An arrow that passes
   many rows runs in a lane beside all boxes.
3. Items of a row are ordered by the mean position of their neighbours, to avoid crossings.
4. Items move as close to their neighbours as order and gaps allow.

The order is a heuristic: finding the fewest crossings is NP-hard.
"""

from bisect import bisect_right, insort
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise

ROW_GAP, BOX_GAP, LANE_GAP = 40.0, 22.0, 9.0
_MAX_BOXES_A_ROW = 12  # the others go to another row
_MAX_ROWS_PASSED = 12  # by an arrow between boxes; longer arrows run in a lane
_PASS_WIDTH = 10.0
_SWEEPS = 8  # passes over all rows, down and up in turn
_PORT_GAP = 14.0
# How strongly neighbours attract each other, by whether each of the two is the item of an arrow (True) or a box.
_PULL = {(False, False): 1.0, (False, True): 0.02, (True, False): 0.02, (True, True): 0.2}

Edge = tuple[int, int]


@dataclass(frozen=True)
class Box:
    """A rectangle by its upper left corner."""

    x: float
    y: float
    width: float
    height: float


@dataclass(frozen=True)
class Route:
    """An arrow: vertical pieces ``(x, from y, to y)`` that curves join; ``lane`` if it runs beside the boxes."""

    pieces: tuple[tuple[float, float, float], ...]
    lane: bool = False


@dataclass(frozen=True)
class Layout:
    """Boxes and arrows in the order in which they were given."""

    boxes: tuple[Box, ...]
    routes: tuple[Route, ...]
    width: float
    height: float


@dataclass(frozen=True)
class _Rows:
    """Items by row: first boxes, then items of arrows that pass; ``above`` and ``below`` have the linked items."""

    rows: list[list[int]]
    widths: list[float]
    above: list[list[int]]
    below: list[list[int]]
    chains: dict[Edge, list[int]]


def lay_out(sizes: Sequence[tuple[float, float]], edges: Sequence[Edge]) -> Layout:
    """Lay out boxes of given sizes; edges must lead from earlier boxes to later ones.

    >>> lay_out([(10, 10), (10, 10)], [(0, 1)]).boxes[1].y
    50.0
    """
    if not sizes:
        return Layout((), (), 0.0, 0.0)
    row_of = _split_wide(_rank(len(sizes), edges))
    items = _make_rows(sizes, edges, row_of)
    _sort_rows(items)
    centres = _place(items, len(sizes))
    left = min(centre - width / 2 for centre, width in zip(centres, items.widths))
    centres = [centre - left for centre in centres]
    tops = _tops(sizes, row_of)
    boxes = tuple(
        Box(centres[i] - width / 2, tops[row_of[i]], width, height) for i, (width, height) in enumerate(sizes)
    )
    right = max(centre + width / 2 for centre, width in zip(centres, items.widths))
    routes, lanes = _route(edges, boxes, items, centres, tops, row_of, right)
    return Layout(boxes, routes, right + (lanes + 1) * LANE_GAP if lanes else right, tops[-1] - ROW_GAP)


def _rank(count: int, edges: Sequence[Edge]) -> list[int]:
    """The row of each box: the length of the longest path to it.

    A box with more readers than makers moves down towards its readers, which shortens more arrows than it lengthens.
    """
    makers: list[list[int]] = [[] for _ in range(count)]
    readers: list[list[int]] = [[] for _ in range(count)]
    for source, target in edges:
        makers[target].append(source)
        readers[source].append(target)
    rank = [0] * count
    for box in range(count):
        rank[box] = max((rank[maker] + 1 for maker in makers[box]), default=0)
    for box in range(count - 1, -1, -1):
        if len(makers[box]) < len(readers[box]):
            rank[box] = min(rank[reader] for reader in readers[box]) - 1
    return rank


def _split_wide(rank: list[int]) -> list[int]:
    """Split rows that have too many boxes, and number the rows from 0."""
    by_rank: defaultdict[int, list[int]] = defaultdict(list)
    for box, own in enumerate(rank):
        by_rank[own].append(box)
    row_of, row = [0] * len(rank), -1
    for own in sorted(by_rank):
        for position, box in enumerate(by_rank[own]):
            row += position % _MAX_BOXES_A_ROW == 0
            row_of[box] = row
    return row_of


def _make_rows(sizes: Sequence[tuple[float, float]], edges: Sequence[Edge], row_of: list[int]) -> _Rows:
    """Boxes by row, and an item in every row that an arrow passes; arrows from the same box share it."""
    rows: list[list[int]] = [[] for _ in range(max(row_of) + 1)]
    for box, row in enumerate(row_of):
        rows[row].append(box)
    widths = [width for width, _ in sizes]
    passes: dict[tuple[int, int], int] = {}
    chains: dict[Edge, list[int]] = {}
    for source, target in edges:
        if row_of[target] - row_of[source] > _MAX_ROWS_PASSED:
            continue
        chain = [source]
        for row in range(row_of[source] + 1, row_of[target]):
            if (source, row) not in passes:
                passes[source, row] = len(widths)
                rows[row].append(len(widths))
                widths.append(_PASS_WIDTH)
            chain.append(passes[source, row])
        chains[source, target] = [*chain, target]
    above: list[list[int]] = [[] for _ in widths]
    below: list[list[int]] = [[] for _ in widths]
    for upper, lower in dict.fromkeys(link for chain in chains.values() for link in pairwise(chain)):
        below[upper].append(lower)
        above[lower].append(upper)
    return _Rows(rows, widths, above, below, chains)


def _side_by_side(row: Sequence[int], widths: Sequence[float]) -> list[float]:
    """The centres of the items of a row, side by side around 0."""
    centres, end = [], 0.0
    for item in row:
        centres.append(end + widths[item] / 2)
        end += widths[item] + BOX_GAP
    return [centre - (end - BOX_GAP) / 2 for centre in centres]


def _sort_rows(items: _Rows) -> None:
    """Order each row by the mean position of its neighbours, down and up; keep the order with the fewest crossings."""
    fewest, best_rows = _crossings(items), [list(row) for row in items.rows]
    for sweep in range(_SWEEPS):
        if not fewest:
            break
        place = {i: x for row in items.rows for i, x in zip(row, _side_by_side(row, items.widths))}
        near = items.below if sweep % 2 else items.above
        for row in reversed(items.rows) if sweep % 2 else items.rows:
            row.sort(key=lambda i: sum(place[j] for j in near[i]) / len(near[i]) if near[i] else place[i])
            place |= zip(row, _side_by_side(row, items.widths))
        crossed = _crossings(items)
        if crossed < fewest:
            fewest, best_rows = crossed, [list(row) for row in items.rows]
    items.rows[:] = best_rows


def _crossings(items: _Rows) -> int:
    """How often links cross: inversions, counted row by row with a sorted list of the ends seen so far."""
    at = {item: position for row in items.rows for position, item in enumerate(row)}
    count = 0
    for row in items.rows:
        seen: list[int] = []
        for item in row:
            ends = [at[lower] for lower in items.below[item]]
            count += sum(len(seen) - bisect_right(seen, end) for end in ends)
            for end in ends:
                insort(seen, end)
    return count


def _place(items: _Rows, boxes: int) -> list[float]:
    """The centre of every item: close to its neighbours, in the order of its row, without overlap."""
    centres = [0.0] * len(items.widths)
    for row in items.rows:
        for item, centre in zip(row, _side_by_side(row, items.widths)):
            centres[item] = centre
    for sweep in range(_SWEEPS + 1):
        up = sweep % 2 == 1
        for row in reversed(items.rows) if up else items.rows:
            targets, weights = [], []
            for item in row:
                near = items.below[item] if up else items.above[item]
                # Boxes line up with boxes; arrows that pass rows become straight and give way to boxes.
                pull = [_PULL[item >= boxes, other >= boxes] for other in near]
                weight = sum(pull)
                targets.append(
                    sum(p * centres[other] for p, other in zip(pull, near)) / weight if near else centres[item]
                )
                weights.append(weight or 0.01)
            for item, centre in zip(row, _keep_apart(targets, weights, [items.widths[item] for item in row])):
                centres[item] = centre
    return centres


def _keep_apart(targets: list[float], weights: list[float], widths: list[float]) -> list[float]:
    """The centres closest to the targets (weighted least squares) that keep the order and the gaps.

    Once the gaps are subtracted, this is isotonic regression: pool adjacent violators, in linear time.
    """
    offsets = [0.0]
    for before, behind in pairwise(widths):
        offsets.append(offsets[-1] + (before + behind) / 2 + BOX_GAP)
    pools: list[tuple[float, float, int]] = []  # mean, weight, members
    for target, weight, offset in zip(targets, weights, offsets):
        mean, total, members = target - offset, weight, 1
        while pools and pools[-1][0] > mean:
            other, own, more = pools.pop()
            mean, total, members = (mean * total + other * own) / (total + own), total + own, members + more
        pools.append((mean, total, members))
    means = [mean for mean, _, members in pools for _ in range(members)]
    return [mean + offset for mean, offset in zip(means, offsets)]


def _tops(sizes: Sequence[tuple[float, float]], row_of: list[int]) -> list[float]:
    """The top of each row, and of the row that would follow the last."""
    heights = [0.0] * (max(row_of) + 1)
    for row, (_, height) in zip(row_of, sizes):
        heights[row] = max(heights[row], height)
    tops = [0.0]
    for height in heights:
        tops.append(tops[-1] + height + ROW_GAP)
    return tops


def _route(
    edges: Sequence[Edge], boxes: Sequence[Box], items: _Rows, centres: list[float], tops: list[float],
    row_of: list[int], right: float,
) -> tuple[tuple[Route, ...], int]:  # fmt: skip
    """The arrows, through their items or in lanes beside the boxes, and the number of lanes."""
    aside = [edge for edge in edges if edge not in items.chains]
    lane_of = _lanes(aside, row_of)
    outward = _ports(boxes, items.below, {source for source, _ in aside}, centres)
    inward = _ports(boxes, items.above, {target for _, target in aside}, centres)
    routes = []
    for source, target in edges:
        begin, end = boxes[source], boxes[target]
        bottom, top = begin.y + begin.height, end.y
        chain = items.chains.get((source, target))
        if chain:
            middle = (
                (centres[item], tops[row], tops[row + 1] - ROW_GAP)
                for row, item in enumerate(chain[1:-1], row_of[source] + 1)
            )
            first = (outward[source, chain[1]], bottom, tops[row_of[source] + 1] - ROW_GAP)
            routes.append(Route((first, *middle, (inward[target, chain[-2]], top, top))))
        else:
            x = right + LANE_GAP * (lane_of[source] + 1)
            leave = tops[row_of[source] + 1] - ROW_GAP / 2
            arrive = tops[row_of[target]] - ROW_GAP / 2
            first, last = (outward[source, None], bottom, leave), (inward[target, None], arrive, top)
            routes.append(Route((first, (x, leave, arrive), last), lane=True))
    return tuple(routes), max(lane_of.values(), default=-1) + 1


def _lanes(aside: Iterable[Edge], row_of: list[int]) -> dict[int, int]:
    """A lane for every box with arrows beside the boxes; a lane is used again below the last row of its arrow."""
    reach: dict[int, int] = {}
    for source, target in aside:
        reach[source] = max(reach.get(source, 0), row_of[target])
    free_from: list[int] = []
    lanes = {}
    for source, last in sorted(reach.items(), key=lambda item: (row_of[item[0]], -item[1])):
        lane = next((i for i, row in enumerate(free_from) if row < row_of[source]), len(free_from))
        free_from[lane : lane + 1] = [last]
        lanes[source] = lane
    return lanes


def _ports(
    boxes: Sequence[Box], links: list[list[int]], aside: set[int], centres: list[float]
) -> dict[tuple[int, int | None], float]:
    """The x of each arrow at the edge of its box; arrows in lanes share the rightmost position."""
    ports: dict[tuple[int, int | None], float] = {}
    for i, box in enumerate(boxes):
        others: list[int | None] = [*sorted(links[i], key=lambda other: centres[other])]
        others += [None] if i in aside else []
        gap = min(_PORT_GAP, box.width / (len(others) + 1))
        for position, other in enumerate(others):
            ports[i, other] = box.x + box.width / 2 + (position - (len(others) - 1) / 2) * gap
    return ports
