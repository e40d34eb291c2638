"""Predictors: fitting of unit models: traces give the times of units, replays the whole, held-out errors the intervals.

Three stages are fitted one after the other. (1) A model on units learns log(time / bound) from kernel traces. (2) Trees
on pooled features learn what the measured latency and power are over the prediction that the units give. (3)
Trees learn the logarithm of the absolute error of the second stage, and a conformal quantile scales their prediction to
an interval (`foretell.predictors.unit.model` says how).

Every stage learns from cross-fitted predictions of the stage before: the samples are dealt into folds that keep an
architecture together, and what a stage sees of a fold was predicted by a model fitted to the other folds. Predictions
on the training data would look too good; a correction fitted to them would correct nothing, and an interval would be
too narrow.

Conformal intervals assume that scores are exchangeable. The scores of different architectures are roughly so. Workloads
of one architecture resemble each other, so the effective number of scores is smaller than their count. The model that
is served has seen all folds and is a little better than those that gave the scores, so coverage errs to the safe
side: two networks of three quarters of the data give the scores, three of all data are served.

Trees learn from workloads without a trace too: a first fit divides their replay time among their units.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from foretell.errors import InputError
from foretell.features import COLUMNS, SCHEMA
from foretell.features.pooled import POOLED_COLUMNS, POOLED_SCHEMA, pool
from foretell.predictors.boosting import Booster, TreeFit, trees_of
from foretell.predictors.sample import Sample
from foretell.predictors.unit.fit_network import Classes, NetworkFit, default_device, fit_networks
from foretell.predictors.unit.model import (
    CORRECTED,
    DOUBTS,
    METRICS,
    NETWORK,
    REACH,
    UnitModel,
    doubts_of,
    nearest,
    tree_rows,
    write,
)
from foretell.predictors.unit.network import UnitPredictions
from foretell.predictors.unit.reach import Reach
from foretell.predictors.unit.rows import UnitRows
from foretell.units import KILO

_CATEGORIES = tuple(COLUMNS.index(name) for name in ("operator", "kind", "phase", "dtype"))
_LONGEST_US = 2000.0  # beyond this, a longer unit weighs no more
_MAX_RESCALED = 1.5  # where a guessed sum is farther off, the guess is wrong, not the scale
_ESTIMATED_WEIGHT = 0.5  # of a unit whose time was not traced
_MIN_ERROR = 0.002  # smaller errors are noise, and log(0) has no value
_UNUSUAL = 0.99  # the share of held-out workloads whose distance is called usual
_SMALL = {"feature_fraction": 0.5, "bagging_fraction": 0.8, "bagging_freq": 1}

Values = NDArray[np.float64]
Log = Callable[[str], None]


@dataclass(frozen=True)
class Settings:
    """How trees and networks are fitted; ``miss`` is what intervals may miss.

    ``members`` networks are averaged where they are served, and ``fold_members`` where they predict a fold.

    ``whole`` corrects the sum of the units; ``gentle`` corrects it where a network predicts the units.
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
    fold_members: int = 2
    device: str = ""
    folds: int = 4
    seed: int = 0
    threads: int = 1
    miss: float = 0.10

    @property
    def networks(self) -> int:
        """How many networks a cross-fit has."""
        return self.folds * self.fold_members + self.members

    def seeded(self, fit: TreeFit) -> TreeFit:
        """A fit with the seed and the threads of these settings."""
        return replace(fit, seed=self.seed, threads=self.threads)


def fit_unit_trees(
    samples: Sequence[Sample],
    groups: Sequence[str],
    settings: Settings | None = None,
    log: Log = lambda _: None,
    name: str = "unit-trees",
) -> bytes:
    """A predictor with trees on units, as one file, under a ``name``.

    ``groups`` names the architecture of each sample; samples of one group share a fold.
    """
    settings = settings or Settings()
    rows = _checked(UnitRows.of(samples), settings)
    folds = folds_of(groups, settings)
    unit_us = np.zeros(len(rows.counts))
    for fold in range(settings.folds):
        log(f"units, fold {fold + 1} of {settings.folds}")
        held_out = folds[rows.owner] == fold
        if held_out.any():
            booster = fit_units(rows, ~held_out, settings)
            unit_us[held_out] = np.exp(booster.predict(tree_rows(rows.features[held_out]))) * rows.bound_us[held_out]
    log("units, all")
    unit_trees = fit_units(rows, np.ones(len(rows.counts), dtype=bool), settings)
    parts = {"unit": trees_of(unit_trees).to_bytes()}
    return fit_workload_trees(samples, unit_us, folds, parts, name, settings, log)


@dataclass(frozen=True)
class CrossFit:
    """Held-out predictions for all rows of some samples, and the network that is served, as bytes.

    Rows of a fold are predicted by a network that has not seen the fold. Rows of no fold are predicted by all members
    of the network that is served, which has not seen them either.
    """

    predictions: UnitPredictions
    network: bytes


def cross_fit_networks(
    samples: Sequence[Sample],
    folds: Sequence[NDArray[np.intp]],
    settings: Settings,
    device: str | None = None,
    log: Log = lambda _: None,
    classes: Classes | None = None,
) -> list[CrossFit]:
    """Several cross-fits side by side, one for each entry of ``folds``.

    An entry gives the fold of every sample, and −1 where the fit must not learn from the sample. ``classes`` are the
    kernel classes of all units, −1 where unknown.
    """
    rows = _checked(UnitRows.of(samples), settings)
    learns = np.concatenate([learning_samples(own, settings) for own in folds])
    fitted = fit_networks(rows, learns, settings.network, device or default_device(), log, classes)
    predictions, cross_fits = fitted.predictions(), list[CrossFit]()
    for number, fold_of_sample in enumerate(folds):
        by_fold = [_mean(predictions, settings.fold_members) for _ in range(settings.folds)]
        served = _mean(predictions, settings.members)
        last = (number + 1) * settings.networks
        network = fitted.network(list(range(last - settings.members, last)))
        cross_fits.append(CrossFit(combine(by_fold, served, fold_of_sample[rows.owner]), network.to_bytes()))
    return cross_fits


def learning_samples(fold_of_sample: NDArray[np.intp], settings: Settings) -> NDArray[np.bool_]:
    """For each network of a cross-fit the samples that it learns from: all but one fold's, and at last all folds'."""
    known = fold_of_sample >= 0
    without = [known & (fold_of_sample != fold) for fold in range(settings.folds) for _ in range(settings.fold_members)]
    return np.stack([*without, *[known] * settings.members])


def _mean(predictions: Iterator[UnitPredictions], members: int) -> UnitPredictions:
    """The mean of the next members."""
    taken = [next(predictions) for _ in range(members)]
    return UnitPredictions.mean_of(
        [one.log_ratio for one in taken], [one.power_w for one in taken if one.power_w is not None]
    )


def combine(by_fold: Sequence[UnitPredictions], served: UnitPredictions, fold: NDArray[np.intp]) -> UnitPredictions:
    """For each row the prediction of the networks of its fold; where it has none, that of the served ones."""

    def select(values: Callable[[UnitPredictions], Values]) -> Values:
        # fold −1 becomes choice 0, the served networks
        return np.choose(fold + 1, [values(served), *map(values, by_fold)])

    power_w = select(lambda one: np.asarray(one.power_w)) if served.power_w is not None else None
    return UnitPredictions(select(lambda one: one.log_ratio), power_w, select(lambda one: one.spread))


def fit_unit_network(
    samples: Sequence[Sample], groups: Sequence[str], cross_fit: CrossFit, settings: Settings, log: Log = lambda _: None
) -> bytes:
    """A predictor with a network on units, as one file; ``cross_fit`` has the same samples and folds."""
    folds = folds_of(groups, settings)
    unit_us = np.exp(cross_fit.predictions.log_ratio) * np.concatenate([sample.units.bound_us for sample in samples])
    models = {NETWORK: cross_fit.network}
    return fit_workload_trees(samples, unit_us, folds, models, "unit-network", settings, log, cross_fit.predictions)


def _checked(rows: UnitRows, settings: Settings) -> UnitRows:
    if rows.is_replayed.sum() < 2 * settings.folds or not rows.is_traced.any():
        raise InputError(
            f"Got {int(rows.is_replayed.sum())} measured workloads and {int(rows.is_traced.sum())} traced units; "
            "a fit needs more. For a few measurements there is foretell adapt."
        )
    return rows


def fit_units(rows: UnitRows, use: NDArray[np.bool_], settings: Settings) -> Booster:
    """Trees for the time of a unit over its bound.

    The first fit learns from traced units. It predicts the units of workloads that were timed but not traced; scaled so
    that they add up to the measured latency, these are further training rows of the second fit.
    """
    fit = settings.seeded(settings.unit)
    first = _fitted(rows, use & rows.is_traced, rows.traced_us, np.ones(len(rows.counts)), fit)
    estimate_us = np.exp(first.predict(tree_rows(rows.features))) * rows.bound_us
    ratio = np.where(rows.is_replayed, rows.latency_us / rows.sums(estimate_us), 1.0)
    # a guess that is off by more teaches the trees something wrong about all its units
    ratio = np.clip(ratio, 1 / _MAX_RESCALED, _MAX_RESCALED)
    known_us = np.where(rows.is_traced, rows.traced_us, estimate_us * ratio[rows.owner])
    weight = np.where(rows.is_traced, 1.0, _ESTIMATED_WEIGHT)
    return _fitted(rows, use & (rows.is_traced | rows.is_replayed[rows.owner]), known_us, weight, fit)


def _fitted(rows: UnitRows, use: NDArray[np.bool_], known_us: Values, weight: Values, fit: TreeFit) -> Booster:
    time_us = known_us[use]
    # by the square root of the time: long units decide latencies, short ones are most of the rows
    importance = np.sqrt(np.minimum(time_us, _LONGEST_US) * rows.counts[use]) * weight[use]
    return fit.fit(tree_rows(rows.features[use]), np.log(time_us / rows.bound_us[use]), importance, _CATEGORIES)


def fit_workload_trees(
    samples: Sequence[Sample],
    unit_us: Values,
    folds: NDArray[np.intp],
    models: dict[str, bytes],
    name: str,
    settings: Settings,
    log: Log,
    predictions: UnitPredictions | None = None,
) -> bytes:
    """Fit the trees on whole workloads, and write them beside the ``models`` on units.

    ``unit_us`` are cross-fitted times of units. A network has learned from replays already, so its sum is corrected by
    small trees only, and where it predicts the power of units, their mean is the power. Larger trees made both worse.
    """
    rows = UnitRows.of(samples)
    sums_us, is_replayed = rows.sums(unit_us), rows.is_replayed
    pooled = np.stack([pool(sample.units, unit_us[rows.part(i)], sample.setting) for i, sample in enumerate(samples)])
    middle, spread = np.median(pooled, axis=0), np.maximum(pooled.std(axis=0), 1e-6)
    scaled = ((pooled - middle) / spread).astype(np.float32)
    distances = _held_out_distances(scaled, folds, is_replayed)
    # distances to other folds: to its own fold each workload would look near
    far = float(np.quantile(distances[is_replayed], _UNUSUAL))
    beyond = _held_out_beyond(rows, folds)
    unit_spread = predictions.spread if predictions is not None else np.zeros(len(unit_us))
    doubts = doubts_of(lambda values: rows.means(unit_us, values), unit_spread, beyond)
    features = np.column_stack([pooled, distances / far, doubts]).astype(np.float32)
    base = {
        "latency_ms": sums_us / KILO,
        "memory_mib": np.array([sample.setting.memory_mib for sample in samples]),
        "power_w": np.array([sample.roofline_w for sample in samples]),
    }
    # the peak is counted, and no correction of it that was tried held on fields that were left out
    held_out: dict[str, Values] = {"memory_mib": base["memory_mib"]}
    if predictions is not None and predictions.power_w is not None:
        # the network's power is already cross-fitted
        base["power_w"] = rows.means(unit_us, predictions.power_w)
    for metric in (metric for metric in CORRECTED if metric not in held_out):
        log(metric)
        truth = _truth(samples, metric)
        known = is_replayed & np.isfinite(truth)
        if not known.any():
            continue  # nobody measured the power of a CPU
        # 1.0 stands for missing truths, which ``known`` leaves out below
        target = np.log(np.where(known, truth, 1.0) / base[metric])
        fit = settings.gentle if NETWORK in models else settings.whole
        held_out[metric] = base[metric] * np.exp(_cross_fit(features, target, known, folds, settings.seeded(fit)))
        models[metric] = trees_of(settings.seeded(fit).fit(features[known], target[known])).to_bytes()
    if "power_w" in held_out:
        held_out["energy_j"] = held_out["power_w"] * held_out["latency_ms"] / KILO
    quantiles, errors = {}, {}
    for metric in METRICS:
        truth = _truth(samples, metric)
        known = is_replayed & np.isfinite(truth)
        if not known.any() or metric not in held_out:
            continue
        error = np.abs(np.log(np.where(known, truth, 1.0) / held_out[metric]))
        target = np.log(np.maximum(error, _MIN_ERROR))
        # also the expected error is cross-fitted: a score must not use its own fold
        expected = np.exp(_cross_fit(features, target, known, folds, settings.seeded(settings.error)))
        errors[metric] = float(np.mean(np.abs(held_out[metric][known] / truth[known] - 1)))
        quantiles[metric] = conformal_quantile(error[known] / expected[known], settings.miss)
        error_trees = settings.seeded(settings.error).fit(features[known], target[known])
        models[f"{metric}_error"] = trees_of(error_trees).to_bytes()
    card = {
        "predictor": name,
        "device": settings.device,
        "schema": SCHEMA,
        "pooled_schema": POOLED_SCHEMA,
        "quantiles": quantiles,
        "held_out": errors,
        "held_out_by_family": _by_family(samples, held_out["latency_ms"], is_replayed),
        "distance": {"middle": middle.tolist(), "spread": spread.tolist(), "far": far},
        "options": sorted({option for sample in samples for option in sample.setting.options}),
        "settings": sorted({f"{sample.setting.mode} {sample.setting.dtype}" for sample in samples}),
        "workloads": int(is_replayed.sum()),
        "traced": sum(sample.unit_us is not None for sample in samples),
        "seed": settings.seed,
        "columns": [*POOLED_COLUMNS, "distance", *DOUBTS],
    }
    models[REACH] = Reach.of(rows.features).to_bytes()
    # only workloads whose whole was timed count as known: a bench of operators is not near a model
    return write(models, card, scaled[is_replayed])


def _by_family(samples: Sequence[Sample], latency_ms: Values, is_replayed: NDArray[np.bool_]) -> dict[str, float]:
    """The mean held-out error of latency of each family."""
    errors: dict[str, list[float]] = {}
    for position in np.flatnonzero(is_replayed).tolist():
        sample = samples[position]
        errors.setdefault(sample.family, []).append(abs(latency_ms[position] / sample.truth["latency_ms"] - 1))
    return {family: round(float(np.mean(family_errors)), 4) for family, family_errors in sorted(errors.items())}


def _held_out_distances(scaled: NDArray[np.float32], folds: NDArray[np.intp], is_replayed: NDArray[np.bool_]) -> Values:
    """How far each workload is from those of the other folds."""
    distances = np.zeros(len(scaled))
    for fold in np.unique(folds):
        held_out = folds == fold
        distances[held_out] = nearest(scaled[held_out], scaled[~held_out & is_replayed])
    return distances


def _held_out_beyond(rows: UnitRows, folds: NDArray[np.intp]) -> Values:
    """How far each unit lies beyond what was measured in the other folds."""
    beyond = np.zeros(len(rows.counts))
    for fold in np.unique(folds):
        held_out = folds[rows.owner] == fold
        beyond[held_out] = Reach.of(rows.features[~held_out]).beyond(rows.features[held_out])
    return beyond


def _cross_fit(
    features: NDArray[np.float32],
    target: Values,
    known: NDArray[np.bool_],
    folds: NDArray[np.intp],
    fit: TreeFit,
) -> Values:
    """For each row the prediction of trees that have not seen its fold."""
    predicted = np.zeros(len(features))
    for fold in np.unique(folds):
        held_out = folds == fold
        booster = fit.fit(features[known & ~held_out], target[known & ~held_out])
        predicted[held_out] = booster.predict(features[held_out])
    return predicted


def conformal_quantile(scores: NDArray[np.floating[Any]], miss: float) -> float:
    """The score that all but ``miss`` of new scores stay below, by split conformal prediction.

    It is the ⌈(n + 1)(1 − miss)⌉-th smallest of n scores. For a new score that is exchangeable with these, the
    probability of lying at or below it is at least 1 − miss, whatever the distribution (Lei et al., JASA 113, 2018).
    With too few scores the rank would exceed n; then the largest is taken and the guarantee is weaker.

    >>> conformal_quantile(np.arange(1, 100), 0.1)
    90.0
    """
    rank = int(np.ceil((len(scores) + 1) * (1 - miss)))
    return float(np.sort(scores)[min(rank, len(scores)) - 1])


def folds_of(groups: Sequence[str], settings: Settings) -> NDArray[np.intp]:
    """The fold of each sample; all samples of a group have the same one."""
    names = sorted(set(groups))
    # groups are dealt in random order, so that folds have equally many groups
    order = np.random.default_rng(settings.seed).permutation(len(names))
    fold_by_group: Mapping[str, int] = {name: int(order[i]) % settings.folds for i, name in enumerate(names)}
    return np.array([fold_by_group[group] for group in groups], dtype=np.intp)


def _truth(samples: Sequence[Sample], name: str) -> Values:
    return np.array([sample.truth[name] for sample in samples], dtype=np.float64)


def predict_samples(model: UnitModel, samples: Sequence[Sample]) -> dict[str, Values]:
    """Predictions and intervals of many samples: ``latency_ms``, ``latency_ms_low``, … and ``distance``."""
    columns: dict[str, list[float]] = {}
    for sample in samples:
        prediction = model.predict(sample.units, sample.setting, sample.roofline_w)
        for name, estimate in prediction.estimates.items():
            columns.setdefault(name, []).append(estimate.value)
            columns.setdefault(f"{name}_low", []).append(estimate.low)
            columns.setdefault(f"{name}_high", []).append(estimate.high)
        columns.setdefault("distance", []).append(prediction.distance)
    return {name: np.array(values) for name, values in columns.items()}
