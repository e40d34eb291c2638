"""Lab: what ``foretell improve`` predicted, against what was measured.

The plan has the predictions, which were written before anything was measured; the other file has the measurements
(`lab.campaigns.improvements`). A gain is the time before over the time after, for an item.
"""

import json
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from foretell.errors import DataError

BEFORE = "before"
_KINDS = ("precision", "layout", "compiler", "graph", "batch", "together")


@dataclass(frozen=True, slots=True)
class Judged:
    """One change: what it was predicted to gain, and what it gains."""

    spec: str
    family: str
    change: str
    kind: str
    rank: int
    accepted: bool
    predicted: float
    low: float
    high: float
    measured: float
    before_error: float

    @property
    def error(self) -> float:
        """How far the predicted gain is off."""
        return self.predicted / self.measured - 1.0

    @property
    def held(self) -> bool:
        """Whether the interval holds the measured gain."""
        return self.low <= self.measured <= self.high


def read_judged(plan: Path, out: Path) -> list[Judged]:
    """All changes that were measured together with the state before them."""
    rows = json.loads(plan.read_text(encoding="utf-8"))
    lines = [json.loads(line) for line in out.read_text(encoding="utf-8").splitlines()]
    times = {(line["network"], line["change"]): line["latency_ms"] for line in lines if "latency_ms" in line}
    judged = [one for number, row in enumerate(rows) for one in _judged(number, row, times)]
    if not judged:
        raise DataError(f"{out} has no change whose network was measured before it, too.")
    return judged


def _judged(number: int, row: Mapping[str, Any], times: Mapping[tuple[int, str], float]) -> Iterator[Judged]:
    before = times.get((number, BEFORE))
    for change in row["changes"] if before is not None else ():
        after = times.get((number, change["change"]))
        if before is None or after is None:
            continue
        # for an item: a larger batch takes longer
        items = change["batch_size"] / row["batch_size"]
        gain = change["latency_gain"]
        yield Judged(
            row["spec"], row["family"], change["change"], change["kind"], change["rank"], change["accepted"],
            gain["value"] * items, gain["low"] * items, gain["high"] * items, before / after * items,
            row["before_ms"]["value"] / before - 1.0,
        )  # fmt: skip


def table(judged: Sequence[Judged]) -> str:
    """The whole account as Markdown."""
    lines = ["| | changes | faster | mean error of the gain | median | interval held |", "|---|--:|--:|--:|--:|--:|"]

    def row(name: str, wanted: Callable[[Judged], bool]) -> None:
        own = [one for one in judged if wanted(one)]
        if own:
            errors = [abs(one.error) for one in own]
            faster, held = (sum(values) / len(own) for values in ([o.measured > 1 for o in own], [o.held for o in own]))
            lines.append(
                f"| {name} | {len(own)} | {faster:.0%} | {statistics.mean(errors):.1%} | "
                f"{statistics.median(errors):.1%} | {held:.0%} |"
            )

    row("first suggestion", lambda one: one.rank == 1 and one.accepted)
    row("all suggestions", lambda one: one.accepted)
    for kind in _KINDS:
        row(f"{kind}", lambda one, kind=kind: one.kind == kind and one.accepted)  # type: ignore[misc]
    row("rejected", lambda one: not one.accepted)
    lines += ["", "| network | change | predicted | 90 % | measured | error |", "|---|---|--:|--:|--:|--:|"]
    for one in sorted(judged, key=lambda one: -abs(one.error)):
        mark = "" if one.accepted else " (rejected)"
        lines.append(
            f"| `{one.spec[:48]}` | {one.change}{mark} | {one.predicted:.2f} | {one.low:.2f} – {one.high:.2f} | "
            f"{one.measured:.2f} | {one.error:+.0%} |"
        )
    return "\n".join(lines) + "\n"
