"""The clock that a load allows: full where the limit is far, lower for a heavier load, never below the base clock's."""

import numpy as np
import pytest

from foretell.devices import find_device
from foretell.predictors.transfer.clock import (
    UNKNOWN_BASE,
    base_share,
    squared_voltage,
    sustained_share,
    vector_share,
)


def held(load: float, base: float) -> float:
    return float(sustained_share(lambda share: load * share, np.array([base]))[0])


def test_the_heaviest_load_runs_at_the_base_clock() -> None:
    for base in (0.37, 0.6, 0.9):
        assert held(1.0, base) == pytest.approx(base, abs=1e-3)


def test_a_heavier_load_has_a_lower_clock_and_a_light_one_all_of_it() -> None:
    shares = [held(load, 0.44) for load in (0.1, 0.5, 0.7, 0.9)]
    assert shares == sorted(shares, reverse=True)
    assert shares[0] == 1.0
    assert shares[-1] < 0.6


def test_it_follows_the_curve_of_a_lowered_power_limit() -> None:
    # a bert on a V100 (Zeus): 1.18 times slower at 146 of 226 W; 40 W are drawn without work
    power = (146 - 40) / (226 - 40)
    shares = np.linspace(0.5, 1.0, 501)
    share = shares[np.argmin(np.abs(shares * squared_voltage(shares) - power))]
    assert share == pytest.approx(1 / 1.18, abs=0.03)


def test_facts_of_devices() -> None:
    assert base_share(find_device("b200")) == UNKNOWN_BASE
    assert vector_share(find_device("p100")) == 1.0  # without tensor cores
    assert vector_share(find_device("a100")) == pytest.approx(0.5)
