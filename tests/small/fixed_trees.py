"""A unit model whose trees always tell the same."""

import numpy as np

from foretell.predictors.trees import Trees
from foretell.predictors.unit.model import METRICS, UnitModel


def fixed_trees(columns: int, value: float) -> Trees:
    """One tree, both of whose leaves have the same value."""
    return Trees(
        columns,
        roots=np.zeros(1, np.int32),
        feature=np.zeros(1, np.int32),
        bound=np.zeros(1, np.float32),
        takes_nan=np.ones(1, bool),
        children=np.full((1, 2), -1, np.int32),
        code_set=np.full(1, -1, np.int32),
        sets=np.zeros((0, 0), bool),
        leaves=np.full(1, value, np.float32),
    )


def fixed_model(trees: UnitModel, **answers: float) -> UnitModel:
    """A model whose trees tell these logarithms; those that are not named tell zero."""
    quantiles = dict.fromkeys(METRICS, 2.0)
    models = {name: fixed_trees(own.columns, answers.get(name, 0.0)) for name, own in trees.models.items()}
    return UnitModel(models, {**trees.card, "quantiles": quantiles}, trees.known, trees.reach)
