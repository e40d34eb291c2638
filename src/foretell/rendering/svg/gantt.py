"""Rendering: a Gantt chart as SVG: a row for each place, a bar for each job; jobs that share a place lie in lanes."""

from collections.abc import Sequence
from dataclasses import dataclass

from foretell.rendering.svg.canvas import (
    COLOURS,
    PAD,
    SMALL,
    TITLE,
    heading,
    number,
    picture,
    safe,
    scale,
    shorten,
    svg_text,
    text_width,
)

_LANE, _GAP = 13.0, 6.0
_MAX_LABEL = 150.0
_MAX_ROWS = 64
_MAX_BARS = 4000


@dataclass(frozen=True, slots=True)
class Task:
    """One bar: the row and the lane where it lies, its time, its name, its colour by ``kind``, and a tooltip."""

    row: int
    lane: int
    start_s: float
    end_s: float
    name: str
    kind: int
    note: str = ""


def lay_lanes(spans: Sequence[tuple[int, float, float]]) -> list[int]:
    """A lane for each (row, start, end), so that bars of one row do not overlap; spans are sorted by their start.

    >>> lay_lanes([(0, 0.0, 5.0), (0, 1.0, 3.0), (0, 3.0, 6.0), (1, 0.0, 1.0)])
    [0, 1, 1, 0]
    """
    ends: dict[int, list[float]] = {}
    lanes = []
    for row, start_s, end_s in spans:
        taken = ends.setdefault(row, [])
        lane = next((lane for lane, last_s in enumerate(taken) if last_s <= start_s), len(taken))
        taken[lane : lane + 1] = [end_s]
        lanes.append(lane)
    return lanes


def draw_gantt(rows: Sequence[str], tasks: Sequence[Task], *, title: str, width: int = 960) -> str:
    """The chart; rows beyond 64 and bars beyond 4,000 are left out, and the chart says so.

    >>> draw_gantt(["gpu 0"], [Task(0, 0, 0.0, 5.0, "a", 0)], title="Packing").count('class="ch-f-0"')
    1
    """
    shown = [task for task in tasks if task.row < _MAX_ROWS][:_MAX_BARS]
    names = rows[:_MAX_ROWS]
    lanes = [1 + max((task.lane for task in shown if task.row == row), default=0) for row in range(len(names))]
    top = PAD + TITLE + 18
    tops = [top + sum(lanes[:row]) * _LANE + row * _GAP for row in range(len(names) + 1)]
    left = PAD + min(_MAX_LABEL, max((text_width(name, SMALL) for name in names), default=0.0)) + 8
    across = scale([0.0, *(task.end_s for task in shown)], left, width - PAD, min_gap=80)
    bottom = tops[-1]
    parts = [heading(title, width)]
    for tick in across.ticks:
        at = across.place(tick)
        parts.append(f'<path d="M{at:.1f} {top:.1f}V{bottom:.1f}" class="ch-s-grid"/>')
        parts.append(svg_text(at, bottom + 15, across.label(tick), tone="quiet", anchor="middle", size=SMALL))
    parts.append(svg_text((left + width - PAD) / 2, bottom + 32, "seconds", tone="quiet", anchor="middle"))
    for row, name in enumerate(names):
        middle = tops[row] + lanes[row] * _LANE / 2 + 4
        parts.append(svg_text(left - 8, middle, shorten(name, _MAX_LABEL, SMALL), anchor="end", size=SMALL))
    for task in shown:
        parts.append(_bar(task, tops[task.row], across.place(task.start_s), across.place(task.end_s)))
    left_out = len(tasks) - len(shown)
    if left_out:
        parts.append(svg_text(PAD, bottom + 50, f"{left_out:,} jobs are not shown", tone="quiet", size=SMALL))
    return picture(title, width, bottom + (58 if left_out else 42), parts)


def _bar(task: Task, top: float, begin: float, end: float) -> str:
    y, wide = top + task.lane * _LANE, max(0.5, end - begin)
    note = f"{task.name}: {number(task.start_s)} to {number(task.end_s)} s{task.note}"
    bar = (
        f'<g><title>{safe(note)}</title><rect x="{begin:.1f}" y="{y:.1f}" width="{wide:.1f}" height="{_LANE - 1.5:g}"'
        f' rx="2" opacity=".8" class="ch-f-{task.kind % COLOURS}"/>'
    )
    label = svg_text(begin + 3, y + _LANE - 4, shorten(task.name, wide - 5, 10), tone="paper", size=10)
    return f"{bar}{label if wide > 34 else ''}</g>"
