"""Predictors: adapted: units of work in the words of adaptation: their class, and how alike two of them are.

A factor is learned for all units, for each class, and for units that are alike. The last is a kernel: two units of one
class, phase and precision are alike by how close their sizes are, in octaves. The kernel is spread out as random
Fourier features (A. Rahimi and B. Recht, Random Features for Large-Scale Kernel Machines, NIPS 2007): the product of
two rows is the likeness of two units, so that everything that follows is linear algebra on rows of fixed width.
"""

from dataclasses import dataclass
from functools import cache

import numpy as np
from numpy.typing import NDArray

from foretell.features.pooled import DistinctUnits
from foretell.features.units import COLUMNS, DTYPES, KINDS, PHASES

Values = NDArray[np.float64]

CLASSES = (
    "products", "convolutions", "grouped convolutions", "depthwise convolutions", "attention", "elementwise",
    "normalisations", "reductions", "pooling", "copies", "recurrences", "other",
)  # fmt: skip
_OF_KIND = {
    "contraction": "products", "attention": "attention", "elementwise": "elementwise",
    "normalisation": "normalisations", "reduction": "reductions", "pooling": "pooling", "movement": "copies",
    "recurrent": "recurrences",
}  # fmt: skip
# The sizes by which units are alike, and how far apart (in their own unit, mostly octaves) two of them may lie: about
# one and a half standard deviations over the units of timm's models.
_LENGTHS = {
    "log_intensity": 8.0, "log_read_bytes": 7.0, "log_written_bytes": 7.0, "kernel": 2.5, "stride": 2.0, "log_m": 13.0,
    "log_n": 6.5, "log_k": 6.5, "log_row": 9.0, "merged_axes": 2.0, "innermost_stride": 4.0,
}  # fmt: skip
_MOST = 40.0  # no size counts beyond so many octaves: a convolution's kernel is not a logarithm
_RATIO_LENGTH, _TIME_LENGTH = 1.2, 6.0  # octaves of time over bound, and of time
SIMILARITIES = 256
WIDTH = 1 + len(CLASSES) + SIMILARITIES
_SEED = 20261116
_AT = {name: position for position, name in enumerate(COLUMNS)}


@dataclass(frozen=True)
class Work:
    """A workload's units as rows of `WIDTH` columns, and what the base says that all equal ones take together."""

    rows: NDArray[np.float32]
    spent_us: Values

    @property
    def shares(self) -> Values:
        """The share of the time in each class, in the order of `CLASSES`."""
        return np.asarray(self.spent_us @ self.rows[:, 1 : 1 + len(CLASSES)] / self.spent_us.sum())


def work_of(units: DistinctUnits, unit_us: Values) -> Work:
    """The units of a workload, given what the base predicts for each."""
    return Work(described(units, unit_us), unit_us * units.counts)


def classes_of(features: NDArray[np.float32]) -> NDArray[np.intp]:
    """The position in `CLASSES` of each unit."""
    by_kind = np.array([CLASSES.index(_OF_KIND.get(kind, "other")) for kind in KINDS])
    found = by_kind[features[:, _AT["kind"]].astype(int)]
    is_product = found == CLASSES.index("products")
    is_convolution = is_product & (features[:, _AT["kernel"]] > 0)
    is_grouped = is_convolution & (features[:, _AT["groups"]] > 1)
    found[is_convolution] = CLASSES.index("convolutions")
    found[is_grouped] = CLASSES.index("grouped convolutions")
    found[is_grouped & (features[:, _AT["group_inputs"]] <= 1)] = CLASSES.index("depthwise convolutions")
    return np.asarray(found, np.intp)


def described(units: DistinctUnits, unit_us: Values) -> NDArray[np.float32]:
    """One row for each unit: 1, its class, and its similarities."""
    features = units.features
    classes = classes_of(features)
    rows = np.zeros((len(features), WIDTH), np.float32)
    rows[:, 0] = 1.0
    rows[np.arange(len(features)), 1 + classes] = 1.0
    directions, phases, signs = _similarities()
    sizes = [np.clip(features[:, _AT[name]], -_MOST, _MOST) / length for name, length in _LENGTHS.items()]
    over_bound = np.log2(np.maximum(unit_us, 1e-4) / np.maximum(units.bound_us, 1e-4))
    sizes += [over_bound / _RATIO_LENGTH, np.log2(np.maximum(unit_us, 1e-4)) / _TIME_LENGTH]
    is_half = np.isin(features[:, _AT["dtype"]], [DTYPES.index("fp16"), DTYPES.index("bf16")]).astype(int)
    kinds = (classes * len(PHASES) + features[:, _AT["phase"]].astype(int)) * 2 + is_half
    waves = np.cos(np.stack(sizes, 1) @ directions + phases)
    rows[:, 1 + len(CLASSES) :] = np.sqrt(2.0 / SIMILARITIES) * waves * signs[kinds]
    return rows


@cache
def _similarities() -> tuple[Values, Values, Values]:
    """Random directions and phases, and random signs that make units of different kinds unlike.

    They are the same everywhere: numpy promises that the numbers of this old generator never change.
    """
    random = np.random.RandomState(_SEED)
    directions = random.standard_normal((len(_LENGTHS) + 2, SIMILARITIES))
    phases = random.uniform(0.0, 2 * np.pi, SIMILARITIES)
    signs = random.choice([-1.0, 1.0], (len(CLASSES) * len(PHASES) * 2, SIMILARITIES))
    return directions, phases, signs
