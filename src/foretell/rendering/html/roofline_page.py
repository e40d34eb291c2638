"""Rendering: a roofline as an HTML page: the picture, and a table of its points that can be sorted.

The page loads nothing, and its policy forbids it to. Its only script sorts rows and highlights the point of a row.
"""

from foretell.rendering.svg.canvas import CHART_CSS, number, safe
from foretell.rendering.svg.roofline import LIMITS, Point, Roofline, draw_roofline
from foretell.units import engineering

_HEADS = ("operator", "module", "shapes", "count", "time, µs", "share", "FLOP/byte", "FLOP/s", "of ceiling", "limit")
_KERNEL = "likeliest kernel"
_NUMBER = ' class="n"'
_TEXTS = ("operator", "module", "shapes", "limit", _KERNEL)

_POLICY = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'"
_CSS = """
:root{color-scheme:light dark;--page:#f4f6f8;--card:#fff;--ink:#1b2430;--quiet:#5a6675;--line:#e3e7ec;--lit:#fff3d6}
@media (prefers-color-scheme:dark){:root{--page:#0d1015;--card:#14181f;--ink:#e8ecf1;--quiet:#a3aebb;--line:#2a323c;
--lit:#3a3113}}
body{margin:0;background:var(--page);color:var(--ink);font:15px/1.5 system-ui,-apple-system,'Segoe UI',Roboto,
'Helvetica Neue',Arial,sans-serif}
main{max-width:1200px;margin:0 auto;padding:20px 16px 48px}
h1{font-size:1.35rem;margin:0 0 4px}p{color:var(--quiet);margin:4px 0}
.card{background:var(--card);border:1px solid var(--line);border-radius:8px;margin:16px 0;overflow-x:auto}
.card svg{min-width:620px}
table{border-collapse:collapse;width:100%;font-size:.85rem;font-variant-numeric:tabular-nums}
th,td{padding:5px 10px;text-align:left;border-bottom:1px solid var(--line);white-space:nowrap}
td:nth-child(2),td:nth-child(3){max-width:22ch;overflow:hidden;text-overflow:ellipsis}
th.n,td.n{text-align:right}
th button{all:unset;cursor:pointer;font-weight:600}th button:focus-visible{outline:2px solid var(--chart-0)}
tr.lit td{background:var(--lit)}
.ch-point{cursor:pointer}svg.chart .ch-point.lit{stroke:var(--ink);stroke-width:2.5}
.dim .ch-point:not(.lit){opacity:.25}
@media print{body{background:#fff;color:#000}.card{border:0}}
"""

_SCRIPT = """
(() => {
const svg = document.querySelector('svg'), body = document.querySelector('tbody');
const marks = new Map([...svg.querySelectorAll('.ch-point')].map(g => [g.dataset.row, g]));
const rows = new Map([...body.rows].map(r => [r.dataset.row, r]));
const light = (key, on) => {
  svg.classList.toggle('dim', on && marks.has(key));
  for (const element of [marks.get(key), rows.get(key)]) if (element) element.classList.toggle('lit', on);
};
for (const [key, mark] of marks) {
  mark.addEventListener('pointerenter', () => light(key, true));
  mark.addEventListener('pointerleave', () => light(key, false));
  mark.addEventListener('click', () => rows.get(key).scrollIntoView({block: 'center', behavior: 'smooth'}));
}
for (const [key, row] of rows) {
  row.addEventListener('pointerenter', () => light(key, true));
  row.addEventListener('pointerleave', () => light(key, false));
}
document.querySelectorAll('th').forEach((head, column) => head.addEventListener('click', () => {
  const down = head.getAttribute('aria-sort') !== 'descending';
  document.querySelectorAll('th').forEach(other => other.removeAttribute('aria-sort'));
  head.setAttribute('aria-sort', down ? 'descending' : 'ascending');
  const value = row => row.cells[column].dataset.value ?? row.cells[column].textContent;
  const order = (a, b) => head.classList.contains('n') ? value(a) - value(b) : value(a).localeCompare(value(b));
  body.append(...[...body.rows].sort((a, b) => down ? order(b, a) : order(a, b)));
}));
})();
"""


def roofline_page(roofline: Roofline) -> str:
    """The page as one HTML text."""
    kernel = roofline.by == "kernel"
    heads = "".join(
        f'<th scope="col"{_NUMBER if head not in _TEXTS else ""}><button type="button">{head}</button></th>'
        for head in (*_HEADS, *([_KERNEL] if kernel else []))
    )
    rows = "\n".join(_row(row, point, kernel) for row, point in enumerate(roofline.points))
    lead = f"{roofline.title}: {number(roofline.latency_ms)} ms, {roofline.mode}, as {roofline.predictor} predicts it"
    limits = [f"{limit}: {LIMITS[limit]}" for limit in LIMITS if any(point.limit == limit for point in roofline.points)]
    notes = "\n".join(f"<p>{safe(note)}</p>" for note in (*limits, *roofline.notes))
    return f"""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width,initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="{_POLICY}">
<title>{safe(f"Roofline: {roofline.title}")}</title>
<style>{CHART_CSS}{_CSS}</style>
</head>
<body>
<main>
<h1>Roofline</h1>
<p>{safe(lead)}</p>
<div class="card">
{draw_roofline(roofline)}
</div>
<div class="card">
<table>
<thead><tr>{heads}</tr></thead>
<tbody>
{rows}
</tbody>
</table>
</div>
{notes}
</main>
<script>{_SCRIPT}</script>
</body>
</html>
"""


def _row(row: int, point: Point, kernel: bool) -> str:
    numbers = (
        (point.count, str(point.count)),
        (point.time_us, number(point.time_us)),
        (point.share, f"{point.share:.1%}"),
        (point.intensity or 0.0, number(point.intensity or 0.0)),
        (point.flops_per_s, engineering(point.flops_per_s)),
        (point.reached, f"{point.reached:.0%}"),
    )
    cells = [f'<td title="{safe(text)}">{safe(text)}</td>' for text in (point.operator, point.module, point.shapes)]
    cells += [f'<td class="n" data-value="{value:.9g}">{text}</td>' for value, text in numbers]
    cells.append(f"<td>{safe(point.limit)}</td>")
    if kernel:
        cells.append(f"<td>{safe(f'{point.kernel} ({point.probability or 0.0:.0%})')}</td>")
    return f'<tr data-row="{row}">{"".join(cells)}</tr>'
