"""Rendering: a small Gantt chart for a terminal: a line for each lane, a letter for each kind of job."""

from collections.abc import Sequence

from foretell.rendering.svg.gantt import Task
from foretell.rendering.terminal.numbers import number
from foretell.rendering.terminal.printable import printable

_LETTERS = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
_MAX_LINES = 24
_MAX_NAMES = 12
_MAX_LABEL = 24


def text_gantt(rows: Sequence[str], tasks: Sequence[Task], names: Sequence[str], width: int = 100) -> list[str]:
    """Lines of text; ``names`` are the kinds of jobs, in the order of their numbers.

    >>> for line in text_gantt(["gpu 0"], [Task(0, 0, 0, 5, "x", 0), Task(0, 1, 5, 10, "y", 1)], ["x", "y"], 30):
    ...     print(line)
    gpu 0  |aaaaaaaaaa············
           ···········|bbbbbbbbbbb
           0                  10 s
    a x · b y
    """
    end_s = max((task.end_s for task in tasks), default=0.0) or 1.0
    label = min(_MAX_LABEL, max((len(row) for row in rows), default=0))
    cells = max(10, width - label - 2)
    lines: list[str] = []
    left_out = 0
    for row, name in enumerate(rows):
        lanes = 1 + max((task.lane for task in tasks if task.row == row), default=0)
        if len(lines) + lanes > _MAX_LINES:
            left_out = len(rows) - row
            break
        for lane in range(lanes):
            bar = ["·"] * cells
            for task in tasks:
                if (task.row, task.lane) == (row, lane):
                    begin = min(cells - 1, int(task.start_s / end_s * cells))
                    end = max(begin + 1, int(task.end_s / end_s * cells))
                    bar[begin:end] = _LETTERS[task.kind % len(_LETTERS)] * (end - begin)
                    if end - begin > 1:
                        bar[begin] = "|"  # equal jobs may follow each other
            lines.append(f"{printable(name)[:label] if lane == 0 else '':<{label}}  {''.join(bar)}")
    last = f"{number(end_s)} s"
    lines.append(f"{'':<{label}}  0{last:>{cells - 1}}")
    if left_out:
        lines.append(f"and {left_out:,} more; --report draws them")
    key = [f"{_LETTERS[number % len(_LETTERS)]} {printable(name)}" for number, name in enumerate(names[:_MAX_NAMES])]
    return [*lines, " · ".join(key) + (" · …" if len(names) > _MAX_NAMES else "")]
