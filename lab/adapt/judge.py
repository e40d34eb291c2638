"""Lab: ``foretell adapt`` judged: how good does a predictor become with 1, 4, 16, 32, 128, 512 measurements?

For every device, some workloads are drawn as measurements, and all others judge whose architecture is not among them.
Beside adaptation: what the base says; scaling alone (one factor, the median); trees from scratch on pooled features of
the workload, which know nothing of other devices; trees on the base's ratio, as NNLQP and others fine-tune a model of
one device to the next; and HELP's way, reduced to what a few numbers can hold: nearest measured workloads by pooled
features, weighted (H. Lee et al., NeurIPS 2021, meta-learn that weighting).
"""

import hashlib
import json
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from foretell.files import write_whole
from foretell.predictors.adapted.regression import LATENCY_PARTS, fit
from foretell.predictors.adapted.units import Values
from foretell.training.judging.table import Cell, Comparison, page
from foretell.workflows.adapting.suggest import most_telling
from lab.adapt.sets import Judged, judged_sets

SAMPLES = (1, 4, 16, 32, 128, 512)
DRAWS = {1: 20, 4: 4, 16: 3, 32: 3, 128: 2, 512: 1}
VERSION = 3  # raise it when figures of the same data change: finished ones are not repeated
_FEWEST = 30  # workloads that judge
BASE, SCALED, SCRATCH, TUNED, NEAREST, OURS, CHOSEN = (
    "base", "one factor", "trees from scratch", "trees on the base", "nearest workloads", "adapt", "adapt, chosen",
)  # fmt: skip
_NEIGHBOURS = 5
_MOST_CHOSEN = 100
_LEAST_FOR_TREES = 4
Log = Callable[[str], None]
Places = NDArray[np.int64]


def evaluate(
    store: Path,
    device: str,
    cache: Path,
    *,
    only_networks: bool,
    fit_seconds: float | None,
    processes: int,
    log: Log,
    tables: Path,
) -> list[Comparison]:
    """A table for each device, and one that sums up what was asked."""
    del device, only_networks, fit_seconds, processes
    asked: dict[str, dict[str, Cell]] = {}
    curves: list[Comparison] = []
    for judged in judged_sets(tables, store, cache, log):
        rows = _known_figures(judged, cache, log)
        curves.append(
            Comparison(f"{judged.name} ({len(judged.works)} workloads)", rows, ranked=False, shares=_SHARES, head="")
        )
        asked[judged.name] = _asked(rows)
    return [Comparison("What was asked", asked, ranked=False, shares=_SHARES, head="device"), *curves]


_SHARES = frozenset(
    (
        f"{BASE} mape", f"{SCALED} mape", f"{SCRATCH} mape", f"{TUNED} mape", f"{NEAREST} mape", f"{OURS} mape",
        f"{CHOSEN} mape", "32 chosen: mape",
        "median", "within 10", "in the interval", "32: mape", "32: within 10", "128: mape", "base mape",
    )
)  # fmt: skip


def _asked(rows: dict[str, dict[str, Cell]]) -> dict[str, Cell]:
    one, some, many = (rows.get(f"{number} samples", {}) for number in (1, 32, 128))
    return {
        "base mape": one.get(f"{BASE} mape"),
        "1: median / before": one.get("median / before"),
        "1: worst draw": one.get("worst draw"),
        "32: mape": some.get(f"{OURS} mape"),
        "32: within 10": some.get("within 10"),
        "32 chosen: mape": some.get(f"{CHOSEN} mape"),
        "128: mape": many.get(f"{OURS} mape"),
        "in the interval": some.get("in the interval"),
    }


def _known_figures(judged: Judged, cache: Path, log: Log) -> dict[str, dict[str, Cell]]:
    """The figures of a device, from the cache where there are some: judging one takes minutes."""
    name = repr((judged.name, judged.ratios.sum(), len(judged.works), VERSION, sorted(DRAWS.items())))
    file = cache / "adapt" / f"figures-{hashlib.sha256(name.encode()).hexdigest()[:16]}.json"
    if not file.exists():
        log(f"judging {judged.name}")
        rows = {f"{number} samples": _figures(judged, number) for number in SAMPLES if _is_enough(judged, number)}
        write_whole(file, json.dumps(rows).encode())
    known: dict[str, dict[str, Cell]] = json.loads(file.read_bytes())
    return known


def _is_enough(judged: Judged, number: int) -> bool:
    return len(judged.works) - number >= _FEWEST


def _figures(judged: Judged, number: int) -> dict[str, Cell]:
    """The mean over draws of every figure."""
    groups = np.array(judged.groups)
    errors: dict[str, list[float]] = {name: [] for name in (BASE, SCALED, SCRATCH, TUNED, NEAREST, OURS, CHOSEN)}
    medians, within, inside, against = [], [], [], []
    for draw in range(DRAWS[number]):
        order = np.random.default_rng(draw).permutation(len(groups))
        taken, others = order[:number], order[number:]
        judging = others[~np.isin(groups[others], groups[taken])]
        truth = judged.ratios[judging]
        told = _baselines(judged, taken, judging)
        learned = fit(
            [judged.works[place] for place in taken],
            judged.ratios[taken],
            [judged.groups[place] for place in taken],
            LATENCY_PARTS.scaled(judged.deviation, judged.deviation),
        )
        answers = [learned.factors.of(judged.works[place]) for place in judging]
        told[OURS] = np.array([ratio for ratio, _ in answers])
        widths = np.array([width for _, width in answers])
        off = {name: np.abs(np.expm1(values - truth)) for name, values in told.items()}
        for name, values in off.items():
            errors[name].append(float(values.mean()))
        if number < _MOST_CHOSEN:
            errors[CHOSEN].append(_chosen_error(judged, number, order))
        medians.append(float(np.median(off[OURS])))
        within.append(float((off[OURS] <= 0.1).mean()))
        inside.append(float((np.abs(told[OURS] - truth) <= widths).mean()))
        against.append(float(np.median(off[OURS]) / np.median(off[BASE])))
    row: dict[str, Cell] = {f"{name} mape": float(np.mean(values)) for name, values in errors.items() if values}
    return row | {
        "median": float(np.mean(medians)), "within 10": float(np.mean(within)),
        "in the interval": float(np.mean(inside)), "median / before": float(np.mean(against)),
        "worst draw": float(np.max(against)),
    }  # fmt: skip


def _chosen_error(judged: Judged, number: int, order: Places) -> float:
    """The mean error when the measurements are not drawn, but chosen as --suggest does, from two thirds at random."""
    groups, prior = np.array(judged.groups), LATENCY_PARTS.scaled(judged.deviation, judged.deviation)
    pool = order[: 2 * len(order) // 3]
    rows = np.array([judged.works[place].spent_us @ judged.works[place].rows for place in pool])
    rows /= rows[:, :1]  # the first column of every unit is 1
    taken = pool[[place for place, _ in most_telling(rows, number, prior, None)]]
    judging = np.flatnonzero(~np.isin(groups, groups[taken]))
    learned = fit(
        [judged.works[place] for place in taken],
        judged.ratios[taken],
        [judged.groups[place] for place in taken],
        prior,
    ).factors
    told = np.array([learned.ratio(judged.works[place]) for place in judging])
    return float(np.abs(np.expm1(told - judged.ratios[judging])).mean())


def _baselines(judged: Judged, taken: Places, judging: Places) -> dict[str, Values]:
    """The logarithms of the factors that others give the base."""
    ratios, pooled = judged.ratios, judged.pooled
    told = {BASE: np.zeros(len(judging)), SCALED: np.full(len(judging), np.median(ratios[taken]))}
    spread = np.maximum(pooled.std(axis=0), 1e-6)
    scaled = (pooled - pooled.mean(axis=0)) / spread
    distances = np.sqrt(((scaled[judging][:, None] - scaled[taken][None]) ** 2).sum(-1))
    near = np.argsort(distances, axis=1)[:, :_NEIGHBOURS]
    weights = 1.0 / (np.take_along_axis(distances, near, axis=1) + 0.5)
    told[NEAREST] = (weights * ratios[taken][near]).sum(1) / weights.sum(1)
    if len(taken) >= _LEAST_FOR_TREES:
        told[TUNED] = _trees(pooled[taken], ratios[taken], pooled[judging])
        # the predicted time is no feature of a model that starts from nothing
        bare, base_ms = pooled[:, _BARE], np.log(judged.measured_ms) - ratios
        own = _trees(bare[taken], np.log(judged.measured_ms)[taken], bare[judging])
        told[SCRATCH] = own - base_ms[judging]
    return told


_BARE = slice(11, None)  # the columns of POOLED_COLUMNS from the settings on: no time, no bound


def _trees(rows: Values, truth: Values, asked: Values) -> Values:
    import lightgbm

    options = {"num_leaves": 8, "min_data_in_leaf": max(1, min(10, len(rows) // 8)), "learning_rate": 0.05,
               "verbose": -1, "num_threads": 1, "seed": 0}  # fmt: skip
    model = lightgbm.train(options, lightgbm.Dataset(rows, truth), num_boost_round=200)
    return np.asarray(model.predict(asked))


def write_report(tables: Sequence[Comparison], folder: Path) -> Path:
    """Write reports/adapt.md."""
    text = (
        "# A few measurements of a device\n\n`foretell adapt` with 1 to 512 measurements of a device, on workloads "
        "whose architecture was not among them; means over several draws. The base is what foretell says without any: "
        "`transfer`, fitted without the device. `median / before` is the median error over that of the base; "
        "`worst draw` is the largest of them. "
        "`adapt, chosen` takes the measurements that `foretell adapt --suggest` would. "
        "GeForce cards: [timm's published results]"
        "(https://github.com/huggingface/pytorch-image-models/tree/main/results); operators: "
        "[NeuSight's](https://github.com/sitar-lab/NeuSight); slices: our own. "
        "Remade by `python -m lab evaluate adapt TABLES --report`."
    )
    path = folder / "adapt.md"
    write_whole(path, page(text, list(tables)))
    return path
