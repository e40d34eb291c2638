"""Lab: what a pre-trained encoder is worth, by the share of the labels: errors over seeds, and differences in pairs."""

import math
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

# of Student's distribution, two-sided, for 95 %, by degrees of freedom
_T_95 = (math.inf, 12.71, 4.30, 3.18, 2.78, 2.57, 2.45, 2.36, 2.31, 2.26)
PAIRS = (("pre-trained", "none"), ("pre-trained", "random"), ("tuned", "none"))


@dataclass(frozen=True)
class Judged:
    """The mean error of an arm (0.1 is 10 %): its name, its share of the labels in %, its split and its seed."""

    arm: str
    share: float
    split: str
    seed: int
    error: float


def interval(values: Sequence[float]) -> float:
    """Half the width of the 95 % interval of a mean, by Student's distribution.

    >>> round(interval([1.0, 2.0, 3.0]), 2)
    2.48
    """
    if len(values) < 2:
        return math.inf
    return _T_95[min(len(values), len(_T_95)) - 1] * float(np.std(values, ddof=1)) / math.sqrt(len(values))


def by_share(judged: Iterable[Judged], split: str) -> str:
    """Arms by share of the labels, as Markdown: the mean over seeds, its 95 % interval, and the number of seeds."""
    cells: defaultdict[str, dict[float, list[float]]] = defaultdict(dict)
    for one in judged:
        if one.split == split:
            cells[one.arm].setdefault(one.share, []).append(100 * one.error)
    return _table("arm", cells)


def differences(judged: Iterable[Judged], split: str) -> str:
    """Differences of two arms that have the same share, split, seed and width; negative where the first is better."""
    known = {(one.arm, one.share, one.seed): one.error for one in judged if one.split == split}
    cells: defaultdict[str, dict[float, list[float]]] = defaultdict(dict)
    for (arm, share, seed), error in known.items():
        for first, second in PAIRS:
            name, _, width = arm.partition(" ")
            other = f"{second} {width}".strip()
            if name == first and (not width or width.endswith("wide")) and (other, share, seed) in known:
                row = f"{arm} − {other}"
                cells[row].setdefault(share, []).append(100 * (error - known[other, share, seed]))
    return _table("difference in points", cells)


def _table(head: str, cells: "dict[str, dict[float, list[float]]]") -> str:
    shares = sorted({share for row in cells.values() for share in row})
    lines = [
        "| " + " | ".join([head, *(f"{share:g} % of the labels" for share in shares)]) + " |",
        "|---|" + "---:|" * len(shares),
    ]
    for name, row in sorted(cells.items()):
        lines.append("| " + " | ".join([name, *(_cell(row.get(share, [])) for share in shares)]) + " |")
    return "\n".join(lines)


def _cell(values: Sequence[float]) -> str:
    if not values:
        return "–"
    mean = f"{np.mean(values):.1f}"
    return f"{mean} (one seed)" if len(values) == 1 else f"{mean} ± {interval(values):.1f} ({len(values)})"
