"""Predictors: what counts of the GPU on which a workload runs, beside the one that was measured."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from foretell.devices import Device, Hardware
from foretell.predictors.transfer.clock import base_share, vector_share
from foretell.units import bytes_from_mib

MEMORIES = ("stacked", "stacked, old", "checked", "plain")
_STACKED = ("6.0", "7.0", "8.0", "9.0", "10.0", "10.3")  # compute capabilities of the chips with HBM
_OLD, _AMPERE = "6.", (8, 0)
# an assumption: an L2 cache is as fast as the SMs that it feeds (1), or as the memory behind it (0); between
# 0.25 and 0.5 an L40S, whose L2 is large and whose memory is slow, is told alike
_CACHE_FOLLOWS_SMS = 0.5

Values = NDArray[np.float64]


def memory_kind(device: Device) -> str:
    """The kind of a device's memory: HBM, or GDDR, which keeps its error-correcting codes beside the data.

    GeForce cards have no such codes.

    >>> from foretell.devices import find_device
    >>> [memory_kind(find_device(name)) for name in ("h200", "p100", "t4", "rtx-4090")]
    ['stacked', 'stacked, old', 'checked', 'plain']
    """
    if device.compute_capability in _STACKED:
        return "stacked, old" if device.compute_capability.startswith(_OLD) else "stacked"
    return "plain" if "GeForce" in device.name else "checked"


def _capability(device: Device) -> tuple[int, ...]:
    return tuple(int(part) for part in (device.compute_capability or "0").split("."))


@dataclass(frozen=True)
class Places:
    """What counts of the devices on which workloads run, a value each workload."""

    base: Values
    memory: NDArray[np.intp]  # a position in `MEMORIES`
    vector: Values  # what vector units draw as a share of what tensor cores draw
    clock: Values  # boost clock of the measured device / that of this one
    sms: Values  # SMs of the measured device / those that the workload can use
    part: Values  # the share of its SMs that the workload can use
    l2: Values  # log2 of the bytes of its L2 cache
    older: Values  # 1 where the architecture is older than the measured device's, else 0
    oldest: Values  # 1 where it is older than Ampere
    lanes: Values  # vector lanes of an SM of the measured device / those of one of this
    cache: Values  # how fast its L2 cache is beside its memory, over the same of the measured device; 1 or more

    @classmethod
    def of(cls, hardware: Hardware, source: Device) -> "Places":
        """Those of one workload."""
        return cls.of_many([hardware], source)

    @classmethod
    def of_many(cls, places: Sequence[Hardware], source: Device) -> "Places":
        """Those of several workloads."""
        base, memory, *rest = zip(*(_place(hardware, source) for hardware in places), strict=True)
        return cls(np.array(base), np.array(memory, np.intp), *(np.array(numbers) for numbers in rest))


def _lanes(device: Device) -> float:
    """How many FP32 operations an SM starts in a cycle of the boost clock: 64 on an A100, 128 on an H200."""
    return device.vector_tflops["fp32"] / (device.sms * (device.boost_clock_mhz or 1.0))


def _place(hardware: Hardware, source: Device) -> tuple[float, ...]:
    """A row of `Places`."""
    device, l2 = hardware.device, math.log2(bytes_from_mib(hardware.l2_mib))
    is_older, is_oldest = (float(_capability(device) < limit) for limit in (_capability(source), _AMPERE))
    clock = (source.boost_clock_mhz or 0.0) / (device.boost_clock_mhz or 1.0)
    sms, bandwidth = hardware.sms / source.sms / clock, hardware.bandwidth_gb_per_s / source.bandwidth_gb_per_s
    cache = max(1.0, sms / bandwidth) ** _CACHE_FOLLOWS_SMS
    return (
        base_share(device), MEMORIES.index(memory_kind(device)), vector_share(device), clock,
        source.sms / hardware.sms, hardware.sm_fraction, l2, is_older, is_oldest, _lanes(source) / _lanes(device),
        cache,
    )  # fmt: skip
