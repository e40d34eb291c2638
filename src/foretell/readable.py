"""Records that people read: a few lines in a shell, a table in a notebook, a data frame where pandas is installed."""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Protocol

from foretell.optional import require


class Interval(Protocol):
    """A value between two ends."""

    @property
    def value(self) -> float:
        """The value."""
        ...

    @property
    def low(self) -> float:
        """The lower end."""
        ...

    @property
    def high(self) -> float:
        """The upper end."""
        ...


class Readable(ABC):
    """How a record shows itself. A subclass gives its heading, its lines and its rows."""

    __slots__ = ()  # a base class without it would give records with slots a __dict__ again

    @abstractmethod
    def heading(self) -> str:
        """One line that names the record."""

    @abstractmethod
    def lines(self) -> Iterable[tuple[str, str]]:
        """The names of quantities and their values, the most important first."""

    @abstractmethod
    def rows(self) -> Sequence[dict[str, Any]]:
        """The record as rows of a table: one unless it is made of several."""

    def __repr__(self) -> str:
        lines = list(self.lines())
        width = max((len(name) for name, _ in lines), default=0)
        return "\n".join([self.heading(), *(f"  {name:<{width}}  {value}" for name, value in lines)])

    def _repr_html_(self) -> str:
        """A table for notebooks; names inside a model may hold anything, so all text is escaped."""
        import html  # a notebook has it already; a command starts without it

        cells = "".join(
            f"<tr><th style='text-align:left'>{html.escape(name)}</th>"
            f"<td style='text-align:left'>{html.escape(value)}</td></tr>"
            for name, value in self.lines()
        )
        return f"<div><b>{html.escape(self.heading())}</b><table>{cells}</table></div>"

    def to_frame(self) -> Any:
        """The rows as a pandas data frame."""
        pandas = require("pandas", extra="pandas", purpose="A data frame")
        return pandas.DataFrame(list(self.rows()))


def flat_row(record: Mapping[str, Any], leave_out: str = "") -> dict[str, Any]:
    """A record as a row of a table: a quantity with an interval becomes its value.

    >>> flat_row({"device": "l4", "ms": {"value": 2.0, "low": 1.0, "high": 3.0}, "notes": {}}, leave_out="notes")
    {'device': 'l4', 'ms': 2.0}
    """
    return {
        name: value["value"] if isinstance(value, dict) and "value" in value else value
        for name, value in record.items()
        if name != leave_out
    }


def spell(estimate: Interval) -> str:
    """An estimate with its interval, to three digits.

    >>> from foretell.records import Estimate
    >>> spell(Estimate(1234.5, 1000, 1500)), spell(Estimate(0.5, 0.5, 0.5))
    ('1,234 (1,000 – 1,500)', '0.5')
    """
    value, low, high = (_digits(number) for number in (estimate.value, estimate.low, estimate.high))
    return value if low == high else f"{value} ({low} – {high})"


def _digits(number: float) -> str:
    return f"{number:,.0f}" if abs(number) >= 1000 else f"{number:.3g}"
