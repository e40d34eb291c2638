"""predictors: sizes as a network takes them best: how far each has come through the bins between its quantiles.

Y. Gorishniy, I. Rubachev, A. Babenko: On Embeddings for Numerical Features in Tabular Deep Learning, NeurIPS 2022. A
kernel's time has steps where a size passes a limit; a line through bins bends there, a product of weights does not.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from foretell.features.encoded import MEASURED_WIDTH

_EVERY = 7  # rows that are looked at for quantiles: neighbours are alike

Numbers = NDArray[np.float32]


@dataclass(frozen=True)
class Bins:
    """A column for each bin: which column of the numbers it is of, where it begins and how wide it is."""

    columns: NDArray[np.int64]
    lows: Numbers
    widths: Numbers

    @classmethod
    def of(cls, numbers: Numbers, count: int) -> "Bins":
        """At most ``count`` bins a size, each with as many rows; what has few values has few bins."""
        columns, lows, widths = [], [], []
        for column in range(MEASURED_WIDTH if count else 0):
            edges = np.unique(np.quantile(numbers[::_EVERY, column], np.linspace(0.0, 1.0, count + 1)))
            columns += [column] * (len(edges) - 1)
            lows += edges[:-1].tolist()
            widths += np.diff(edges).tolist()
        return cls(np.array(columns, np.int64), np.array(lows, np.float32), np.array(widths, np.float32))

    def __len__(self) -> int:
        return len(self.columns)

    def beside(self, numbers: Numbers) -> Numbers:
        """The numbers, and beside them how far each size is through each of its bins: 0 before it, 1 behind it."""
        through = np.clip((numbers[:, self.columns] - self.lows) / self.widths, 0.0, 1.0)
        return np.concatenate([numbers, through], axis=1, dtype=np.float32)
