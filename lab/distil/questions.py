"""Lab: distil: units as networks read them, and units between units, that a teacher is asked about.

A teacher answers about any unit, also about one that no network has. Two units of the same operator, precision and kind
of sizes have others between them: sizes are logarithms there, so the middle of 64 and 256 channels is 128. Flags (is a
size a multiple of 8, how full is the last tile) cannot be mixed, and are those of the nearer one. After H. Zhang et
al., mixup: Beyond Empirical Risk Minimization, 2018; here the answer is not mixed but asked for.
"""

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from foretell.features.encoded import CATEGORIES_WIDTH, ENCODED_WIDTH, MEASURED_WIDTH, PLAIN, Encoded, encode
from foretell.features.reuse import MOVED_IN_ALL
from lab.distil.rows import Rows

_MOVED = PLAIN.index(MOVED_IN_ALL)
_CATEGORIES = slice(ENCODED_WIDTH - CATEGORIES_WIDTH, ENCODED_WIDTH)
_CHUNK = 65_536


@dataclass(frozen=True)
class Questions:
    """Units as the newest network reads them; ``moved`` are the bytes of their run as older ones do."""

    encoded: Encoded
    bound_us: NDArray[np.float64]
    moved: NDArray[np.float32]

    def __len__(self) -> int:
        return len(self.bound_us)

    @classmethod
    def about(cls, rows: Rows) -> "Questions":
        """The rows, encoded."""
        return replace(cls.of_units(rows.features, rows.bound_us), moved=rows.moved.astype(np.float32))

    @classmethod
    def of_units(cls, features: NDArray[np.float32], bound_us: NDArray[np.float64]) -> "Questions":
        """Units for teachers that all read them alike."""
        parts = [encode(features[start : start + _CHUNK]) for start in range(0, len(features), _CHUNK)]
        numbers, operators, launches = (
            np.concatenate([getattr(part, name) for part in parts]) for name in ("numbers", "operators", "launches")
        )
        return cls(Encoded(numbers, operators, launches), bound_us, numbers[:, _MOVED])

    @property
    def unrounded(self) -> Encoded:
        """The units as older networks read them."""
        numbers = self.encoded.numbers.copy()
        numbers[:, _MOVED] = self.moved
        return replace(self.encoded, numbers=numbers)

    def of(self, rows: slice | NDArray[np.intp]) -> "Questions":
        """Some of them."""
        own = self.encoded
        encoded = Encoded(own.numbers[rows], own.operators[rows], own.launches[rows])
        return Questions(encoded, self.bound_us[rows], self.moved[rows])

    def with_more(self, other: "Questions") -> "Questions":
        """These, then the others."""
        pairs = (
            (getattr(self.encoded, name), getattr(other.encoded, name)) for name in ("numbers", "operators", "launches")
        )
        encoded = Encoded(*(np.concatenate(pair) for pair in pairs))
        return Questions(
            encoded, np.concatenate([self.bound_us, other.bound_us]), np.concatenate([self.moved, other.moved])
        )


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
        questions.moved[first] + way * (questions.moved[second] - questions.moved[first]),
    )
    return made, np.stack([first, second], axis=1)
