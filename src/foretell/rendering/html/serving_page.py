"""Rendering: where to serve a language model as an HTML page: the best places, what they cost, and what is excluded."""

from collections.abc import Sequence
from dataclasses import dataclass

from foretell.records import Estimate
from foretell.rendering.html.plain_page import plain_page
from foretell.rendering.html.report_parts import Column, Line, folded, note, table, tag, value, with_range
from foretell.rendering.svg.canvas import safe
from foretell.rendering.svg.charts import Bar, bar_chart

SHOWN = 8
_WIDTH = 520  # narrow, so that its letters can be read on a phone
_COLUMNS = (
    Column("place"), Column("requests", "number"), Column("first token, ms", "number"), Column("a token, ms", "number"),
    Column("tokens/s", "number"), Column("$ a million tokens", "number"), Column("J a token", "number"),
    Column("copies", "number"),
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class ServingRow:
    """A place with as many requests at a time as keep the limits; unknown values are None."""

    place: str
    instance: str
    requests: int
    ttft_ms: Estimate | None
    tpot_ms: Estimate | None
    tokens_per_s: Estimate | None
    usd: Estimate
    energy_j: Estimate | None
    copies: int
    extrapolated: bool
    at_risk: bool


def serving_page(
    title: str,
    lead: str,
    rows: Sequence[ServingRow],
    refused: Sequence[tuple[str, str]],
    notes: Sequence[str],
    command: str,
) -> str:
    """The page as one HTML text; ``notes`` are remarks, ``command`` makes the page again."""
    parts = [f"<p>{safe(lead)}</p>"]
    if rows:
        bars = [
            Bar(row.place, row.usd.value, f"{row.requests} requests at a time", row.usd.low, row.usd.high)
            for row in rows[:SHOWN]
        ]
        chart = bar_chart(bars, title="A million tokens, with 90 % intervals", unit="$", width=_WIDTH)
        parts += [f'<div class="chart">{chart}</div>', _places(rows[:SHOWN])]
        if len(rows) > SHOWN:
            parts.append(folded(f"{len(rows) - SHOWN} more places", _places(rows[SHOWN:])))
    if refused:
        reasons = table((Column("place"), Column("why")), [Line((safe(place), safe(why))) for place, why in refused])
        # without any choice the reasons are the answer
        parts.append(folded(f"{len(refused)} excluded", reasons) if rows else reasons)
    parts += [note(text) for text in notes]
    return plain_page(title, *parts, f"<h2>Make this page again</h2><pre>{safe(command)}</pre>")


def _places(rows: Sequence[ServingRow]) -> str:
    lines = []
    for row in rows:
        marks = [tag("extrapolated")] if row.extrapolated else []
        marks += [tag("may miss a limit")] if row.at_risk else []
        name = f"{safe(row.place)} {' '.join(marks)}<small>{safe(row.instance)}</small>"
        numbers = (row.ttft_ms, row.tpot_ms, row.tokens_per_s, row.usd)
        cells = [name, f"{row.requests:,}", *map(with_range, numbers), value(row.energy_j), f"{row.copies:,}"]
        lines.append(Line(cells))
    return table(_COLUMNS, lines, cards=True)
