"""predictors: fitting of unit models: traces teach units, replay times the whole, held-out errors the intervals.

Whatever is corrected, and every error that sets an interval, comes from a fit that has not seen the architecture. Trees
learn from workloads without a trace too: a first fit shares their replay time out among their units.
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
from foretell.predictors.unit.fit_network import Classes, NetworkFit, default_device, fit_networks
from foretell.predictors.unit.model import CORRECTED, METRICS, NETWORK, UnitModel, nearest, tree_rows, write
from foretell.predictors.unit.network import UnitPredictions
from foretell.predictors.unit.rows import UnitRows
from foretell.units import KILO

_CATEGORIES = tuple(COLUMNS.index(name) for name in ("operator", "kind", "phase", "dtype"))
_LONGEST_US = 2000.0
_MOST_RESCALED = 1.5
_GUESSED_WEIGHT = 0.5
_LEAST_ERROR = 0.002
_UNUSUAL = 0.99
_MISSED_BY_MEMBERS = 1.1  # how often held-out errors may lie outside, against how often the truth shall
_SMALL = {"feature_fraction": 0.5, "bagging_fraction": 0.8, "bagging_freq": 1}

Values = NDArray[np.float64]
Say = Callable[[str], None]


@dataclass(frozen=True)
class Settings:
    """How trees and networks are fitted; ``members`` networks are averaged.

    ``whole`` corrects what units add up to, ``gentle`` the latency where a network tells units.
    """

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
    gentle: TreeFit = field(
        default_factory=lambda: TreeFit(
            rounds=100, leaves=3, learning_rate=0.04, least_in_leaf=8, objective="regression_l1", others=_SMALL
        )
    )
    error: TreeFit = field(
        default_factory=lambda: TreeFit(rounds=80, leaves=7, learning_rate=0.05, least_in_leaf=30, others=_SMALL)
    )
    network: NetworkFit = field(default_factory=NetworkFit)
    members: int = 3
    device: str = ""
    folds: int = 4
    seed: int = 0
    threads: int = 1
    miss: float = 0.10

    def seeded(self, fit: TreeFit) -> TreeFit:
        """A fit with this seed and these threads."""
        return replace(fit, seed=self.seed, threads=self.threads)


def fit_unit_trees(
    samples: Sequence[Sample], groups: Sequence[str], settings: Settings | None = None, say: Say = lambda _: None
) -> bytes:
    """A predictor with trees on units, as one file; ``groups`` are what must not be torn apart, the architectures."""
    settings = settings or Settings()
    rows = _checked(UnitRows.of(samples), settings)
    folds = folds_of(groups, settings)
    unit_us = np.zeros(len(rows.counts))
    for fold in range(settings.folds):
        say(f"units, fold {fold + 1} of {settings.folds}")
        held = folds[rows.owner] == fold
        if held.any():
            booster = _fit_units(rows, ~held, settings)
            unit_us[held] = np.exp(booster.predict(tree_rows(rows.features[held]))) * rows.bound_us[held]
    say("units, all")
    unit = _fit_units(rows, np.ones(len(rows.counts), dtype=bool), settings)
    return fit_whole(samples, unit_us, folds, {"unit": to_onnx(unit)}, "unit-trees", settings, say)


@dataclass(frozen=True)
class CrossFit:
    """What is told of all rows of some samples, and the network's ONNX model.

    Rows of a fold are told by a network that has not seen the fold; those of no fold, by all members of the last one.
    """

    told: UnitPredictions
    network: bytes


def cross_fit_networks(
    samples: Sequence[Sample],
    folds: Sequence[NDArray[np.intp]],
    settings: Settings,
    device: str | None = None,
    say: Say = lambda _: None,
    classes: Classes | None = None,
) -> list[CrossFit]:
    """Several fits side by side; each says of every sample which fold it is in, −1 where it must not learn from it.

    ``classes`` are those of the kernels of all units, −1 where not known.
    """
    rows = _checked(UnitRows.of(samples), settings)
    learns = []
    for each in folds:
        learns += [(each >= 0) & (each != fold) for fold in range(settings.folds)]
        learns += [each >= 0] * settings.members
    fitted = fit_networks(rows, np.stack(learns), settings.network, device or default_device(), say, classes)
    told, found = fitted.told(), list[CrossFit]()
    for number, each in enumerate(folds):
        held = [next(told) for _ in range(settings.folds)]
        members = [next(told) for _ in range(settings.members)]
        last = (number + 1) * (settings.folds + settings.members)
        network = fitted.network(list(range(last - settings.members, last)))
        found.append(CrossFit(_put_together(held, members, each[rows.owner]), network.to_onnx()))
    return found


def _put_together(
    held: Sequence[UnitPredictions], members: Sequence[UnitPredictions], fold: NDArray[np.intp]
) -> UnitPredictions:
    """Of each row what the network of its fold tells; where it has none, the mean of all members."""

    def chosen(by_fold: Sequence[Values], by_member: Sequence[Values]) -> Values:
        return np.choose(fold + 1, [np.mean(by_member, axis=0), *by_fold])

    log_ratio = chosen([each.log_ratio for each in held], [each.log_ratio for each in members])
    powers = [[each.power_w for each in group if each.power_w is not None] for group in (held, members)]
    return UnitPredictions(log_ratio, chosen(*powers) if powers[0] else None)


def fit_unit_network(
    samples: Sequence[Sample], groups: Sequence[str], cross_fit: CrossFit, settings: Settings, say: Say = lambda _: None
) -> bytes:
    """A predictor with a network on units, as one file; ``cross_fit`` is of the same samples and folds."""
    folds = folds_of(groups, settings)
    unit_us = np.exp(cross_fit.told.log_ratio) * np.concatenate([sample.units.bound_us for sample in samples])
    models = {NETWORK: cross_fit.network}
    # errors are known of members that saw four fifths; what is served saw all, is their mean, and errs less often
    settings = replace(settings, miss=settings.miss * _MISSED_BY_MEMBERS)
    return fit_whole(samples, unit_us, folds, models, "unit-network", settings, say, cross_fit.told.power_w)


def _checked(rows: UnitRows, settings: Settings) -> UnitRows:
    if rows.whole.sum() < 2 * settings.folds or not rows.is_traced.any():
        raise InputError(
            f"Got {int(rows.whole.sum())} measured workloads, {int(rows.is_traced.sum())} traced units; give more."
        )
    return rows


def _fit_units(rows: UnitRows, use: NDArray[np.bool_], settings: Settings) -> Booster:
    """Trees for the time of a unit over its bound: of what was traced, then also of what can be guessed by it."""
    fit = settings.seeded(settings.unit)
    first = _fitted(rows, use & rows.is_traced, rows.traced_us, np.ones(len(rows.counts)), fit)
    guess_us = np.exp(first.predict(tree_rows(rows.features))) * rows.bound_us
    ratio = np.where(rows.whole, rows.latency_us / rows.sums(guess_us), 1.0)
    ratio = np.clip(ratio, 1 / _MOST_RESCALED, _MOST_RESCALED)
    known_us = np.where(rows.is_traced, rows.traced_us, guess_us * ratio[rows.owner])
    weight = np.where(rows.is_traced, 1.0, _GUESSED_WEIGHT)
    return _fitted(rows, use & (rows.is_traced | rows.whole[rows.owner]), known_us, weight, fit)


def _fitted(rows: UnitRows, use: NDArray[np.bool_], known_us: Values, weight: Values, fit: TreeFit) -> Booster:
    time_us = known_us[use]
    importance = np.sqrt(np.minimum(time_us, _LONGEST_US) * rows.counts[use]) * weight[use]
    return fit.fit(tree_rows(rows.features[use]), np.log(time_us / rows.bound_us[use]), importance, _CATEGORIES)


def fit_whole(
    samples: Sequence[Sample],
    unit_us: Values,
    folds: NDArray[np.intp],
    models: dict[str, bytes],
    name: str,
    settings: Settings,
    say: Say,
    unit_w: Values | None = None,
) -> bytes:
    """Trees on the whole beside ``models`` on units; ``unit_us`` is told by fits that have not seen the fold.

    A network has learned from replays already: the latency is its sum, corrected by small trees; where it tells the
    power of units, their mean is the power. Larger trees would only make both worse.
    """
    rows = UnitRows.of(samples)
    sums_us, whole = rows.sums(unit_us), rows.whole
    pooled = np.stack([pool(sample.units, unit_us[rows.part(i)], sample.setting) for i, sample in enumerate(samples)])
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
    if unit_w is not None:
        held_out["power_w"] = rows.means(unit_us, unit_w)
    for metric in (name for name in CORRECTED if name not in held_out):
        say(metric)
        truth = _truth(samples, metric)
        use = whole & np.isfinite(truth)
        target = np.log(np.where(use, truth, 1.0) / base[metric])
        fit = settings.gentle if NETWORK in models and metric == "latency_ms" else settings.whole
        held_out[metric] = base[metric] * np.exp(_cross_fit(features, target, use, folds, settings.seeded(fit)))
        models[metric] = to_onnx(settings.seeded(fit).fit(features[use], target[use]))
    held_out["energy_j"] = held_out["power_w"] * held_out["latency_ms"] / KILO
    quantiles, errors = {}, {}
    for metric in METRICS:
        truth = _truth(samples, metric)
        use = whole & np.isfinite(truth)
        error = np.abs(np.log(np.where(use, truth, 1.0) / held_out[metric]))
        target = np.log(np.maximum(error, _LEAST_ERROR))
        expected = np.exp(_cross_fit(features, target, use, folds, settings.seeded(settings.error)))
        errors[metric] = float(np.mean(np.abs(held_out[metric][use] / truth[use] - 1)))
        quantiles[metric] = conformal_quantile(error[use] / expected[use], settings.miss)
        models[f"{metric}_error"] = to_onnx(settings.seeded(settings.error).fit(features[use], target[use]))
    card = {
        "predictor": name,
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
    for position in np.flatnonzero(whole).tolist():
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
    fit: TreeFit,
) -> Values:
    """What trees that have not seen the fold say of each row."""
    found = np.zeros(len(features))
    for fold in np.unique(folds):
        held = folds == fold
        booster = fit.fit(features[use & ~held], target[use & ~held])
        found[held] = booster.predict(features[held])
    return found


def conformal_quantile(scores: NDArray[np.floating[Any]], miss: float) -> float:
    """The score that all but ``miss`` of new ones stay below, by the known ones.

    >>> conformal_quantile(np.arange(1, 100), 0.1)
    90.0
    """
    rank = int(np.ceil((len(scores) + 1) * (1 - miss)))
    return float(np.sort(scores)[min(rank, len(scores)) - 1])


def folds_of(groups: Sequence[str], settings: Settings) -> NDArray[np.intp]:
    """The fold of each sample: all of one group are in one."""
    names = sorted(set(groups))
    order = np.random.default_rng(settings.seed).permutation(len(names))
    of_group: Mapping[str, int] = {name: int(order[i]) % settings.folds for i, name in enumerate(names)}
    return np.array([of_group[group] for group in groups], dtype=np.intp)


def _truth(samples: Sequence[Sample], name: str) -> Values:
    return np.array([sample.truth[name] for sample in samples], dtype=np.float64)


def predict_samples(model: UnitModel, samples: Sequence[Sample]) -> dict[str, Values]:
    """Values and intervals of many samples: ``latency_ms``, ``latency_ms_low``, … and ``distance``."""
    columns: dict[str, list[float]] = {}
    for sample in samples:
        answer = model.answer(sample.units, sample.setting, sample.roofline_w)
        for name, estimate in answer.estimates.items():
            columns.setdefault(name, []).append(estimate.value)
            columns.setdefault(f"{name}_low", []).append(estimate.low)
            columns.setdefault(f"{name}_high", []).append(estimate.high)
        columns.setdefault("distance", []).append(answer.distance)
    return {name: np.array(values) for name, values in columns.items()}
