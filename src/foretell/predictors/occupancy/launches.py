"""Predictors: the occupancy of one kernel, from the way it is launched.

Idea. An SM holds as many blocks of a kernel as its registers, its shared memory, its warps and its places for blocks
allow (the CUDA occupancy calculator). If the grid is smaller, each SM that works holds its part of the grid. Together
this is the *full occupancy*: the most that a counter can show. The counter
(``sm__warps_active.avg.pct_of_peak_sustained_active``) averages over the cycles in which an SM has a warp, so idle SMs
do not count, and a grid of one block shows the warps of that block.

What a counter shows is lower: blocks start and end at different times. Counted kernels reach 98 % of the full occupancy
with a tenth of a wave and 68 % with one to one and a half waves. `fit_launches` learns this share from counted kernels.

Limits: fitted to one device. The sizes of allocations (256 registers, 128 bytes, 1 KiB of a block's shared memory for
the system) are those of compute capability 8.0 and later.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from foretell.devices import Device
from foretell.devices.device import SmLimits
from foretell.errors import DeviceError
from foretell.predictors.boosting import Booster, TreeFit
from foretell.units import KIB

WARP = 32
_REGISTER_UNIT = 256  # registers are given to a warp in such portions
_PARTITIONS = 4  # of an SM: each has a quarter of the registers
_SHARED_UNIT, _SHARED_SYSTEM = 128, KIB
_LEAST_PCT = 0.5  # counters round to 0.01; below this the logarithm would be noise
_FIT = TreeFit(
    rounds=150, leaves=63, learning_rate=0.1, least_in_leaf=20,
    others={"feature_fraction": 0.8, "bagging_fraction": 0.8, "bagging_freq": 1},
)  # fmt: skip

Values = NDArray[np.float64]


@dataclass(frozen=True)
class Launches:
    """Kernels as they were launched; ``algorithm`` is a code of the library and the algorithm of each."""

    blocks: Values
    warps: Values  # of a block
    registers: Values  # of a thread
    shared_bytes: Values  # of a block
    time_us: Values
    algorithm: NDArray[np.intp]

    def __len__(self) -> int:
        return len(self.blocks)

    def of(self, rows: NDArray[np.bool_]) -> "Launches":
        """Some of the kernels."""
        return Launches(**{name: values[rows] for name, values in vars(self).items()})


def resident_blocks(launches: Launches, limits: SmLimits) -> Values:
    """How many blocks of each kernel one SM can hold.

    >>> one = (np.array([float(number)]) for number in (1000, 12, 168, 229772, 10))
    >>> limits = SmLimits(max_warps=64, max_threads=2048, max_blocks=32, registers=65536, shared_memory_kib=228)
    >>> resident_blocks(Launches(*one, np.zeros(1, np.intp)), limits).tolist()
    [1.0]
    """
    warps = np.maximum(launches.warps, 1.0)
    of_warp = np.ceil(np.maximum(launches.registers, 1.0) * WARP / _REGISTER_UNIT) * _REGISTER_UNIT
    by_registers = np.floor(np.floor(limits.registers / _PARTITIONS / of_warp) * _PARTITIONS / warps)
    of_block = np.ceil((launches.shared_bytes + _SHARED_SYSTEM) / _SHARED_UNIT) * _SHARED_UNIT
    by_shared = np.floor(limits.shared_memory_kib * KIB / of_block)
    by_warps = np.floor(limits.max_warps / warps)
    # a kernel that ran held at least one block, whatever the rules say
    return np.clip(np.minimum(np.minimum(by_registers, by_shared), by_warps), 1.0, limits.max_blocks)


def full_occupancy(launches: Launches, device: Device) -> tuple[Values, Values]:
    """In per cent the occupancy that a large grid would reach at most, and the one that this grid can reach."""
    if device.limits is None:
        raise DeviceError(f"{device.id} has no SMs whose occupancy could be told; name a GPU.")
    held = resident_blocks(launches, device.limits)
    of_block = 100.0 * launches.warps / device.limits.max_warps
    given = np.maximum(launches.blocks / device.sms, 1.0)
    return held * of_block, np.minimum(held, given) * of_block


def describe_launches(launches: Launches, device: Device) -> NDArray[np.float32]:
    """The features of each kernel, for trees; the last one is the code of its algorithm."""
    assert device.limits is not None
    held = resident_blocks(launches, device.limits)
    large, _ = full_occupancy(launches, device)
    given = launches.blocks / device.sms
    waves = given / held
    # the time of one wave says whether starting and ending a block takes a large part of its life
    wave_us = launches.time_us / np.maximum(np.ceil(waves), 1.0)
    columns = (
        large, held, launches.warps, np.log2(launches.blocks), np.log2(waves), given, given / np.ceil(given),
        waves / np.ceil(waves), launches.registers, launches.shared_bytes, np.log2(launches.time_us), np.log2(wave_us),
        launches.algorithm,
    )  # fmt: skip
    return np.stack(columns, axis=1).astype(np.float32)


@dataclass(frozen=True)
class LaunchModel:
    """Trees for the share of its full occupancy that a kernel reaches, and what a counter adds to each duration."""

    trees: Booster
    device: Device
    added_us: float

    def occupancy_pct(self, launches: Launches) -> Values:
        """The occupancy of each kernel."""
        large, full = full_occupancy(launches, self.device)
        share = np.exp(np.asarray(self.trees.predict(describe_launches(launches, self.device))))
        return np.asarray(np.minimum(share * full, large))

    def counted_us(self, time_us: Values) -> Values:
        """How long each kernel takes under a counter that takes this long in a replay."""
        return time_us + self.added_us


def fit_launches(
    launches: Launches, occupancy_pct: Values, counted_us: Values, device: Device, fit: TreeFit = _FIT
) -> LaunchModel:
    """Learn from counted kernels; ``counted_us`` is how long each took while it was counted."""
    _, full = full_occupancy(launches, device)
    target = np.log(np.maximum(occupancy_pct, _LEAST_PCT) / full)
    rows = describe_launches(launches, device)
    trees = fit.fit(rows, target, np.sqrt(counted_us), categorical=(rows.shape[1] - 1,))
    return LaunchModel(trees, device, float(np.median(counted_us - launches.time_us)))
