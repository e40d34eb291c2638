"""Rendering: the frame of a small HTML page: one column, light and dark. It loads nothing and runs nothing."""

from foretell.rendering.svg.canvas import CHART_CSS, safe

_POLICY = "default-src 'none'; style-src 'unsafe-inline'"
_CSS = """
:root{color-scheme:light dark}
body{margin:0 auto;max-width:1100px;padding:20px 16px 48px;font:15px/1.5 system-ui,-apple-system,'Segoe UI',sans-serif}
h1{font-size:1.35rem;overflow-wrap:anywhere}table{border-collapse:collapse;font-size:.88rem;font-variant-numeric:tabular-nums}
th,td{padding:4px 12px 4px 0;text-align:left;border-bottom:1px solid #8884}th.n,td.n{text-align:right}
th,td.n{white-space:nowrap}td small{display:block;opacity:.7}
.scroll{overflow-x:auto;margin:16px 0}.off{opacity:.6}.own{font-weight:600}
.chart{max-width:760px}pre{white-space:pre-wrap;overflow-wrap:anywhere}
.tag{border:1px solid #8888;border-radius:3px;padding:0 4px;font-size:.78rem;white-space:nowrap}
.wide{overflow-x:auto}.wide>svg{min-width:640px}.cards{margin:16px 0}
@media (max-width:40rem){
.cards table,.cards tbody{display:block}.cards thead{display:none}
.cards tr{display:grid;grid-template-columns:repeat(auto-fill,minmax(6rem,1fr));gap:.3rem 1rem;padding:.7rem 0;
border-bottom:1px solid #8884}
.cards td{display:block;padding:0;border:0;text-align:left}.cards td.n{text-align:left;white-space:normal}
.cards td:first-child{grid-column:1/-1}.cards td:empty{display:none}
.cards td[data-head]:not(:first-child)::before{content:attr(data-head);display:block;opacity:.7;font-size:.75rem}
.wide>svg{min-width:520px}
}
"""


def plain_page(title: str, *parts: str) -> str:
    """A page; ``parts`` are HTML, one below the other."""
    content = "\n".join(part for part in parts if part)
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
{content}
</body>
</html>
"""
