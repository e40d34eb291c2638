"""Predictors: piecewise linear encoding: how far each size has come through the bins between its quantiles.

Source: Y. Gorishniy, I. Rubachev, A. Babenko, On Embeddings for Numerical Features in Tabular Deep Learning, NeurIPS
2022. The time of a kernel has steps where a size passes a limit (a tile, a wave of blocks). A network on raw sizes
smooths these steps; with one input for each bin it can bend at every bin edge.

Limits: the edges are quantiles of the training rows. A size beyond the largest one changes none of the bins, only the
plain column beside them, so the network extrapolates linearly there.
"""

import numpy as np
from numpy.typing import NDArray

from foretell.features.encoded import MEASURED_WIDTH
from foretell.frozen import dataclass

_EVERY = 7  # quantiles are taken over every seventh row: neighbouring rows are alike

Numbers = NDArray[np.float32]


@dataclass(frozen=True)
class Bins:
    """One entry for each bin: the column it belongs to, where it begins, and how wide it is."""

    columns: NDArray[np.int64]
    lows: Numbers
    widths: Numbers

    @classmethod
    def of(cls, numbers: Numbers, count: int) -> "Bins":
        """At most ``count`` bins a column, with equally many rows each; a column of few values has few bins."""
        columns, lows, widths = [], [], []
        for column in range(MEASURED_WIDTH if count else 0):
            # equal quantiles collapse here: a column that is mostly one value has no bin of width 0
            edges = np.unique(np.quantile(numbers[::_EVERY, column], np.linspace(0.0, 1.0, count + 1)))
            columns += [column] * (len(edges) - 1)
            lows += edges[:-1].tolist()
            widths += np.diff(edges).tolist()
        return cls(np.array(columns, np.int64), np.array(lows, np.float32), np.array(widths, np.float32))

    def __len__(self) -> int:
        return len(self.columns)

    def with_positions(self, numbers: Numbers) -> Numbers:
        """The numbers, followed by the position of each within its bins: 0 before a bin, 1 after it."""
        through = np.asarray(np.take(numbers, self.columns, axis=1), np.float32)
        through -= self.lows
        through /= self.widths
        return np.concatenate([numbers, np.clip(through, 0.0, 1.0, out=through)], axis=1, dtype=np.float32)
