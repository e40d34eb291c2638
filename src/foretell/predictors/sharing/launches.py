"""Predictors: which part of a GPU the kernels of a unit of work hold, predicted from the features of the unit.

Three shares describe a unit: ``fill`` of the places that SMs have for blocks, ``spread`` of the SMs that get a block,
and ``longest``, how much of its time its longest kernel takes. Traces have the grid, block, registers and shared memory
of every kernel, from which the first two follow; trees learn them, so that models that nobody traced have them too.
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
LAUNCH_SCHEMA = hashlib.sha256("|".join((SCHEMA, *SLICE_COLUMNS, *SHARES)).encode()).hexdigest()[:16]
FIT_VERSION = 1  # raise it when the trees are fitted in another way
_LEAST = 1.0 / 256  # no kernel holds nothing: one block on one of the SMs
_MOST_ROWS = 60_000
_FIT = TreeFit(rounds=120, leaves=31, least_in_leaf=30, objective="regression", others={"feature_fraction": 0.5})

Values = NDArray[np.float64]


@dataclass(frozen=True)
class UnitLaunches:
    """For each unit the shares of `SHARES`."""

    fill: Values
    spread: Values
    longest: Values


@dataclass(frozen=True)
class LaunchModel:
    """Trees for each of `SHARES`."""

    trees: tuple[Trees, Trees, Trees]

    @classmethod
    def load(cls, data: bytes) -> "LaunchModel":
        """Read what `to_bytes` wrote."""
        with np.load(io.BytesIO(data), allow_pickle=False) as arrays:
            fill, spread, longest = (Trees.load(arrays[name].tobytes()) for name in SHARES)
        return cls((fill, spread, longest))

    def to_bytes(self) -> bytes:
        """The trees as one .npz file."""
        data = io.BytesIO()
        named = zip(SHARES, self.trees, strict=True)
        arrays = {name: np.frombuffer(trees.to_bytes(), np.uint8) for name, trees in named}
        np.savez_compressed(data, allow_pickle=False, **arrays)
        return data.getvalue()

    def predict(self, features: NDArray[np.float32]) -> UnitLaunches:
        """The shares of each unit."""
        rows = describe_launches(features)
        fill, spread, longest = (np.clip(trees.predict(rows), _LEAST, 1.0) for trees in self.trees)
        # a kernel that fills all places has a block on every SM
        return UnitLaunches(fill, np.maximum(fill, spread), longest)


def describe_launches(features: NDArray[np.float32]) -> NDArray[np.float32]:
    """The rows that the trees see: the features of units, and their sizes in blocks."""
    # the time of a unit says more about its work than about its blocks, so it is left out: 1 µs for all
    sizes = describe_scaling(features, np.ones(len(features)), green=False)
    return np.concatenate([features, sizes.astype(np.float32)], axis=1)


def fit_launches(
    features: NDArray[np.float32], fill: Values, spread: Values, longest: Values, time_us: Values
) -> LaunchModel:
    """Fit trees to traced units; longer units weigh more."""
    chosen = np.arange(len(fill))
    if len(chosen) > _MOST_ROWS:
        chosen = np.random.default_rng(0).choice(len(fill), _MOST_ROWS, replace=False)
    rows, weight = describe_launches(features[chosen]), np.sqrt(time_us[chosen])
    first, second, third = (trees_of(_FIT.fit(rows, share[chosen], weight)) for share in (fill, spread, longest))
    return LaunchModel((first, second, third))
