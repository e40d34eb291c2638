"""Predictors: the least time of a unit that its kernel allows, where that is far above the bound of the whole device.

PyTorch computes the mean and variance of a group of normalisation in one block of threads, whatever else the device
could do (``RowwiseMomentsCUDAKernel`` in ``group_norm_kernel.cu``). A block takes as long as its chain of additions: at
least 0.375 ns an element on an H200, in every precision; of 2,395 traced units of 32,768 elements in a group or more,
none was faster. A network that has seen few units with one large group may say less; then this floor holds.

Limits: measured on an H200. A device with another clock has another floor, so models of other devices have none.
"""

import numpy as np
from numpy.typing import NDArray

from foretell.features.operator_codes import operator_code
from foretell.features.units import COLUMNS, PHASES
from foretell.units import us

FLOORS_FROM = "h200"
_ONE_BLOCK = [operator_code(name) for name in ("GroupNormalization", "InstanceNormalization")]
_ELEMENT_US = us(0.375e-9)
_AT = {name: COLUMNS.index(name) for name in ("operator", "phase", "log_row")}


def least_us(features: NDArray[np.float32]) -> NDArray[np.float64]:
    """The least time of each unit that its kernel allows; 0 where none is known."""
    in_one_block = np.isin(features[:, _AT["operator"]], _ONE_BLOCK) & (
        features[:, _AT["phase"]] == PHASES.index("forward")
    )
    # sizes are log2(1 + size), −1 where a unit has none
    elements = np.exp2(np.maximum(features[:, _AT["log_row"]].astype(np.float64), 0.0)) - 1.0
    return np.where(in_one_block, elements * _ELEMENT_US, 0.0)
