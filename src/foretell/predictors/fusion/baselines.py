"""Predictors: baselines of the partitioner: fuse nothing, everything, by frequency of operator pairs, or by rules.

The rules follow nn-Meter (L. Zhang et al., MobiSys 2021): fixed patterns of a product and the operators that follow it,
where nothing else reads the intermediate result.
"""

from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from foretell.features.operator_codes import CODED, operator_code
from foretell.predictors.fusion.edges import EDGE_COLUMNS

_AT = {name: position for position, name in enumerate(EDGE_COLUMNS)}
_ACTIVATIONS = ("Relu", "Clip", "HardSwish", "HardSigmoid", "LeakyRelu", "Sigmoid", "Tanh", "PRelu")
_PRODUCTS = ("Conv", "ConvTranspose", "Gemm", "MatMul")
_RULES = (
    *((before, after) for before in _PRODUCTS for after in ("BatchNormalization", "Add", *_ACTIVATIONS)),
    *(("BatchNormalization", after) for after in _ACTIVATIONS),
    *(("Add", after) for after in _ACTIVATIONS),
)
_OPERATOR_CODES = float(len(CODED) + 1)  # includes −1, the code of an unknown operator

Rows = NDArray[np.float32]
Flags = NDArray[np.bool_]
Codes = TypeVar("Codes", float, NDArray[np.float64])


def never(features: Rows) -> Flags:
    """No edge is fused."""
    return np.zeros(len(features), bool)


def always(features: Rows) -> Flags:
    """Every edge is fused."""
    return np.ones(len(features), bool)


def by_rules(features: Rows) -> Flags:
    """Edges that a rule names and whose source has no other reader."""
    rules = np.array([_pair(float(operator_code(before)), float(operator_code(after))) for before, after in _RULES])
    return np.isin(_pairs(features), rules) & (features[:, _AT["only_reader"]] > 0)


class PairFrequency:
    """What most edges between the same two operators do under the same runtime; not fused where none was seen."""

    def __init__(self, features: Rows, fused: Flags) -> None:
        self._keys, inverse = np.unique(_keys(features), return_inverse=True)
        counts = np.bincount(inverse, minlength=len(self._keys))
        self._fused = np.bincount(inverse, fused, len(self._keys)) > 0.5 * counts

    def __call__(self, features: Rows) -> Flags:
        """Which edges are fused."""
        keys = _keys(features)
        places = np.minimum(np.searchsorted(self._keys, keys), len(self._keys) - 1)
        return np.asarray((self._keys[places] == keys) & self._fused[places])


def _pairs(features: Rows) -> NDArray[np.float64]:
    before, after = features[:, _AT["source_operator"]], features[:, _AT["target_operator"]]
    return np.asarray(_pair(before.astype(np.float64), after.astype(np.float64)))


def _pair(before: Codes, after: Codes) -> Codes:
    """One number for two operators."""
    return (before + 1) * _OPERATOR_CODES + after + 1


def _keys(features: Rows) -> NDArray[np.float64]:
    return _pairs(features) + features[:, _AT["runtime"]] * _OPERATOR_CODES**2
