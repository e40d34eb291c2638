"""Training: fills: which part of the device the kernels of every traced unit of work hold, and for how long.

From the launch of a kernel follows how many of its blocks fit on an SM at a time, and so how many waves it runs in. All
waves but the last hold every place for blocks. The last one holds what is left of the grid; its blocks start as those
of the wave before end, at different times. So a kernel holds something between a full device and its mean over waves.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from foretell.devices import Device
from foretell.errors import DeviceError
from foretell.predictors.occupancy.launches import Launches, resident_blocks
from foretell.predictors.sample import Sample
from foretell.predictors.sharing.launches import UnitFills
from foretell.training.examples.launches import UnitLaunches
from foretell.training.fusion import fold_of

FILLS_VERSION = 2  # raise it when a unit gets other figures than before

Values = NDArray[np.float64]


@dataclass(frozen=True)
class TracedFills:
    """Traced units, what their kernels hold in the mean over their time, and the fold of their architecture."""

    features: NDArray[np.float32]
    held: UnitFills
    time_us: Values
    fold: NDArray[np.intp]

    def without(self, fold: int | None) -> tuple[NDArray[np.float32], UnitFills, Values]:
        """The units of all folds but one."""
        rows = np.flatnonzero(self.fold != (-1 if fold is None else fold))
        held = UnitFills(**{name: values[rows] for name, values in vars(self.held).items()})
        return self.features[rows], held, self.time_us[rows]


def held_by(launches: Launches, device: Device) -> tuple[Values, Values]:
    """For each kernel the share of the places for blocks, and of the SMs, that it holds in the mean.

    >>> from foretell.devices import find_device
    >>> one = (np.array([number]) for number in (66.0, 32.0, 32.0, 0.0, 10.0))
    >>> held_by(Launches(*one, np.zeros(1, np.intp)), find_device("h200"))
    (array([0.25]), array([0.5]))
    """
    if device.limits is None:
        raise DeviceError(f"{device.id} has no SMs that kernels could fill; name a GPU.")
    waves = launches.blocks / (device.sms * resident_blocks(launches, device.limits))
    # halfway: with real launches that predicts measured slowdowns better than either end
    fill = 0.5 * (np.minimum(waves, 1.0) + waves / np.ceil(waves))
    return fill, np.minimum(launches.blocks / device.sms, 1.0)


def unit_fills(samples: Sequence[Sample], traced: UnitLaunches, device: Device) -> TracedFills:
    """The fills of all traced units."""
    fill, spread = held_by(traced.launches, device)
    first = np.cumsum([0, *(len(sample.units) for sample in samples)])
    place = {sample.workload_id: number for number, sample in enumerate(samples)}
    numbers = np.array([place.get(name, -1) for name in traced.workload_ids], np.intp)
    known = numbers[traced.workload] >= 0
    row = (first[numbers[traced.workload]] + traced.unit)[known]
    kernel_us, kernels = traced.launches.time_us[known], traced.kernels[known]
    count = int(first[-1])

    def total(values: Values) -> Values:
        return np.asarray(np.bincount(row, values, count), np.float64)

    time_us = total(kernel_us * kernels)
    found = np.flatnonzero(time_us > 0)
    longest_us = np.zeros(count)
    np.maximum.at(longest_us, row, kernel_us)
    # equal units are one row: its times and kernels are those of all of them
    counts = np.concatenate([sample.units.counts for sample in samples])
    features = np.concatenate([sample.units.features for sample in samples])
    fold = np.repeat([fold_of(sample.spec) for sample in samples], np.diff(first))
    return TracedFills(
        features[found],
        UnitFills(
            total(fill[known] * kernel_us * kernels)[found] / time_us[found],
            total(spread[known] * kernel_us * kernels)[found] / time_us[found],
            np.minimum(longest_us * counts, time_us)[found] / time_us[found],
            np.maximum(total(kernels)[found] / counts[found], 1.0),
        ),
        (time_us / counts)[found],
        fold[found],
    )
