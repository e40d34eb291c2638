"""Lab: tables of fitted arms: ``python -m lab.papers.dippm.report SET ARMS`` writes reports/dippm.md, or trappm.md."""

import argparse
import json
import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from foretell.files import write_whole
from lab.papers.dippm.mig import dippm_mig
from lab.papers.dippm.sets import FAMILIES, THESIS_FAMILIES, Labelled, family_of, read_set
from lab.papers.trappm.shares import Judged, by_share, differences

METRICS = {
    "latency_ms": "latency", "energy_j": "energy", "device_memory_mib": "device memory", "memory_mib": "memory",
    "power_w": "power",
}  # fmt: skip
JOINT = ("latency_ms", "energy_j")
TITLES = {
    "dippm": "DIPPM, fitted until it converges", "trappm": "TraPPM's pre-training",
}  # fmt: skip
CONVERGED = 0.02  # the last tenth of the epochs improves the validation error by less
_DECILES = 10


@dataclass(frozen=True)
class Fitted:
    """A finished arm: what it says of itself, and its errors on the test side, by metric."""

    facts: Mapping[str, Any]
    truth: Mapping[str, NDArray[np.float64]]
    predicted: Mapping[str, NDArray[np.float64]]
    families: Sequence[str] = ()

    @property
    def group(self) -> tuple[str, str, str]:
        """Arms that differ in their seed alone are of one group."""
        return self.facts["subset"], self.facts["split"], self.facts["arm"]

    def errors(self, metric: str) -> NDArray[np.float64]:
        """The relative errors on workloads for which the metric was measured."""
        if metric not in self.predicted:
            return np.array([])
        truth = self.truth[metric]
        known = np.isfinite(truth)
        return np.abs(self.predicted[metric][known] / truth[known] - 1)


def has_converged(arm: Fitted) -> bool:
    """Whether it came to its last epoch, and the last tenth of them gained little.

    A cosine that ends with the time gains little at its end, too, however few the epochs were.
    """
    facts = arm.facts
    return bool(facts["epochs"] >= facts["planned_epochs"] and facts["improvement_of_last_tenth"] < CONVERGED)


def spread(arm: Fitted, metric: str, power: int) -> float | None:
    """The mean absolute error (1) or the root of the mean square (2) in the unit of a metric."""
    if metric not in arm.predicted:
        return None
    off = arm.predicted[metric] - arm.truth[metric]
    return float(np.nanmean(np.abs(off) ** power) ** (1 / power))


def memory_metric(arm: Fitted) -> str:
    """Device memory, as in the paper; peak memory where more workloads have that."""
    return max(("device_memory_mib", "memory_mib"), key=lambda metric: len(arm.errors(metric)))


def joint(arm: Fitted) -> float:
    """The paper's error: one mean over latency, energy and memory together."""
    return float(np.mean(np.concatenate([arm.errors(metric) for metric in (*JOINT, memory_metric(arm))])))


def of_families(arm: Fitted) -> Fitted:
    """The workloads of the paper's families alone."""
    kept = np.array([family != "others" for family in arm.families], bool)
    truth, predicted = ({name: values[kept] for name, values in side.items()} for side in (arm.truth, arm.predicted))
    return Fitted(arm.facts, truth, predicted, [family for family in arm.families if family != "others"])


def by_family(arms: Sequence[Fitted]) -> dict[str, tuple[int, float, float]]:
    """By family how many workloads of a group's test sides there are, and the mean errors of latency and memory."""
    found: defaultdict[str, list[tuple[float, float]]] = defaultdict(list)
    for arm in arms:
        latency = np.abs(arm.predicted["latency_ms"] / arm.truth["latency_ms"] - 1)
        memory = np.full(len(latency), np.nan)
        metric = memory_metric(arm)
        if metric in arm.predicted:
            memory = np.abs(arm.predicted[metric] / arm.truth[metric] - 1)
        for family, *errors in zip(arm.families, latency.tolist(), memory.tolist(), strict=True):
            found[family].append((errors[0], errors[1]))
    return {
        family: (len(errors), *np.nanmean(np.array(errors), axis=0).tolist())
        for family, errors in sorted(found.items(), key=lambda item: -len(item[1]))
        if np.isfinite(np.array(errors)).any(axis=0).all()
    }


def read_arms(file: Path, rows: Sequence[Labelled]) -> list[Fitted]:
    """The arms in a file of `lab.papers.dippm.fits`."""
    truths = {row.workload_id: row.truth for row in rows}
    tables = {"training": THESIS_FAMILIES}
    families = {row.workload_id: family_of(row.spec, tables.get(row.mode, FAMILIES)) or "others" for row in rows}
    with np.load(file, allow_pickle=False) as stored:
        arms: defaultdict[str, dict[str, NDArray[Any]]] = defaultdict(dict)
        for name in stored.files:
            key, _, column = name.rpartition("/")
            arms[key][column] = stored[name]
    fitted = []
    for columns in arms.values():
        ids = columns.pop("ids").tolist()
        facts = json.loads(str(columns.pop("facts")))
        truth = {metric: np.array([truths[key][metric] for key in ids]) for metric in columns}
        predicted = {name: values.astype(np.float64) for name, values in columns.items()}
        fitted.append(Fitted(facts, truth, predicted, [families[key] for key in ids]))
    return fitted


def render(arms: Sequence[Fitted], title: str = TITLES["dippm"], name: str = "dippm") -> str:
    """All tables, as Markdown."""
    groups: defaultdict[tuple[str, str, str], list[Fitted]] = defaultdict(list)
    for arm in arms:
        groups[arm.group].append(arm)
    widths = sorted({arm.facts["recipe"]["width"] for arm in arms})
    parts = [f"# {title}", f"Remade by `python -m lab remake {name}`. Errors in % on the test side; layers "
             f"{' and '.join(map(str, widths))} wide (the papers have 512)."]  # fmt: skip
    for place in sorted({group[:2] for group in groups}, key=_in_order):
        own = {group[2]: found for group, found in groups.items() if group[:2] == place}
        parts += [f"### {place[0]}, split by {place[1]}", _errors_table(own)]
        if place[0] != "families":
            families = {name: [of_families(arm) for arm in found] for name, found in own.items()}
            number = len(THESIS_FAMILIES if place[0].startswith("training") else FAMILIES)
            parts += [f"### {place[0]}, split by {place[1]}: the {number} families alone", _errors_table(families)]
    if any(group[2].startswith("dippm") for group in groups):
        parts += ["### MIG profiles of a 40 GB A100 by eq. 2, from predicted memory", _mig_table(groups)]
    parts += [
        *_share_tables(arms),
        *_family_tables(groups),
        "### Curves: validation error of latency in %, by tenths of the epochs",
        _curves(groups),
    ]
    return "\n\n".join(parts) + "\n"


def _errors_table(groups: Mapping[str, Sequence[Fitted]]) -> str:
    head = ["arm", "seeds", *(f"{name} %" for name in METRICS.values()), "joint %", "median latency %",
            "MAE ms", "RMSE ms", "epochs",
            "steps", "last tenth %", "converged"]  # fmt: skip
    rows = []
    for name, arms in sorted(groups.items(), key=lambda item: _mean(item[1], "latency_ms")):
        last = [arm.facts["improvement_of_last_tenth"] for arm in arms]
        errors = [[100 * e.mean() for arm in arms if len(e := arm.errors(metric))] for metric in METRICS]
        rows.append([
            name, str(len(arms)), *map(_spread, errors),
            _spread([100 * joint(arm) for arm in arms]),
            _spread([100 * np.median(arm.errors("latency_ms")) for arm in arms]),
            *(_spread([value for arm in arms if (value := spread(arm, "latency_ms", power)) is not None])
              for power in (1, 2)),
            _range([arm.facts["epochs"] for arm in arms]), _range([arm.facts["steps"] for arm in arms]),
            _spread([100 * value for value in last]),
            f"{sum(map(has_converged, arms))} of {len(arms)}",
        ])  # fmt: skip
    return _markdown(head, rows)


def _share_tables(arms: Sequence[Fitted]) -> list[str]:
    """Training steps of the thesis' families by the share of their labels: arms, and what an encoder is worth."""
    found = [(of_families(arm), match) for arm in arms if (match := _SHARE.search(arm.facts["subset"]))]
    parts = []
    for metric in ("latency_ms", memory_metric(found[0][0]), "power_w") if found else ():
        judged = [
            Judged(arm.facts["arm"], float(match[1]), arm.facts["split"], arm.facts["seed"], float(errors.mean()))
            for arm, match in found
            if len(errors := arm.errors(metric))
        ]
        for split in sorted({one.split for one in judged}):
            title = f"### {METRICS[metric].capitalize()} % of the families by share of the labels, split by {split}"
            parts += [title, by_share(judged, split), differences(judged, split)]
    said = (
        "By share of the labels: means over seeds ± half of their 95 % interval (Student's), and how many seeds there "
        "are; differences are of pairs with the same seed."
    )
    return [said, *parts] if parts else []


_SHARE = re.compile(r"([\d.]+) % of the labels")
_BY_FAMILY = ("dippm", "dippm by bound", "none")  # the arms whose errors are shown by family


def _family_tables(groups: Mapping[tuple[str, str, str], Sequence[Fitted]]) -> list[str]:
    parts = []
    for (subset, split, name), arms in sorted(groups.items(), key=lambda item: _in_order(item[0])):
        if name in _BY_FAMILY and arms[0].families:
            rows = [[family, str(count), f"{100 * latency:.1f}", f"{100 * memory:.1f}"]
                    for family, (count, latency, memory) in by_family(arms).items()]  # fmt: skip
            head = ["family", "workloads", "latency %", f"{METRICS[memory_metric(arms[0])]} %"]
            parts += [f"### By family: {name}, {subset}, split by {split}", _markdown(head, rows)]
    return parts


def _mig_table(groups: Mapping[tuple[str, str, str], Sequence[Fitted]]) -> str:
    rows = []
    for (subset, split, name), arms in sorted(groups.items(), key=lambda item: _in_order(item[0])):
        metric = memory_metric(arms[0])
        if metric not in arms[0].predicted or arms[0].facts["recipe"].get("published"):
            continue
        truth, predicted = (
            np.concatenate([getattr(arm, side)[metric] for arm in arms]) for side in ("truth", "predicted")
        )
        known = np.isfinite(truth)
        truth, predicted = truth[known], predicted[known]
        scores = mig_scores(truth, predicted)
        smallest = mig_scores(truth, np.ones_like(truth))["right"]
        rows.append([f"{name}, {subset}, {split}", METRICS[metric], str(len(truth)),
                     *(f"{100 * scores[key]:.1f}" for key in ("right", "too small", "too large")),
                     f"{100 * smallest:.1f}"])  # fmt: skip
    head = ["arm", "from", "workloads", "right %", "too small %", "too large %", "always the smallest: right %"]
    return _markdown(head, rows)


def mig_scores(truth: NDArray[np.float64], predicted: NDArray[np.float64]) -> dict[str, float]:
    """How often the profile of the predicted memory is that of the measured one, a smaller or a larger one.

    >>> mig_scores(np.array([3e3, 6e3, 3e3, 3e3]), np.array([4e3, 4e3, 6e3, 3e3]))
    {'right': 0.5, 'too small': 0.25, 'too large': 0.25}
    """
    is_right = np.array([dippm_mig(float(a)) == dippm_mig(float(b)) for a, b in zip(truth, predicted)], bool)
    return {
        "right": float(is_right.mean()), "too small": float((~is_right & (predicted < truth)).mean()),
        "too large": float((~is_right & (predicted >= truth)).mean()),
    }  # fmt: skip


def _curves(groups: Mapping[tuple[str, str, str], Sequence[Fitted]]) -> str:
    rows = []
    for (subset, split, name), arms in sorted(groups.items(), key=lambda item: _in_order(item[0])):
        curve = arms[0].facts["curve"]
        places = np.linspace(0, len(curve) - 1, _DECILES + 1).round().astype(int)
        best = np.minimum.accumulate([point["score"] for point in curve])
        rows.append([f"{name}, {subset}, {split}", *(f"{100 * best[i]:.3g}" for i in places)])
    return _markdown(["arm, seed 0", *(f"{10 * i} %" for i in range(_DECILES + 1))], rows)


def _in_order(names: Sequence[str]) -> list[list[str | int]]:
    """By text, and by number where there is one: 25 % stands before 100 %.

    >>> sorted([("100 %",), ("25 %",), ("all",)], key=_in_order)
    [('25 %',), ('100 %',), ('all',)]
    """
    return [[int(part) if part.isdigit() else part for part in re.split(r"(\d+)", name)] for name in names]


def _mean(arms: Sequence[Fitted], metric: str) -> float:
    return float(np.mean([arm.errors(metric).mean() for arm in arms]))


def _spread(values: Sequence[float]) -> str:
    if not values:
        return "–"
    return f"{np.mean(values):.3g}" + (f" ± {np.std(values, ddof=1):.2g}" if len(values) > 1 else "")


def _range(values: Sequence[int]) -> str:
    return f"{min(values):,}" if min(values) == max(values) else f"{min(values):,} – {max(values):,}"


def _markdown(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" + "---:|" * (len(head) - 1)]
    return "\n".join([*lines, *("| " + " | ".join(row) + " |" for row in rows)])


def main() -> None:
    """Write the report."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("set", type=Path)
    parser.add_argument("arms", type=Path)
    parser.add_argument("--name", choices=TITLES, default="dippm")
    options = parser.parse_args()
    text = render(read_arms(options.arms, read_set(options.set)), TITLES[options.name], options.name)
    write_whole(Path("reports") / f"{options.name}.md", text.encode())


if __name__ == "__main__":
    main()
