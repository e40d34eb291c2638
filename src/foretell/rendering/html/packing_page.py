"""Rendering: a packing as an HTML page: the sums, the Gantt chart, and a table of the jobs. It loads nothing."""

from collections.abc import Sequence

from foretell.rendering.html.plain_page import plain_page
from foretell.rendering.html.report_parts import Column, Line, brief, number, table
from foretell.rendering.svg.canvas import safe

_MAX_ROWS = 1000
_COLUMNS = (
    Column("job"),
    Column("start, s", "number"),
    Column("end, s", "number"),
    Column("waiting, s", "number"),
    Column("slowdown", "number"),
    Column("limit"),
)


def packing_page(title: str, lines: Sequence[tuple[str, str]], gantt: str, jobs: Sequence[dict[str, object]]) -> str:
    """The page as one HTML text; ``jobs`` are rows of a packing."""
    sums = table([Column(""), Column("")], [Line([safe(name), safe(value)]) for name, value in lines])
    rows = table(_COLUMNS, [_line(row) for row in jobs[:_MAX_ROWS]], cards=True)
    more = f"<p>and {len(jobs) - _MAX_ROWS:,} more; --json has them</p>" if len(jobs) > _MAX_ROWS else ""
    return plain_page(title, sums, f'<div class="wide">{gantt}</div>', rows, more)


def _line(row: dict[str, object]) -> Line:
    part = f" {row['slice']}" if row["slice"] else ""
    kept = {True: "kept", False: "broken", None: ""}[row["keeps_limit"]]  # type: ignore[index]
    values = [number(float(str(row[name]))) for name in ("start_s", "end_s", "waiting_s", "slowdown")]
    gpus = row.get("gpus")
    numbers = f"gpus {', '.join(map(str, gpus))}" if isinstance(gpus, list) else f"gpu {row['gpu']}"
    where = f"{row['device']}{part}, {numbers}"
    job = f"{brief(str(row['job']))}<small>{safe(where)}</small>"
    return Line([job, *values, kept], "own" if kept == "broken" else "")
