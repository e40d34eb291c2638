"""Lab: baselines of the papers: least squares on FLOPs and parameters, and boosted trees on whole graphs.

Neither knows the bounds of the device: both predict the logarithm of the quantity itself from totals of the graph.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from foretell.features import COLUMNS
from foretell.features.pooled import DTYPES, MODES, OPTIMIZERS, Setting
from foretell.predictors.boosting import TreeFit, trees_of
from foretell.predictors.sample import TRUTHS, Sample
from foretell.predictors.trees import Trees

Values = NDArray[np.float64]
_AT = {name: position for position, name in enumerate(COLUMNS)}


def whole_graph(sample: Sample) -> list[float]:
    """Logarithms of FLOPs, parameters, bytes and units, and the setting as indicators."""
    rows, counts = sample.units.features.astype(np.float64), sample.units.counts
    totals = [
        float(((np.exp2(rows[:, _AT[name]]) - 1) * counts).sum())
        for name in ("log_flops", "log_parameter_bytes", "log_read_bytes", "log_written_bytes")
    ]
    return [float(np.log1p(total)) for total in totals] + [float(np.log(counts.sum())), *_setting(sample.setting)]


def _setting(setting: Setting) -> list[float]:
    known = ((DTYPES, setting.dtype), (MODES, setting.mode), (OPTIMIZERS[1:], setting.optimizer))
    return [float(np.log(setting.batch_size))] + [float(value == name) for names, value in known for name in names]


def _logs(samples: Sequence[Sample], metric: str) -> Values:
    return np.log(np.array([sample.truth[metric] for sample in samples], dtype=np.float64))


class Linear:
    """Least squares on the logarithms of FLOPs and parameters."""

    name = "linear"

    def __init__(self, weights: dict[str, Values]) -> None:
        self._weights = weights

    @classmethod
    def fit(cls, samples: Sequence[Sample]) -> "Linear":
        """Fit every metric that was measured."""
        rows = cls._rows(samples)
        weights: dict[str, Values] = {}
        for metric in TRUTHS:
            logs = _logs(samples, metric)
            known = np.isfinite(logs)
            # fewer rows than columns have no unique solution
            if known.sum() > rows.shape[1]:
                weights[metric] = np.asarray(np.linalg.lstsq(rows[known], logs[known], rcond=None)[0], np.float64)
        return cls(weights)

    @staticmethod
    def _rows(samples: Sequence[Sample]) -> Values:
        # FLOPs, parameters, batch size and setting, without bytes and number of units
        chosen = [[1.0, *row[:2], *row[5:]] for row in map(whole_graph, samples)]
        return np.array(chosen, dtype=np.float64)

    def predict(self, samples: Sequence[Sample]) -> dict[str, Values]:
        """The predictions for each metric."""
        rows = self._rows(samples)
        return {metric: np.exp(rows @ weights) for metric, weights in self._weights.items()}


class GradientBoosting:
    """Boosted trees on whole-graph features."""

    name = "gradient-boosting"

    def __init__(self, trees: dict[str, Trees]) -> None:
        self._trees = trees

    @classmethod
    def fit(cls, samples: Sequence[Sample], seed: int = 0) -> "GradientBoosting":
        """Fit every metric that was measured."""
        rows = np.array([whole_graph(sample) for sample in samples], dtype=np.float32)
        recipe = TreeFit(rounds=500, leaves=31, learning_rate=0.05, least_in_leaf=8, seed=seed,
                         others={"bagging_fraction": 0.8, "bagging_freq": 1, "feature_fraction": 0.8})  # fmt: skip
        trees = {}
        for metric in TRUTHS:
            logs = _logs(samples, metric)
            known = np.isfinite(logs)
            if known.sum() > recipe.leaves:
                trees[metric] = trees_of(recipe.fit(rows[known], logs[known]))
        return cls(trees)

    def predict(self, samples: Sequence[Sample]) -> dict[str, Values]:
        """The predictions for each metric."""
        rows = np.array([whole_graph(sample) for sample in samples], dtype=np.float32)
        return {metric: np.exp(trees.predict(rows)) for metric, trees in self._trees.items()}
