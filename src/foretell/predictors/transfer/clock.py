"""Predictors: the clock that a GPU holds under load.

Idea. A GPU's power grows with its clock and with the square of its voltage, and it lowers both until it draws no more
than its limit. Makers state a base clock: the one that a card holds at its power limit under the heaviest load. So
base / boost says how much of the heaviest load fits into the limit, without watts: a T4 has 0.37, a V100 0.9. The load
of a workload is the share of the time in which arithmetic units are busy, weighted by how much they draw
(``tensor_demand``, ``vector_demand``; fitted). Its clock s, as a share of the boost clock, is the largest with

    load(s) · v(s) ≤ b · v(b),   b = base / boost,   v(s) = max(s, 0.8) ^ 2.7

v is the square of the voltage, which falls with the clock down to a floor. Floor and exponent were read off three GPUs
whose power limit was lowered step by step (V100, A40, RTX 6000 in the tables of J. You et al., Zeus, NSDI 2023): on a
V100 a bert trains 1.06 times slower at 83 % of the power, 1.18 times at 65 %, and from there on in proportion.

A limit that a user lowered (`limited_share`) is one of watts: what a workload draws beyond `BASE_SHARE_OF_TDP` of the
maker's limit follows the clock and the squared voltage down. Held against 565 runs on four GPUs of the same tables,
the time at a lowered limit is 8 % off where the limit binds; without the rule it is 19 % off
(``python -m lab.transfer.power_limits``).

Limits: heat is not seen. Where no base clock is known, `UNKNOWN_BASE` of the boost clock is taken.
"""

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from foretell.devices import Device
from foretell.predictors.roofline import BASE_SHARE_OF_TDP

FLOOR, EXPONENT = 0.8, 2.7
UNKNOWN_BASE = 0.8  # base / boost: the median of the cards of the catalogue that state both
_LEAST_SHARE = 0.2  # of the boost clock; no card falls lower
_STEPS = 20  # of the bisection: the share is exact to 1e-6
_VECTOR_FLOPS = 8.0  # an assumption: one FLOP of a vector unit draws as much as eight of a tensor core

Values = NDArray[np.float64]


def base_share(device: Device) -> float:
    """The base clock as a share of the boost clock.

    >>> from foretell.devices import find_device
    >>> [round(base_share(find_device(name)), 2) for name in ("t4", "l40s", "rtx-4090")]
    [0.37, 0.44, 0.89]
    """
    if not device.base_clock_mhz or not device.boost_clock_mhz:
        return UNKNOWN_BASE
    return min(1.0, device.base_clock_mhz / device.boost_clock_mhz)


def vector_share(device: Device) -> float:
    """How much its vector units draw at most, as a share of what its tensor cores draw."""
    tensor = device.peak_tflops("fp16", tensor_cores=True)
    return min(1.0, _VECTOR_FLOPS * device.peak_tflops("fp32", tensor_cores=False) / tensor)


def squared_voltage(share: Values) -> Values:
    """The square of the voltage at a share of the boost clock, 1 at the boost clock."""
    return np.maximum(share, FLOOR) ** EXPONENT


def limited_share(power_w: float, limit_w: float, rated_w: float) -> float:
    """The share of its clock that a workload keeps under a power limit, if it draws ``power_w`` without it.

    ``rated_w`` is the maker's limit.

    >>> [round(limited_share(400, watts, 450), 2) for watts in (450, 300, 225)]
    [1.0, 0.9, 0.76]
    """
    if power_w <= limit_w:
        return 1.0
    fixed_w = BASE_SHARE_OF_TDP * rated_w
    left = max(limit_w - fixed_w, 0.0) / (power_w - fixed_w)
    # the largest s with s · v(s) ≤ left
    share: float = left ** (1.0 / (1.0 + EXPONENT)) if left >= FLOOR ** (1.0 + EXPONENT) else left / FLOOR**EXPONENT
    return max(share, _LEAST_SHARE)


def sustained_share(load_at: Callable[[Values], Values], base: Values) -> Values:
    """The largest share of the boost clock at which each load stays within the power limit.

    ``load_at`` gives the load of each workload at a share of the clock; it must not fall as the clock rises.

    >>> sustained_share(lambda share: 0.5 * share, np.array([0.37, 0.9])).round(2).tolist()
    [0.74, 1.0]
    """
    limit = base * squared_voltage(base)
    low, high = np.full(len(base), _LEAST_SHARE), np.ones(len(base))
    unlimited = load_at(high) * squared_voltage(high) <= limit
    for _ in range(_STEPS):
        middle = (low + high) / 2
        within = load_at(middle) * squared_voltage(middle) <= limit
        low, high = np.where(within, middle, low), np.where(within, high, middle)
    return np.where(unlimited, 1.0, low)
