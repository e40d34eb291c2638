"""Predictors: which part of a GPU the kernels of a unit of work hold, predicted from the features of the unit.

Four figures describe a unit: ``fill`` of the places that SMs have for blocks, ``spread`` of the SMs that get a block,
``longest``, how much of its time its longest kernel takes, and how many ``kernels`` it launches. Traces have the grid,
block, registers and shared memory of every kernel, from which these follow; trees learn them, so that models that
nobody traced have them too. The number of kernels matters most: between two kernels others get in.
"""

import hashlib
import io
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from foretell.features.units import SCHEMA
from foretell.predictors.boosting import TreeFit, trees_of
from foretell.predictors.slices.features import SLICE_COLUMNS, describe_scaling
from foretell.predictors.trees import Trees

SHARES = ("fill", "spread", "longest")
FIGURES = (*SHARES, "kernels")
LAUNCH_SCHEMA = hashlib.sha256("|".join((SCHEMA, *SLICE_COLUMNS, *FIGURES)).encode()).hexdigest()[:16]
FIT_VERSION = 2  # raise it when the trees are fitted in another way
_LEAST = 1.0 / 256  # no kernel holds nothing: one block on one of the SMs
_MOST_ROWS = 120_000
_FIT = TreeFit(
    rounds=160, leaves=63, learning_rate=0.12, least_in_leaf=20, objective="regression",
    others={"feature_fraction": 0.5},
)  # fmt: skip

Values = NDArray[np.float64]


@dataclass(frozen=True)
class UnitFills:
    """For each unit the figures of `FIGURES`."""

    fill: Values
    spread: Values
    longest: Values
    kernels: Values


@dataclass(frozen=True)
class LaunchModel:
    """Trees for each of `FIGURES`; those for kernels predict the logarithm to base 2."""

    trees: tuple[Trees, ...]

    @classmethod
    def load(cls, data: bytes) -> "LaunchModel":
        """Read what `to_bytes` wrote."""
        with np.load(io.BytesIO(data), allow_pickle=False) as arrays:
            return cls(tuple(Trees.load(arrays[name].tobytes()) for name in FIGURES))

    def to_bytes(self) -> bytes:
        """The trees as one .npz file."""
        data = io.BytesIO()
        named = zip(FIGURES, self.trees, strict=True)
        arrays = {name: np.frombuffer(trees.to_bytes(), np.uint8) for name, trees in named}
        np.savez_compressed(data, allow_pickle=False, **arrays)
        return data.getvalue()

    def predict(self, features: NDArray[np.float32]) -> UnitFills:
        """The figures of each unit."""
        rows = describe_launches(features)
        *shares, kernels = (trees.predict(rows) for trees in self.trees)
        fill, spread, longest = (np.clip(share, _LEAST, 1.0) for share in shares)
        # a kernel that fills all places has a block on every SM
        return UnitFills(fill, np.maximum(fill, spread), longest, np.maximum(np.round(np.exp2(kernels)), 1.0))


def describe_launches(features: NDArray[np.float32]) -> NDArray[np.float32]:
    """The rows that the trees see: the features of units, and their sizes in blocks."""
    # the time of a unit says more about its work than about its blocks, so it is left out: 1 µs for all
    sizes = describe_scaling(features, np.ones(len(features)), green=False)
    return np.concatenate([features, sizes.astype(np.float32)], axis=1)


def fit_launches(features: NDArray[np.float32], held: UnitFills, time_us: Values) -> LaunchModel:
    """Fit trees to traced units; longer units weigh more."""
    chosen = np.arange(len(features))
    if len(chosen) > _MOST_ROWS:
        chosen = np.random.default_rng(0).choice(len(features), _MOST_ROWS, replace=False)
    rows, weight = describe_launches(features[chosen]), np.sqrt(time_us[chosen])
    targets = (held.fill, held.spread, held.longest, np.log2(held.kernels))
    return LaunchModel(tuple(trees_of(_FIT.fit(rows, target[chosen], weight)) for target in targets))
