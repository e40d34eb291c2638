"""Rendering: the building blocks of a report: numbers with intervals, tables, bars, notes."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from foretell.records import Estimate
from foretell.rendering.svg.canvas import safe
from foretell.units import bytes_from_mib, size

ABSENT = "–"
_MAX_CHARACTERS = 120
Kind = Literal["text", "number", "share"]


@dataclass(frozen=True, slots=True)
class Column:
    """A column of a table; ``minor`` columns are hidden on a phone."""

    head: str
    kind: Kind = "text"
    minor: bool = False


@dataclass(frozen=True, slots=True)
class Line:
    """A row of a table. Cells are HTML; ``own`` highlights the row, ``off`` greys it out."""

    cells: Sequence[str]
    tone: Literal["", "own", "off"] = ""


def table(columns: Sequence[Column], lines: Iterable[Line], *, cards: bool = False) -> str:
    """A table; with ``cards`` each row becomes a small card on a phone, with the heads inside."""
    heads = "".join(f'<th scope="col"{_class(column)}>{safe(column.head)}</th>' for column in columns)
    body = "".join(_line(columns, line, named=cards) for line in lines)
    kind = "cards" if cards else "scroll"
    return f'<div class="{kind}"><table><thead><tr>{heads}</tr></thead><tbody>{body}</tbody></table></div>'


def _line(columns: Sequence[Column], line: Line, *, named: bool) -> str:
    tone = f' class="{line.tone}"' if line.tone else ""
    cells = []
    for column, cell in zip(columns, line.cells, strict=True):
        head = f' data-head="{safe(column.head)}"' if named and column.head else ""
        cells.append(f"<td{_class(column)}{head}>{cell}</td>")
    return f"<tr{tone}>{''.join(cells)}</tr>"


def _class(column: Column) -> str:
    names = [{"text": "", "number": "n", "share": "share"}[column.kind], "hide" if column.minor else ""]
    classes = " ".join(name for name in names if name)
    return f' class="{classes}"' if classes else ""


def brief(text: str) -> str:
    """A name from inside a model, escaped and shortened.

    >>> brief("a<b"), len(brief("x" * 500))
    ('a&lt;b', 120)
    """
    return safe(text if len(text) <= _MAX_CHARACTERS else f"{text[: _MAX_CHARACTERS - 1]}…")


def share_bar(share: float) -> str:
    """A bar whose length is a share of its cell.

    >>> share_bar(0.25)
    '<i style="width:25.0%"></i>'
    """
    return f'<i style="width:{100 * min(max(share, 0.0), 1.0):.1f}%"></i>'


def number(quantity: float) -> str:
    """Three digits with trailing zeros, so that columns align; thousands are separated.

    >>> number(0.0952), number(3.3), number(11.0), number(1234567.0), number(0.0)
    ('0.0952', '3.30', '11.0', '1,234,567', '0')
    """
    if not quantity:
        return "0"
    return f"{quantity:#.3g}" if abs(quantity) < 1 else f"{quantity:,.{_places(quantity)}f}"


def _places(quantity: float) -> int:
    """How many decimals give three digits, for numbers from 1 on."""
    return 2 if abs(quantity) < 10 else 1 if abs(quantity) < 100 else 0


def value(estimate: Estimate | None, parts: float = 1.0) -> str:
    """A value divided by ``parts``; a dash if it is not known."""
    return ABSENT if estimate is None else number(estimate.value / parts)


def with_range(estimate: Estimate | None) -> str:
    """A value with its interval below it."""
    return ABSENT if estimate is None else f"{number(estimate.value)}<small>{span(estimate)}</small>"


def span(estimate: Estimate) -> str:
    """The interval, with as many decimals as the value has.

    >>> span(Estimate(1.637, 1.4981, 1.79)), span(Estimate(1061.3, 968.4, 1121.0)), span(Estimate(0.0012, 0.0004, 0.01))
    ('1.50 – 1.79', '968 – 1,121', '0.00040 – 0.01000')
    """
    shown = number(estimate.value)
    if "e" in shown:
        return f"{number(estimate.low)} – {number(estimate.high)}"
    places = len(shown.partition(".")[2])
    return f"{estimate.low:,.{places}f} – {estimate.high:,.{places}f}"


def mib_text(mib: float) -> str:
    """A size in MiB with a suitable unit.

    >>> mib_text(97.7), mib_text(143155.2)
    ('97.7 MiB', '140 GiB')
    """
    return size(bytes_from_mib(mib))


def figure(label: str, estimate: Estimate, unit: str, note: str = "") -> str:
    """A large number with its interval, as text and as a bar on a track from 0 to twice the value."""
    # The value is in the middle of the track, at 50 %.
    scale = 50 / estimate.value if estimate.value else 0.0
    low, high = max(0.0, estimate.low * scale), min(100.0, estimate.high * scale)
    note_html = f'<br><span class="label">{safe(note)}</span>' if note else ""
    return (
        f'<div class="figure"><span class="label">{safe(label)}</span><b>{number(estimate.value)} '
        f"<small>{safe(unit)}</small></b>"
        f'<span class="track"><i style="left:{low:.1f}%;width:{high - low:.1f}%"></i><u style="left:50%"></u></span>'
        f'<span class="range">{span(estimate)}</span>{note_html}</div>'
    )


def section(name: str, title: str, lead: str, *content: str) -> str:
    """A section of the page; the header links to it by ``name``."""
    lead_html = f'<p class="lead">{safe(lead)}</p>' if lead else ""
    return f'<section id="{name}"><h2>{safe(title)}</h2>{lead_html}{"".join(content)}</section>'


def note(text: str, *, alarm: bool = False) -> str:
    """A remark, or the reason why something is missing."""
    return f'<p class="note{" alarm" if alarm else ""}">{safe(text)}</p>'


def folded(title: str, content: str) -> str:
    """Content that is folded up on the screen; the printed page shows it."""
    return f"<details><summary>{safe(title)}</summary>{content}</details>"


def tag(text: str) -> str:
    """A word with a small frame around it."""
    return f'<span class="tag">{safe(text)}</span>'


def entries(rows: Iterable[tuple[str, str]]) -> str:
    """A list of names and their content, which is HTML."""
    return "<dl>" + "".join(f"<dt>{safe(name)}</dt><dd>{content}</dd>" for name, content in rows) + "</dl>"
