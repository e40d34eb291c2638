"""Rendering: a packing as an HTML page: the sums, the Gantt chart, and a table of the jobs. It loads nothing."""

from collections.abc import Sequence

from foretell.rendering.html.report_parts import Column, Line, brief, number, table
from foretell.rendering.svg.canvas import CHART_CSS, safe

_MAX_ROWS = 1000
_POLICY = "default-src 'none'; style-src 'unsafe-inline'"
_CSS = """
:root{color-scheme:light dark}
body{margin:0 auto;max-width:1100px;padding:20px 16px 48px;font:15px/1.5 system-ui,-apple-system,'Segoe UI',sans-serif}
h1{font-size:1.35rem}table{border-collapse:collapse;font-size:.88rem;font-variant-numeric:tabular-nums}
th,td{padding:4px 12px 4px 0;text-align:left;border-bottom:1px solid #8884}th.n,td.n{text-align:right}
.scroll{overflow-x:auto;margin:16px 0}.off{opacity:.6}.own{font-weight:600}
"""
_COLUMNS = (
    Column("job"),
    Column("where"),
    Column("start, s", "number"),
    Column("end, s", "number"),
    Column("waiting, s", "number"),
    Column("slowdown", "number"),
    Column("limit"),
)


def packing_page(title: str, lines: Sequence[tuple[str, str]], gantt: str, jobs: Sequence[dict[str, object]]) -> str:
    """The page as one HTML text; ``jobs`` are rows of a packing."""
    sums = table([Column(""), Column("")], [Line([safe(name), safe(value)]) for name, value in lines])
    rows = table(_COLUMNS, [_line(row) for row in jobs[:_MAX_ROWS]])
    more = f"<p>and {len(jobs) - _MAX_ROWS:,} more; --json has them</p>" if len(jobs) > _MAX_ROWS else ""
    return f"""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width,initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="{_POLICY}">
<title>{safe(title)}</title>
<style>{CHART_CSS}{_CSS}</style>
</head>
<body>
<h1>{safe(title)}</h1>
{sums}
{gantt}
{rows}
{more}
</body>
</html>
"""


def _line(row: dict[str, object]) -> Line:
    part = f" {row['slice']}" if row["slice"] else ""
    kept = {True: "kept", False: "broken", None: ""}[row["keeps_limit"]]  # type: ignore[index]
    values = [number(float(str(row[name]))) for name in ("start_s", "end_s", "waiting_s", "slowdown")]
    gpus = row.get("gpus")
    numbers = f"gpus {', '.join(map(str, gpus))}" if isinstance(gpus, list) else f"gpu {row['gpu']}"
    where = f"{row['device']}{part}, {numbers}"
    return Line([brief(str(row["job"])), safe(where), *values, kept], "own" if kept == "broken" else "")
