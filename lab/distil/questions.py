"""Lab: distil: units as networks read them, and units between units, that a teacher is asked about.

A teacher answers about any unit, also about one that no network has. Two units of the same operator, precision and kind
of sizes have others between them: sizes are logarithms there, so the middle of 64 and 256 channels is 128. Flags (is a
size a multiple of 8, how full is the last tile) cannot be mixed, and are those of the nearer one. After H. Zhang et
al., mixup: Beyond Empirical Risk Minimization, 2018; here the answer is not mixed but asked for.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from foretell.features import COLUMNS
from foretell.features.encoded import CATEGORIES_WIDTH, ENCODED_WIDTH, MEASURED_WIDTH, Encoded, encode
from lab.distil.rows import Rows

_CATEGORIES = slice(ENCODED_WIDTH - CATEGORIES_WIDTH, ENCODED_WIDTH)
_CHUNK = 65_536


@dataclass(frozen=True)
class Questions:
    """Units as networks read them."""

    encoded: Encoded
    bound_us: NDArray[np.float64]

    def __len__(self) -> int:
        return len(self.bound_us)

    @classmethod
    def about(cls, rows: Rows) -> "Questions":
        """The rows, encoded."""
        return cls.of_units(rows.features, rows.bound_us)

    @classmethod
    def of_units(cls, features: NDArray[np.float32], bound_us: NDArray[np.float64]) -> "Questions":
        """Units, encoded."""
        parts = [encode(features[start : start + _CHUNK]) for start in range(0, len(features), _CHUNK)]
        numbers, operators, launches = (
            np.concatenate([getattr(part, name) for part in parts]) for name in ("numbers", "operators", "launches")
        )
        return cls(Encoded(numbers, operators, launches), bound_us)

    def of(self, rows: slice | NDArray[np.intp]) -> "Questions":
        """Some of them."""
        own = self.encoded
        return Questions(Encoded(own.numbers[rows], own.operators[rows], own.launches[rows]), self.bound_us[rows])

    def with_more(self, other: "Questions") -> "Questions":
        """These, then the others."""
        pairs = (
            (getattr(self.encoded, name), getattr(other.encoded, name)) for name in ("numbers", "operators", "launches")
        )
        encoded = Encoded(*(np.concatenate(pair) for pair in pairs))
        return Questions(encoded, np.concatenate([self.bound_us, other.bound_us]))


def between(questions: Questions, count: int, seed: int = 0) -> tuple[Questions, NDArray[np.intp]]:
    """``count`` units, each up to half of the way from one of the questions to another one of its kind; and which two.

    The places of the two are the columns of an array.
    """
    random = np.random.default_rng(seed)
    own = questions.encoded
    kind = np.column_stack([own.operators.astype(np.float32), own.numbers[:, _CATEGORIES]])
    _, group = np.unique(
        np.ascontiguousarray(kind).view(f"V{kind.itemsize * kind.shape[1]}").ravel(), return_inverse=True
    )
    order = np.argsort(group, kind="stable")
    starts = np.searchsorted(group[order], np.arange(group.max() + 2))
    first = random.integers(len(questions), size=count)
    of_group = group[first]
    second = order[random.integers(starts[of_group], starts[of_group + 1])]
    share = random.uniform(0.0, 0.5, (count, 1)).astype(np.float32)
    numbers = own.numbers[first]
    numbers[:, :MEASURED_WIDTH] += share * (own.numbers[second, :MEASURED_WIDTH] - numbers[:, :MEASURED_WIDTH])
    way = share[:, 0]
    log_us = np.log(questions.bound_us)
    made = Questions(
        Encoded(numbers, own.operators[first], own.launches[first]),
        np.exp(log_us[first] + way * (log_us[second] - log_us[first])),
    )
    return made, np.stack([first, second], axis=1)


def beyond(features: NDArray[np.float32], bound_us: NDArray[np.float64], octaves: float) -> Questions:
    """The units with all of their sizes so many octaves larger."""
    pushed = features.copy()
    sizes = [place for place, name in enumerate(COLUMNS) if name.startswith("log_")]
    pushed[:, sizes] = np.where(pushed[:, sizes] > 0, pushed[:, sizes] + np.float32(octaves), pushed[:, sizes])
    return Questions.of_units(pushed, bound_us * 2.0**octaves)
