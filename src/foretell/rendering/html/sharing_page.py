"""Rendering: models that share a GPU as an HTML page: how long each takes alone and beside the others."""

from collections.abc import Sequence
from dataclasses import dataclass

from foretell.records import Estimate
from foretell.rendering.html.plain_page import plain_page
from foretell.rendering.html.report_parts import Column, Line, brief, number, table, with_range
from foretell.rendering.svg.canvas import safe
from foretell.rendering.svg.charts import Bar, bar_chart

_ALONE, _TOGETHER = 0, 1  # colours
_WIDTH = 520  # narrow, so that its letters can be read on a phone


@dataclass(frozen=True, slots=True)
class SharedRow:
    """One of the models; ``together_ms`` and ``slowdown`` are None if the models do not fit."""

    model: str
    setting: str
    alone_ms: Estimate
    together_ms: Estimate | None
    slowdown: Estimate | None
    limit: str


def sharing_chart(title: str, rows: Sequence[SharedRow]) -> str:
    """Two bars for each model: alone, and beside the others."""
    bars = []
    for place, row in enumerate(rows, start=1):
        name = f"{place} {row.model}"
        for word, estimate, colour in (("alone", row.alone_ms, _ALONE), ("together", row.together_ms, _TOGETHER)):
            if estimate is not None:
                label = name if word == "alone" else ""
                bars.append(Bar(label, estimate.value, word, estimate.low, estimate.high, colour))
    return bar_chart(bars, title=title, unit="ms", width=_WIDTH)


def sharing_page(title: str, rows: Sequence[SharedRow], sums: Sequence[tuple[str, str]]) -> str:
    """The page as one HTML text; ``sums`` are what they do together, and warnings."""
    columns = (
        Column("model"), Column("alone, ms", "number"), Column("together, ms", "number"),
        Column("slowdown", "number"), Column("limit"),
    )  # fmt: skip
    lines = [
        Line(
            [
                f"{brief(row.model)}<small>{safe(row.setting)}</small>", number(row.alone_ms.value),
                with_range(row.together_ms), with_range(row.slowdown), safe(row.limit),
            ],
            "own" if row.limit.endswith("broken") else "",
        )
        for row in rows
    ]  # fmt: skip
    together = table([Column(""), Column("")], [Line([safe(name), safe(text)]) for name, text in sums])
    chart = sharing_chart("One run of each model, with 90 % intervals", rows)
    return plain_page(title, f'<div class="chart">{chart}</div>', table(columns, lines, cards=True), together)
