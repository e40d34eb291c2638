"""Training: occupancy tables: how far predictions of occupancy are off, by what, and which step loses how much."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from foretell.datasets.splits import architecture_of
from foretell.files import write_whole
from foretell.predictors.sample import Sample
from foretell.predictors.unit.fit_model import Settings, conformal_quantile
from foretell.training.fusion import fold_of
from foretell.training.judging.metrics import accuracy, coverage, mape, median_ape, median_relative_width
from foretell.training.judging.table import PERCENT, Cell, Comparison, page

MODEL, MEAN = "occupancy", "mean of other architectures, same dtype"
TRACED_TIMES, TRACED_LAUNCHES = "the same, times of kernels traced", "launches and times traced"
HELD_OUT = "by networks that have not seen the architecture"
SEEN = "by the shipped predictor, which has seen these architectures"
_WORST = 20
_SHOWN_CLASSES = 24
_BATCHES = (1, 4, 16, 64)
_UNITS = (20, 60, 120, 250)
_SHARES = PERCENT | {"time", "error", "off"}

Values = NDArray[np.float64]


@dataclass(frozen=True)
class LaunchErrors:
    """Counted kernels: their class, the occupancy that was counted and predicted, and their time."""

    algorithm: NDArray[np.str_]
    counted_pct: Values
    predicted_pct: Values
    time_us: Values


@dataclass(frozen=True)
class Judged:
    """Counted workloads with their occupancy, and what was predicted without their architecture.

    ``with_traced_times`` weighs predicted units by traced times. ``with_traced_launches`` is for launches and times
    that a trace knows: what is then left is the error of the trees on launches.
    """

    samples: Sequence[Sample]
    truth: Values
    predicted: Values
    with_traced_times: Values
    with_traced_launches: Values
    mean_of_others: Values
    source: str
    launches: LaunchErrors


def intervals(judged: Judged) -> tuple[Values, Values]:
    """Both ends of each interval, whose width comes from the errors of the other folds."""
    scores = np.abs(np.log(judged.predicted / judged.truth))
    fold = np.array([fold_of(sample.spec) for sample in judged.samples])
    width = np.zeros(len(scores))
    for number in np.unique(fold).tolist():
        width[fold == number] = conformal_quantile(scores[fold != number], Settings().miss)
    return judged.predicted / np.exp(width), np.minimum(judged.predicted * np.exp(width), 100.0)


def compare(judged: Judged) -> list[Comparison]:
    """All tables: against the baseline, step by step, by parts, the worst, and by class of kernel."""
    size = f"{len(judged.truth)} workloads of {len({architecture_of(s.spec) for s in judged.samples})} architectures"
    low, high = intervals(judged)
    rows = {MODEL: _figures(judged.truth, judged.predicted), MEAN: _figures(judged.truth, judged.mean_of_others)}
    rows[MODEL] |= {
        "coverage": coverage(judged.truth, low, high),
        "median_relative_width": median_relative_width(judged.predicted, low, high),
    }
    known = np.isfinite(judged.with_traced_launches)
    steps = {
        MODEL: judged.predicted,
        TRACED_TIMES: judged.with_traced_times,
        TRACED_LAUNCHES: judged.with_traced_launches,
    }
    tables = [
        Comparison(f"{size}, architectures held out; times of units {judged.source}", rows),
        Comparison(
            f"Step by step, {int(known.sum())} workloads with a trace",
            {name: _figures(judged.truth[known], values[known]) for name, values in steps.items()},
            ranked=False,
            head="what is known",
        ),
    ]
    settings = [sample.setting for sample in judged.samples]
    units = [float(sample.units.counts.sum()) for sample in judged.samples]
    parts: Mapping[str, Sequence[str]] = {
        "By mode": [setting.mode for setting in settings],
        "By dtype": [setting.dtype for setting in settings],
        "By batch": [_band(setting.batch_size, _BATCHES) for setting in settings],
        "By units of work": [_band(count, _UNITS) for count in units],
        "By zoo": [sample.spec.partition(":")[0] for sample in judged.samples],
        "By family, worst first": [sample.family or "" for sample in judged.samples],
    }
    tables += [_by(title, judged, names, worst="worst" in title) for title, names in parts.items()]
    return [*tables, _worst(judged), _by_class(judged.launches)]


def _figures(truth: Values, predicted: Values) -> dict[str, Cell]:
    return {name: value for name, value in asdict(accuracy(truth, predicted)).items() if name != "count"}


def _band(value: float, ends: Sequence[int]) -> str:
    """The band of a number: up to the first end that is not smaller.

    >>> _band(3, (1, 4)), _band(9, (1, 4))
    ('up to 4', 'above 4')
    """
    return next((f"up to {end}" for end in ends if value <= end), f"above {ends[-1]}")


def _by(title: str, judged: Judged, names: Sequence[str], *, worst: bool) -> Comparison:
    column, rows = np.array(names), dict[str, dict[str, Cell]]()
    for name in dict.fromkeys(sorted(names, key=_number)):
        own = column == name
        truth, predicted = judged.truth[own], judged.predicted[own]
        rows[name] = {
            "count": int(own.sum()),
            "mape": mape(truth, predicted),
            "median_ape": median_ape(truth, predicted),
            "counted": float(truth.mean()),
        }
    if worst:
        rows = dict(sorted(rows.items(), key=lambda row: -float(row[1]["mape"])))  # type: ignore[arg-type]
    return Comparison(title, rows, ranked=False, shares=_SHARES, head="part")


def _number(name: str) -> tuple[bool, int, str]:
    digits = "".join(filter(str.isdigit, name))
    return name.startswith("above"), int(digits) if digits and name.startswith("up") else 0, name


def _worst(judged: Judged) -> Comparison:
    off = judged.predicted / judged.truth - 1.0
    rows: dict[str, dict[str, Cell]] = {}
    for number in np.argsort(-np.abs(off))[:_WORST].tolist():
        sample = judged.samples[number]
        setting = sample.setting
        name = f"{sample.spec[:60]} {setting.mode} {setting.dtype} batch {setting.batch_size}"
        rows[name] = {
            "counted": float(judged.truth[number]),
            "predicted": float(judged.predicted[number]),
            "off": float(off[number]),
            "times traced": _known(judged.with_traced_times[number]),
            "launches traced": _known(judged.with_traced_launches[number]),
        }
    return Comparison(f"The worst {len(rows)}", rows, ranked=False, shares=_SHARES, head="workload")


def _known(value: float) -> float | None:
    return float(value) if np.isfinite(value) else None


def _by_class(errors: LaunchErrors) -> Comparison:
    """Counted kernels by class, most time first; errors are weighted by time."""
    total_us, rows = float(errors.time_us.sum()), dict[str, dict[str, Cell]]()
    names, member = np.unique(errors.algorithm, return_inverse=True)
    spent_us = np.bincount(member, errors.time_us)
    for number in np.argsort(-spent_us)[:_SHOWN_CLASSES].tolist():
        own = member == number
        weight = errors.time_us[own] / spent_us[number]
        relative = np.abs(errors.predicted_pct[own] / np.maximum(errors.counted_pct[own], 0.5) - 1.0)
        rows[str(names[number])] = {
            "count": int(own.sum()),
            "time": float(spent_us[number] / total_us),
            "counted": float((weight * errors.counted_pct[own]).sum()),
            "error": float((weight * relative).sum()),
        }
    title = "Counted kernels by class, launches known; errors by time"
    return Comparison(title, rows, ranked=False, shares=_SHARES, head="kernel")


def write_tables(tables: Sequence[Comparison], folder: Path) -> Path:
    """Write the tables as Markdown."""
    text = (
        "# Occupancy\n\n"
        "Achieved occupancy by hardware counters, weighted by duration. Architectures held out, five folds. Remade by "
        "`foretell evaluate occupancy --report`.\n\n"
        "Everything is predicted from the graph in the first table. Step by step: with the traced times of kernels "
        "instead of predicted ones, and with the traced launches (grid, block, registers, shared memory) too. "
        "`counted` is the mean of the counter, in per cent.\n\n"
        "The studies of DNN-occu (by nodes and edges, fitted to ViT-T alone, CLIP's towers, NVML's utilisation) are "
        "in [lab 0032](../docs/lab/0032-occupancy.md), [0058](../docs/lab/0058-sharing-again.md) and "
        "[0065](../docs/lab/0065-sharing-closed.md); `python -m lab evaluate dnn-occu` remakes them."
    )
    write_whole(folder / "occupancy.md", page(text, tables))
    return folder / "occupancy.md"
