"""Predictors: a job as others on the same GPU feel it: the kernels that it launches, one after the other.

Idea: what slows a neighbour is not how busy a job is on average. It is how long its kernels run without a break, and
which part of the device they hold meanwhile. So a job is a sequence of launches, each with its time, the places for
blocks that it holds, the SMs it is spread over, and its share of the memory bandwidth.
"""

import hashlib
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from foretell.predictors.sharing.launches import UnitFills
from foretell.predictors.slices.features import compute_shares, traffic_shares
from foretell.units import ms, seconds_from_us

MAX_LAUNCHES = 512  # longer sequences are sampled
GAP_US = 0.7  # between two kernels of a replayed graph: for so long a job holds nothing
# what MPS adds to a launch: of 133 workloads alone under MPS the latency is 7.1 % off without it, 3.0 % with it
MPS_LAUNCH_US = 0.45

Values = NDArray[np.float64]


@dataclass(frozen=True)
class Job:
    """The launches of one run in a random order, and the run as a whole; ``share`` of the SMs is its limit.

    ``gap_us`` has what MPS adds to a launch; ``time_us`` has not: it is the run without MPS.
    """

    work_us: Values
    gap_us: Values
    fill: Values
    spread: Values
    traffic: Values
    compute: Values
    time_us: float
    launches: float
    share: float = 1.0

    @cached_property
    def digest(self) -> str:
        """Equal jobs have equal digests."""
        arrays = (self.work_us, self.gap_us, self.fill, self.spread, self.traffic, np.array([self.share]))
        return hashlib.sha256(b"".join(array.tobytes() for array in arrays)).hexdigest()

    @property
    def mps_ms(self) -> float:
        """By how much MPS makes a run longer, without a limit of the SMs and with nobody beside it."""
        return ms(seconds_from_us(MPS_LAUNCH_US * self.launches))

    @property
    def run_us(self) -> float:
        """The time of a run without others, under MPS and under the job's own limit."""
        return float(self.alone_us.mean()) * self.launches

    @property
    def alone_us(self) -> Values:
        """The time of each launch without others, under the job's own limit."""
        return np.asarray(self.gap_us + self.work_us * (1.0 + self.spread * (1.0 / self.share - 1.0)))


def describe_job(
    features: NDArray[np.float32], counts: Values, unit_us: Values, held: UnitFills, share: float = 1.0
) -> Job:
    """The job of a workload's units, which occur ``counts`` times each."""
    launches = held.kernels
    # the longest kernel of a unit, and the others, which share the rest of its time
    longest = np.where(launches > 1, np.maximum(held.longest, 1.0 / launches), 1.0)
    rest_us = np.where(launches > 1, unit_us * (1.0 - longest) / np.maximum(launches - 1.0, 1.0), 0.0)
    time_us = np.concatenate([unit_us * longest, rest_us])
    times = np.concatenate([counts, counts * (launches - 1.0)])
    known = (time_us > 0) & (times > 0)
    unit = np.tile(np.arange(len(unit_us)), 2)[known]
    time_us, times = time_us[known], times[known]
    chosen = _sequence(times)
    gap_us = np.minimum(GAP_US, 0.5 * time_us)
    traffic, compute = traffic_shares(features, unit_us), compute_shares(features, unit_us)
    place = unit[chosen]
    return Job(
        (time_us - gap_us)[chosen],
        (gap_us + MPS_LAUNCH_US)[chosen],
        held.fill[place],
        held.spread[place],
        traffic[place],
        compute[place],
        float(unit_us @ counts),
        float(times.sum()),
        share,
    )


def _sequence(times: Values) -> NDArray[np.intp]:
    """Which launch comes when: each as often as it occurs, or at even distances if there are too many."""
    total = float(times.sum())
    count = int(min(max(round(total), 1), MAX_LAUNCHES))
    places = (np.arange(count) + 0.5) * (total / count)
    chosen = np.minimum(np.searchsorted(np.cumsum(times), places), len(times) - 1)
    return np.random.default_rng(0).permutation(chosen)
