"""Predictors: the distinct units of many samples, stacked into one set of arrays."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from foretell.predictors.sample import Sample
from foretell.units import KILO

Values = NDArray[np.float64]
Flags = NDArray[np.bool_]


@dataclass(frozen=True)
class UnitRows:
    """All units of some samples, one row each; what is not known is NaN.

    ``owner`` is the number of the sample of each row, and sample ``i`` has the rows ``starts[i]`` to ``starts[i + 1]``.
    ``is_replayed`` flags the samples whose replay was timed as a whole.
    """

    features: NDArray[np.float32]
    counts: Values
    bound_us: Values
    traced_us: Values
    owner: NDArray[np.intp]
    starts: NDArray[np.intp]
    latency_us: Values
    power_w: Values
    is_replayed: Flags

    @classmethod
    def of(cls, samples: Sequence[Sample]) -> "UnitRows":
        """The rows of some samples, in the order of the samples."""
        sizes = [len(sample.units) for sample in samples]
        traces = [np.full(len(s.units), np.nan) if s.unit_us is None else s.unit_us for s in samples]
        latency_us = np.array([sample.truth["latency_ms"] for sample in samples], dtype=np.float64) * KILO
        captured = np.array([sample.captured for sample in samples], dtype=bool)
        return cls(
            features=np.concatenate([sample.units.features for sample in samples]),
            counts=np.concatenate([sample.units.counts for sample in samples]),
            bound_us=np.concatenate([sample.units.bound_us for sample in samples]),
            traced_us=np.concatenate(traces),
            owner=np.repeat(np.arange(len(samples)), sizes),
            starts=np.concatenate([[0], np.cumsum(sizes)]).astype(np.intp),
            latency_us=latency_us,
            power_w=np.array([sample.truth["power_w"] for sample in samples], dtype=np.float64),
            is_replayed=captured & np.isfinite(latency_us),
        )

    @property
    def is_traced(self) -> Flags:
        """Which rows have a time from a trace."""
        return np.asarray(self.traced_us > 0)

    def sums(self, unit_us: Values) -> Values:
        """The time of each sample: the sum of its units."""
        return np.asarray(np.add.reduceat(unit_us * self.counts, self.starts[:-1]))

    def means(self, unit_us: Values, values: Values) -> Values:
        """A value for each sample: the mean over its units, weighted by their time."""
        return self.sums(unit_us * values) / self.sums(unit_us)

    def part(self, sample: int) -> slice:
        """The rows of one sample."""
        return slice(int(self.starts[sample]), int(self.starts[sample + 1]))
