"""predictors: fitting of unit trees: traces teach units, replay times the whole, held-out errors the intervals.

Whatever is corrected, and every error that sets an interval, comes from trees that have not seen the architecture.
Workloads without a trace teach the units too: a first fit shares their replay time out among their units.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from foretell.errors import InputError
from foretell.features import COLUMNS, SCHEMA
from foretell.features.pooled import POOLED_COLUMNS, POOLED_SCHEMA, pool
from foretell.predictors.sample import Sample
from foretell.predictors.trees import Booster, TreeFit, to_onnx
from foretell.predictors.unit_trees import CORRECTED, METRICS, UnitTrees, nearest, tree_rows, write
from foretell.units import KILO

_CATEGORIES = tuple(COLUMNS.index(name) for name in ("operator", "kind", "phase", "dtype"))
_LONGEST_US = 2000.0
_MOST_RESCALED = 1.5
_GUESSED_WEIGHT = 0.5
_LEAST_ERROR = 0.002
_UNUSUAL = 0.99
_SMALL = {"feature_fraction": 0.5, "bagging_fraction": 0.8, "bagging_freq": 1}

Values = NDArray[np.float64]
Say = Callable[[str], None]


@dataclass(frozen=True)
class Settings:
    """How the trees are fitted."""

    unit: TreeFit = field(
        default_factory=lambda: TreeFit(
            rounds=300, leaves=255, learning_rate=0.06, least_in_leaf=12,
            others={"feature_fraction": 0.6, "bagging_fraction": 0.8, "bagging_freq": 1, "cat_smooth": 20},
        )
    )  # fmt: skip
    whole: TreeFit = field(
        default_factory=lambda: TreeFit(
            rounds=300, leaves=15, learning_rate=0.04, least_in_leaf=8, objective="regression_l1", others=_SMALL
        )
    )
    error: TreeFit = field(
        default_factory=lambda: TreeFit(rounds=80, leaves=7, learning_rate=0.05, least_in_leaf=30, others=_SMALL)
    )
    device: str = ""
    folds: int = 4
    seed: int = 0
    threads: int = 1
    miss: float = 0.10

    def seeded(self, fit: TreeFit) -> TreeFit:
        """A fit with this seed and these threads."""
        return replace(fit, seed=self.seed, threads=self.threads)


class _Rows:
    """All distinct units of some samples, one below the other."""

    def __init__(self, samples: Sequence[Sample]) -> None:
        sizes = [len(sample.units) for sample in samples]
        self.starts = np.concatenate([[0], np.cumsum(sizes)]).astype(np.intp)
        self.owner = np.repeat(np.arange(len(samples)), sizes)
        self.features = tree_rows(np.concatenate([sample.units.features for sample in samples]))
        self.counts = np.concatenate([sample.units.counts for sample in samples])
        self.bound_us = np.concatenate([sample.units.bound_us for sample in samples])
        unknown = [np.full(len(s.units), np.nan) if s.unit_us is None else s.unit_us for s in samples]
        self.traced_us = np.concatenate(unknown)
        self.is_traced = self.traced_us > 0

    def sums(self, unit_us: Values) -> Values:
        return np.asarray(np.add.reduceat(unit_us * self.counts, self.starts[:-1]))


def fit_unit_trees(
    samples: Sequence[Sample], groups: Sequence[str], settings: Settings | None = None, say: Say = lambda _: None
) -> bytes:
    """Fitted trees as one file; ``groups`` are what must not be torn apart, the architectures."""
    settings = settings or Settings()
    rows = _Rows(samples)
    folds = _folds(groups, settings)
    latency_us = _truth(samples, "latency_ms") * KILO
    captured = np.array([sample.captured for sample in samples])
    whole = captured & np.isfinite(latency_us)
    if whole.sum() < 2 * settings.folds or not rows.is_traced.any():
        raise InputError(
            f"Got {int(whole.sum())} measured workloads, {int(rows.is_traced.sum())} traced units; give more."
        )
    unit_us = np.zeros(len(rows.counts))
    for fold in range(settings.folds):
        say(f"units, fold {fold + 1} of {settings.folds}")
        held = folds[rows.owner] == fold
        if held.any():
            booster = _fit_units(rows, ~held, latency_us, whole, settings)
            unit_us[held] = np.exp(booster.predict(rows.features[held])) * rows.bound_us[held]
    say("units, all")
    unit = _fit_units(rows, np.ones(len(rows.counts), dtype=bool), latency_us, whole, settings)
    pooled = np.stack(
        [
            pool(sample.units, unit_us[rows.starts[i] : rows.starts[i + 1]], sample.setting)
            for i, sample in enumerate(samples)
        ]
    )
    models = {"unit": to_onnx(unit)}
    return _fit_whole(samples, rows.sums(unit_us), pooled, folds, whole, models, settings, say)


def _fit_units(
    rows: _Rows, use: NDArray[np.bool_], latency_us: Values, whole: NDArray[np.bool_], settings: Settings
) -> Booster:
    """Trees for the time of a unit over its bound: of what was traced, then also of what can be guessed by it."""
    fit = settings.seeded(settings.unit)
    traced = use & rows.is_traced
    first = _fitted(rows, traced, rows.traced_us, np.ones(len(rows.counts)), fit)
    guess_us = np.exp(first.predict(rows.features)) * rows.bound_us
    ratio = np.where(whole, latency_us / rows.sums(guess_us), 1.0)
    ratio = np.clip(ratio, 1 / _MOST_RESCALED, _MOST_RESCALED)
    known_us = np.where(rows.is_traced, rows.traced_us, guess_us * ratio[rows.owner])
    weight = np.where(rows.is_traced, 1.0, _GUESSED_WEIGHT)
    return _fitted(rows, use & (rows.is_traced | whole[rows.owner]), known_us, weight, fit)


def _fitted(rows: _Rows, use: NDArray[np.bool_], known_us: Values, weight: Values, fit: TreeFit) -> Booster:
    time_us = known_us[use]
    importance = np.sqrt(np.minimum(time_us, _LONGEST_US) * rows.counts[use]) * weight[use]
    return fit.fit(rows.features[use], np.log(time_us / rows.bound_us[use]), importance, _CATEGORIES)


def _fit_whole(
    samples: Sequence[Sample],
    sums_us: Values,
    pooled: NDArray[np.float32],
    folds: NDArray[np.intp],
    whole: NDArray[np.bool_],
    models: dict[str, bytes],
    settings: Settings,
    say: Say,
) -> bytes:
    middle, spread = np.median(pooled, axis=0), np.maximum(pooled.std(axis=0), 1e-6)
    scaled = ((pooled - middle) / spread).astype(np.float32)
    distances = _held_out_distances(scaled, folds, whole)
    far = float(np.quantile(distances[whole], _UNUSUAL))
    features = np.column_stack([pooled, distances / far]).astype(np.float32)
    base = {
        "latency_ms": sums_us / KILO,
        "memory_mib": np.array([sample.setting.memory_mib for sample in samples]),
        "power_w": np.array([sample.roofline_w for sample in samples]),
    }
    held_out: dict[str, Values] = {}
    for name in CORRECTED:
        say(name)
        truth = _truth(samples, name)
        use = whole & np.isfinite(truth)
        target = np.log(np.where(use, truth, 1.0) / base[name])
        held_out[name] = base[name] * np.exp(_cross_fit(features, target, use, folds, settings))
        models[name] = to_onnx(settings.seeded(settings.whole).fit(features[use], target[use]))
    held_out["energy_j"] = held_out["power_w"] * held_out["latency_ms"] / KILO
    quantiles, errors = {}, {}
    for name in METRICS:
        truth = _truth(samples, name)
        use = whole & np.isfinite(truth)
        error = np.abs(np.log(np.where(use, truth, 1.0) / held_out[name]))
        target = np.log(np.maximum(error, _LEAST_ERROR))
        expected = np.exp(_cross_fit(features, target, use, folds, settings, settings.error))
        errors[name] = float(np.mean(np.abs(held_out[name][use] / truth[use] - 1)))
        quantiles[name] = conformal_quantile(error[use] / expected[use], settings.miss)
        models[f"{name}_error"] = to_onnx(settings.seeded(settings.error).fit(features[use], target[use]))
    card = {
        "predictor": "unit-trees",
        "device": settings.device,
        "schema": SCHEMA,
        "pooled_schema": POOLED_SCHEMA,
        "quantiles": quantiles,
        "held_out": errors,
        "held_out_by_family": _by_family(samples, held_out["latency_ms"], whole),
        "distance": {"middle": middle.tolist(), "spread": spread.tolist(), "far": far},
        "workloads": int(whole.sum()),
        "traced": sum(sample.unit_us is not None for sample in samples),
        "seed": settings.seed,
        "columns": [*POOLED_COLUMNS, "distance"],
    }
    return write(models, card, scaled[whole])


def _by_family(samples: Sequence[Sample], latency_ms: Values, whole: NDArray[np.bool_]) -> dict[str, float]:
    """The mean error of latency of each family's architectures, by trees that have not seen them."""
    errors: dict[str, list[float]] = {}
    for position in np.flatnonzero(whole):
        sample = samples[position]
        errors.setdefault(sample.family, []).append(abs(latency_ms[position] / sample.truth["latency_ms"] - 1))
    return {family: round(float(np.mean(found)), 4) for family, found in sorted(errors.items())}


def _held_out_distances(scaled: NDArray[np.float32], folds: NDArray[np.intp], whole: NDArray[np.bool_]) -> Values:
    """How far each workload is from those of the other folds."""
    distances = np.zeros(len(scaled))
    for fold in np.unique(folds):
        held = folds == fold
        distances[held] = nearest(scaled[held], scaled[~held & whole])
    return distances


def _cross_fit(
    features: NDArray[np.float32],
    target: Values,
    use: NDArray[np.bool_],
    folds: NDArray[np.intp],
    settings: Settings,
    fit: TreeFit | None = None,
) -> Values:
    """What trees that have not seen the fold say of each row."""
    found = np.zeros(len(features))
    for fold in np.unique(folds):
        held = folds == fold
        booster = settings.seeded(fit or settings.whole).fit(features[use & ~held], target[use & ~held])
        found[held] = booster.predict(features[held])
    return found


def conformal_quantile(scores: NDArray[np.floating[Any]], miss: float) -> float:
    """The score that all but ``miss`` of new ones stay below, by the known ones.

    >>> conformal_quantile(np.arange(1, 100), 0.1)
    90.0
    """
    rank = int(np.ceil((len(scores) + 1) * (1 - miss)))
    return float(np.sort(scores)[min(rank, len(scores)) - 1])


def _folds(groups: Sequence[str], settings: Settings) -> NDArray[np.intp]:
    names = sorted(set(groups))
    order = np.random.default_rng(settings.seed).permutation(len(names))
    of_group: Mapping[str, int] = {name: int(order[i]) % settings.folds for i, name in enumerate(names)}
    return np.array([of_group[group] for group in groups], dtype=np.intp)


def _truth(samples: Sequence[Sample], name: str) -> Values:
    return np.array([sample.truth[name] for sample in samples], dtype=np.float64)


def predict_samples(trees: UnitTrees, samples: Sequence[Sample]) -> dict[str, Values]:
    """Values and intervals of many samples: ``latency_ms``, ``latency_ms_low``, … and ``distance``."""
    columns: dict[str, list[float]] = {}
    for sample in samples:
        answer = trees.answer(sample.units, sample.setting, sample.roofline_w)
        for name, estimate in answer.estimates.items():
            columns.setdefault(name, []).append(estimate.value)
            columns.setdefault(f"{name}_low", []).append(estimate.low)
            columns.setdefault(f"{name}_high", []).append(estimate.high)
        columns.setdefault("distance", []).append(answer.distance)
    return {name: np.array(values) for name, values in columns.items()}
