"""Rendering: numbers as text. This module imports nothing heavy, so every command can use it."""

from foretell.records import Estimate

ABSENT = "–"


def number(value: float) -> str:
    """Three significant digits, thousands separated.

    >>> number(0.012345), number(2.814), number(1234567.0)
    ('0.0123', '2.81', '1,234,567')
    """
    if value and abs(value) < 1:
        return f"{value:.3g}"
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"


def cell(estimate: Estimate | None, parts: int = 1) -> str:
    """A value for a table, divided by ``parts``; a dash if it is not known."""
    return ABSENT if estimate is None else number(estimate.value / parts)
