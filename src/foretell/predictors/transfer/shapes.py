"""Predictors: units in fp32 on older GPUs, whose libraries run other kernels than the measured device's.

Better or worse by the shape: a factor follows a few sizes of the unit, and products of two of them (`Shape`). Wide
convolutions have nothing in common with the measured device's, which runs them in TF32 on tensor cores. There the older
GPU's own peaks are the start (``from_peaks``), and the factor says what its libraries reach of them. Such convolutions
are mostly done by Winograd's algorithm, which needs 2.25 times fewer products (A. Lavin and S. Gray, Fast Algorithms
for Convolutional Neural Networks, CVPR 2016), so a card draws less power than their counted arithmetic says.

Nothing here depends on the size of a device, so one that has more of everything is never slower.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

import numpy as np
from numpy.typing import NDArray

from foretell.features import COLUMNS
from foretell.features.operator_codes import operator_code
from foretell.features.units import DTYPES

OVER_BOUND = "log_over_bound"  # of a size: the time on the measured device over what its peaks need
WINOGRAD_WORK = 1 / 2.25  # of the counted products
_FARTHEST = 2.0  # standard deviations of a size beyond which it counts no more
_AT = {name: position for position, name in enumerate(COLUMNS)}

Values = NDArray[np.float64]


@dataclass(frozen=True)
class ShapedKind:
    """Units in fp32 whose factor on older GPUs follows some of their ``sizes``."""

    kind: str  # one of `foretell.predictors.transfer.model.CLASSES`
    sizes: tuple[str, ...]
    operators: tuple[str, ...] = ()  # of these alone; all without any
    least_window: int = 0
    is_batched: bool = False
    from_peaks: bool = False  # of the GPU itself, and on GPUs older than Ampere alone


SHAPED: Mapping[str, ShapedKind] = MappingProxyType(
    {
        "batched product": ShapedKind(
            "product", ("log_output", "log_n", "log_k", "log_m", "log_many", OVER_BOUND), is_batched=True
        ),
        "wide convolution": ShapedKind(
            "convolution", ("log_m", "log_n", "log_k", "log_output", "log_intensity"), least_window=3, from_peaks=True
        ),
        # the code of the operator tells the two apart
        "rows": ShapedKind(
            "rows", ("operator", "log_row", "log_output", OVER_BOUND), operators=("Softmax", "LayerNormalization")
        ),
    }
)


@dataclass(frozen=True)
class Shape:
    """The logarithm of a factor: ``level``, and a term for each size and each product of two."""

    means: Sequence[float]
    deviations: Sequence[float]
    level: float
    terms: Sequence[float]

    def logs(self, sizes: Values) -> Values:
        """The logarithms for some units, a row each."""
        return np.asarray(self.level + products(sizes, self.means, self.deviations) @ np.asarray(self.terms))


def products(sizes: Values, means: Sequence[float], deviations: Sequence[float]) -> Values:
    """Sizes in standard deviations from their means, and all products of two.

    Far sizes count as near ones, so that nothing is extrapolated.

    >>> products(np.array([[3.0, 9.0]]), (1.0, 1.0), (1.0, 4.0)).tolist()
    [[2.0, 2.0, 4.0, 4.0, 4.0]]
    """
    near = np.clip((sizes - np.asarray(means)) / np.asarray(deviations), -_FARTHEST, _FARTHEST)
    one, other = np.triu_indices(near.shape[1])
    return np.concatenate([near, near[:, one] * near[:, other]], axis=1)


def sizes_of(name: str, features: NDArray[np.float32], source_us: Values) -> Values:
    """The sizes of units that `SHAPED` names, a row each."""
    found = []
    for size in SHAPED[name].sizes:
        if size == OVER_BOUND:
            bound = np.maximum(features[:, _AT["log_compute_us"]], features[:, _AT["log_memory_us"]])
            found.append(np.log2(np.maximum(source_us, 1e-6)) - bound)
        else:
            found.append(features[:, _AT[size]].astype(np.float64))
    return np.stack(found, axis=1)


def is_shaped(name: str, features: NDArray[np.float32], of_kind: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Whether each unit is one of a name of `SHAPED`; ``of_kind`` says whether its class is that one's."""
    shaped = SHAPED[name]
    operator, dtype, kernel, many = (features[:, _AT[column]] for column in ("operator", "dtype", "kernel", "log_many"))
    found = of_kind & (dtype == DTYPES.index("fp32"))
    if shaped.operators:
        found &= np.isin(operator, [operator_code(name) for name in shaped.operators])
    if shaped.least_window:
        found &= kernel >= shaped.least_window
    return np.asarray(found & (many > 1.0) if shaped.is_batched else found)


def read_shape(name: str, data: Mapping[str, object]) -> Shape:
    """The shape that a fitted file has under a name; ValueError if it cannot be one."""
    shape = Shape(**data)  # type: ignore[arg-type]
    count = len(SHAPED[name].sizes) if name in SHAPED else 0
    lengths = (len(shape.means), len(shape.deviations), len(shape.terms))
    if not count or lengths != (count, count, count + count * (count + 1) // 2):
        raise ValueError(f"it has a shape of {name!r} that this foretell does not know")
    if not all(map(math.isfinite, (shape.level, *shape.means, *shape.terms))) or min(shape.deviations) <= 0:
        raise ValueError(f"the shape of {name!r} has a number that cannot be")
    return shape
