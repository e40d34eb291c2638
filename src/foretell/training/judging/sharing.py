"""Training: judging: the tables of sharing: pairs and trios, some or all members unseen, and where the errors are."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from foretell.files import write_whole
from foretell.predictors.boosting import TreeFit, trees_of
from foretell.predictors.sharing.features import COLUMNS
from foretell.training.judging.table import Cell, Comparison, page

SHARING = "sharing"
# a limit is a multiple of the latency alone: from hardly any room to plenty
LIMITS = (1.1, 1.25, 1.5, 2.0, 2.5, 3.0, 4.0)
_SEEN_ALONE = tuple(place for place, name in enumerate(COLUMNS) if "simulated" not in name and "pair" not in name)
_TREES = TreeFit(rounds=300, leaves=7, learning_rate=0.05, least_in_leaf=8, objective="regression_l1")
_RIDGE = 1.0
_SIZES = (1.0, 1.1, 1.3, 1.7, 2.5, 4.0)
_WORST = 20

Values = NDArray[np.float64]


@dataclass(frozen=True)
class Judged:
    """A member of a group: how many members were in the fold that was held out, and its log slowdown."""

    row: Mapping[str, Any]
    members: int
    fold: int
    unseen: int
    truth: float
    predicted: float
    others: Mapping[str, float]
    beside: tuple[str, ...]

    @property
    def error(self) -> float:
        """As a share of the truth."""
        return abs(float(np.expm1(self.predicted - self.truth)))

    def error_of(self, name: str) -> float:
        """The error of the model itself, or of a baseline."""
        return self.error if name == SHARING else abs(float(np.expm1(self.others[name] - self.truth)))

    def limits_right(self, name: str) -> float:
        """How often it says rightly whether a limit is kept."""
        limits = np.log(LIMITS)
        predicted = self.predicted if name == SHARING else self.others[name]
        return float(np.mean((predicted <= limits) == (self.truth <= limits)))


def baselines(rows: NDArray[np.float32], training: NDArray[np.intp], logs: Values) -> dict[str, Values]:
    """Log slowdowns of all rows by simpler models that are fitted to ``training``."""
    seen = rows[:, list(_SEEN_ALONE)].astype(np.float64)
    members = seen[:, _SEEN_ALONE.index(COLUMNS.index("members"))]
    constant = np.zeros(len(rows))
    for count in np.unique(members):
        own = logs[members[training] == count]
        constant[members == count] = np.median(own) if len(own) else np.median(logs)
    middle, spread = seen[training].mean(0), seen[training].std(0) + 1e-9
    scaled = np.concatenate([np.ones((len(seen), 1)), (seen - middle) / spread], axis=1)
    known = scaled[training]
    weights = np.linalg.solve(known.T @ known + _RIDGE * np.eye(known.shape[1]), known.T @ logs)
    trees = trees_of(_TREES.fit(seen[training].astype(np.float32), logs))
    return {
        "trees without simulation": np.maximum(trees.predict(seen.astype(np.float32)), 0.0),
        "linear regression": np.maximum(scaled @ weights, 0.0),
        "constant": constant,
    }


def tables_of(judged: Sequence[Judged], source: str) -> list[Comparison]:
    """All tables."""
    tables = []
    for method in sorted({one.row["method"] for one in judged}):
        own = [one for one in judged if one.row["method"] == method]
        rows = {name: _figures(own, name) for name in (SHARING, *own[0].others)}
        title = f"{method}: slowdown of {len(own)} jobs in groups; times of units {source}"
        tables.append(Comparison(title, rows, shares=frozenset(next(iter(rows.values())))))
    # time-slicing is one number, whatever runs: there is nothing to look into
    for method in sorted({one.row["method"] for one in judged} - {"time-slicing"}):
        own = [one for one in judged if one.row["method"] == method]
        tables += [_parts(own, f"{method}, by {name}", name, key) for name, key in _BY.items()]
        tables.append(_worst_families(own, method))
        tables.append(_worst(own, method))
    return tables


def _figures(judged: Sequence[Judged], name: str) -> dict[str, Cell]:
    cells: dict[str, Cell] = {}
    for members, word in ((2, "pairs"), (3, "trios")):
        for word_unseen, is_all in (("some unseen", False), ("all unseen", True)):
            found = [one for one in judged if one.members == members and (one.unseen == members) == is_all]
            if found:
                cells[f"{word}, {word_unseen}"] = float(np.mean([one.error_of(name) for one in found]))
    cells["all"] = float(np.mean([one.error_of(name) for one in judged]))
    cells["limits right"] = float(np.mean([one.limits_right(name) for one in judged]))
    return cells


def _size(one: Judged) -> str:
    truth, edges = float(np.exp(one.truth)), [*_SIZES, np.inf]
    low = max((edge for edge in _SIZES if edge <= max(truth, 1.0)), default=1.0)
    return f"{low:g} to {edges[edges.index(low) + 1]:g}"


_BY: Mapping[str, Callable[[Judged], str]] = {
    "measured slowdown": _size,
    "dtype": lambda one: str(one.row["dtype"]),
    "mode": lambda one: str(one.row["mode"]),
    "limit of SMs": lambda one: "limited" if (one.row.get("percentage") or 100) < 100 else "none",
}


def _worst_families(judged: Sequence[Judged], method: str) -> Comparison:
    table = _parts(judged, f"{method}, the {_WORST} worst families", "family", lambda one: str(one.row["family"]))
    worst = sorted(table.rows.items(), key=lambda row: -float(row[1]["mape"] or 0.0))  # type: ignore[arg-type]
    return replace(table, rows=dict(worst[:_WORST]))


def _parts(judged: Sequence[Judged], title: str, head: str, key: Callable[[Judged], str]) -> Comparison:
    rows: dict[str, dict[str, Cell]] = {}
    for name in sorted({key(one) for one in judged}):
        found = [one for one in judged if key(one) == name]
        signed = [float(np.expm1(one.predicted - one.truth)) for one in found]
        rows[name] = {
            "count": len(found),
            "mape": float(np.mean(np.abs(signed))),
            "bias": float(np.mean(signed)),
            "limits right": float(np.mean([one.limits_right(SHARING) for one in found])),
        }
    return Comparison(title, rows, ranked=False, shares=frozenset(("mape", "bias", "limits right")), head=head)


def _worst(judged: Sequence[Judged], method: str) -> Comparison:
    rows: dict[str, dict[str, Cell]] = {}
    # a job is judged once for each fold that its group has members in: the worst counts
    by_job = {
        (one.row["campaign_id"], one.row["group_id"], one.row["member"]): one for one in sorted(judged, key=_error)
    }
    for one in sorted(by_job.values(), key=_error, reverse=True)[:_WORST]:
        beside = ", ".join(map(_short, one.beside))
        name = f"{len(rows) + 1}. {_short(one.row['spec'])} ({one.row['mode']}) beside {beside}"
        rows[name] = {
            "alone ms": float(one.row["solo_ms"]),
            "measured": float(np.exp(one.truth)),
            "predicted": float(np.exp(one.predicted)),
        }
    return Comparison(f"{method}, the worst twenty", rows, ranked=False, shares=frozenset(), head="job")


def _error(one: Judged) -> float:
    return one.error


def _short(spec: str) -> str:
    return spec if len(spec) <= 40 else f"{spec[:39]}…"


def write_page(
    tables: Sequence[Comparison],
    folder: Path,
    name: str = "sharing.md",
    title: str = "Models that share a GPU",
    command: str = "foretell evaluate sharing --report",
) -> Path:
    """Write the tables as Markdown."""
    text = (
        f"# {title}\n\n"
        "Mean error of the slowdown. A group is held out as soon as one of its architectures is: *some unseen*, or "
        f"*all unseen*; five folds. Remade by `{command}`.\n\n"
        "`limits right`: how often it says rightly whether a job keeps a limit of "
        f"{', '.join(f'{one:g}' for one in LIMITS)} times its latency alone."
    )
    write_whole(folder / name, page(text, tables))
    return folder / name
