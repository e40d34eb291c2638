"""Training: comparisons: predictors are rows and metrics are columns; as Markdown and as JSON."""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from foretell.errors import DataError
from foretell.training.judging.metrics import MeanSpread

Cell = float | MeanSpread | None
PERCENT = frozenset(
    ("mape", "median_ape", "p95_ape", "within_10_percent", "coverage", "median_relative_width", "warned", "accuracy",
     "precision", "recall", "fused")
)  # fmt: skip
LARGER_IS_BETTER = frozenset({"within_10_percent", "kendall_tau", "accuracy", "precision", "recall", "limits right"})
UNRANKED = frozenset({"count", "coverage", "warned", "edges", "fused"})  # more of these is not better by itself
_ABSENT = "–"
_COUNTS = ("count", "edges")


@dataclass(frozen=True)
class Comparison:
    """Metrics of predictors on one set; a metric that a predictor does not have is None or left out.

    Where rows are parts of a set instead of predictors, they are not ``ranked``. ``shares`` are the metrics shown in
    per cent.
    """

    title: str
    rows: Mapping[str, Mapping[str, Cell]]
    ranked: bool = True
    shares: frozenset[str] = PERCENT
    head: str = "predictor"

    @property
    def metrics(self) -> tuple[str, ...]:
        """The columns, in the order in which the rows name them first."""
        return tuple(dict.fromkeys(name for row in self.rows.values() for name in row))

    def best(self, metric: str) -> tuple[str, ...]:
        """The best predictors in a metric; none where the metric does not rank."""
        means = {name: _mean(row.get(metric)) for name, row in self.rows.items()}
        known = {name: mean for name, mean in means.items() if mean is not None}
        # one predictor alone is not the best of anything
        if not self.ranked or metric in UNRANKED or len(known) < 2:
            return ()
        best_mean = max(known.values()) if metric in LARGER_IS_BETTER else min(known.values())
        return tuple(name for name, mean in known.items() if mean == best_mean)

    def to_markdown(self) -> str:
        """A table whose best value a column is bold; shares are shown in per cent.

        >>> print(Comparison("Latency", {"roofline": {"mape": 0.25}, "trees": {"mape": 0.04}}).to_markdown())
        ### Latency
        <BLANKLINE>
        | predictor | mape % |
        |---|---:|
        | roofline | 25 |
        | trees | **4** |
        """
        self._check()
        heads = [f"{metric} %" if metric in self.shares else metric for metric in self.metrics]
        best = {metric: self.best(metric) for metric in self.metrics}
        lines = [f"### {self.title}", "", f"| {' | '.join([self.head, *heads])} |", "|---|" + "---:|" * len(heads)]
        for name, row in self.rows.items():
            cells = [_text(metric, row.get(metric), in_percent=metric in self.shares) for metric in self.metrics]
            marked = [f"**{cell}**" if name in best[metric] else cell for metric, cell in zip(self.metrics, cells)]
            lines.append(f"| {' | '.join([name.replace('|', chr(92) + '|'), *marked])} |")
        return "\n".join(lines)

    def to_json(self) -> str:
        """The same with all digits; shares stay shares, a spread over seeds is an object.

        >>> Comparison("Latency", {"trees": {"mape": 0.04}}).to_json()
        '{"title": "Latency", "rows": {"trees": {"mape": 0.04}}}'
        """
        self._check()
        rows = {name: {metric: _plain(row.get(metric)) for metric in self.metrics} for name, row in self.rows.items()}
        return json.dumps({"title": self.title, "rows": rows}, ensure_ascii=False, allow_nan=False)

    def _check(self) -> None:
        if not self.metrics:
            raise DataError(f"The comparison {self.title!r} has {len(self.rows)} predictors and no metric; add one.")
        for name, row in self.rows.items():
            for metric, cell in row.items():
                mean = _mean(cell)
                if mean is not None and not abs(mean) < float("inf"):
                    raise DataError(
                        f"{metric} of {name!r} is {mean}; give a finite number, or None where it is unknown."
                    )


def _mean(cell: Cell) -> float | None:
    return cell.mean if isinstance(cell, MeanSpread) else cell


def _text(metric: str, cell: Cell, *, in_percent: bool) -> str:
    mean, scale = _mean(cell), 100 if in_percent else 1
    if mean is None:
        return _ABSENT
    if isinstance(cell, MeanSpread) and cell.seeds > 1:
        return f"{mean * scale:.3g} ± {cell.spread * scale:.2g}"
    return f"{mean:,}" if metric in _COUNTS else f"{mean * scale:.3g}"


def _plain(cell: Cell) -> float | dict[str, float] | None:
    if isinstance(cell, MeanSpread):
        return {"mean": cell.mean, "spread": cell.spread, "seeds": cell.seeds}
    return cell


def page(head: str, tables: Iterable[Comparison]) -> bytes:
    """Tables below some text, as a Markdown file."""
    return "\n\n".join([head, *(table.to_markdown() for table in tables)]).encode() + b"\n"
