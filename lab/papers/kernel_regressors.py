"""Lab: kernel regressors, as nn-Meter has them (L. Zhang et al., MobiSys 2021): a random forest for every kernel.

The latency of a model is the sum of its kernels. A kernel is what the runtime launches together; in eager mode that is
one call of PyTorch, and no fusion rule applies. A forest reads the sizes that nn-Meter reads: images, channels,
windows, strides, parameters and FLOPs. It knows no bound of the device, no tiles and no alignment. There is one forest
for each operator and type; where rows are too few, one for the operator, and where these are too few, one for all.
"""

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from foretell.errors import DataError
from foretell.features.units import COLUMNS
from foretell.predictors.boosting import Booster, TreeFit

SIZES = (
    "log_flops", "log_parameter_bytes", "inputs", "input_rank", "log_input", "log_output", "log_second", "batch",
    "channels", "inner", "kernel", "kernel_last", "stride", "groups", "dilation", "group_inputs", "group_outputs",
    "side", "log_m", "log_n", "log_k", "log_many", "log_heads", "queries", "keys", "head_size", "steps", "layers",
    "directions", "log_rows", "log_row", "window",
)  # fmt: skip
MIN_ROWS = 40  # the least number of rows for a forest
FOREST = TreeFit(
    rounds=100, leaves=255, least_in_leaf=2,
    others={"boosting": "rf", "bagging_fraction": 0.7, "bagging_freq": 1, "feature_fraction_bynode": 0.6},
)  # fmt: skip
_AT = {name: position for position, name in enumerate(COLUMNS)}
_CHOSEN = [_AT[name] for name in SIZES]
_KERNEL = [_AT["operator"], _AT["dtype"]]

Rows = NDArray[np.float32]
Values = NDArray[np.float64]
Kernel = tuple[int, ...]  # (operator, type), (operator,) or (): all


class KernelRegressors:
    """Forests by kernel; they predict microseconds."""

    def __init__(self, forests: dict[Kernel, Booster]) -> None:
        self._forests = forests

    @classmethod
    def fit(cls, features: Rows, time_us: Values) -> "KernelRegressors":
        """Fit forests to rows of `foretell.features.COLUMNS` and the time of each unit."""
        if not len(features):
            raise DataError("No unit has a traced time, so no forest can be fitted; collect traces first.")
        forests = {}
        for depth in range(len(_KERNEL) + 1):
            for kernel, rows in _by_kernel(features, depth):
                # depth 0 is the forest for all kernels, which always exists
                if len(rows) >= MIN_ROWS or not depth:
                    forests[kernel] = FOREST.fit(features[rows][:, _CHOSEN], np.log(time_us[rows]))
        return cls(forests)

    def predict(self, features: Rows) -> Values:
        """The time of each unit in microseconds."""
        predicted_us = np.zeros(len(features))
        for kernel, rows in _by_kernel(features, len(_KERNEL)):
            # the most specific forest that exists
            known = next(k for k in (kernel, kernel[:1], ()) if k in self._forests)
            predicted_us[rows] = np.exp(self._forests[known].predict(features[rows][:, _CHOSEN]))
        return predicted_us


def _by_kernel(features: Rows, depth: int) -> Iterator[tuple[Kernel, NDArray[np.intp]]]:
    keys, place = np.unique(features[:, _KERNEL[:depth]].astype(np.int64), axis=0, return_inverse=True)
    for number, key in enumerate(keys.tolist()):
        yield tuple(key), np.flatnonzero(place.ravel() == number)
