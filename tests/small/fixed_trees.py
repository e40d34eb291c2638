"""A unit model whose trees always tell the same."""

import numpy as np

from foretell.predictors.unit.model import METRICS, UnitModel


class Fixed:
    """Trees, or a network, that always tell the same."""

    def __init__(self, value: float) -> None:
        self.value = value

    def predict(self, features: np.ndarray) -> np.ndarray:
        return np.full(len(features), self.value)


def fixed_model(trees: UnitModel, **answers: float) -> UnitModel:
    """A model whose trees tell these logarithms; those that are not named tell zero."""
    quantiles = dict.fromkeys(METRICS, 2.0)
    models = {name: Fixed(answers.get(name, 0.0)) for name in trees.models}
    return UnitModel(models, {**trees.card, "quantiles": quantiles}, trees.known, trees.reach)  # type: ignore[arg-type]
