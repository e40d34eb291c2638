import time
import types

import pytest

from foretell.errors import MeasurementError
from foretell.profiling.trackers.nvml import Nvml, energy_from_edges, measure_energy


class FakeNvml:
    """500 W, in a counter that moves every 20 ms."""

    def __init__(self):
        self.start = time.perf_counter()

    def energy_mj(self):
        return int((time.perf_counter() - self.start) / 0.02) * 0.02 * 500_000


def test_power_is_the_slope_between_edges():
    def replay_for(seconds):
        time.sleep(seconds)
        return 100, seconds

    energy = measure_energy(FakeNvml(), replay_for, 0.6)  # type: ignore[arg-type]
    assert energy.power_w == pytest.approx(500, rel=0.15)
    assert energy.run_ms == pytest.approx(6.0)


def test_too_few_edges_are_an_error():
    with pytest.raises(MeasurementError, match="changed 1 times"):
        energy_from_edges([(0.5, 1.0)], 0.25, 1.0, 10, 1.0)


def test_the_utilisation_is_the_drivers_and_absent_where_it_does_not_tell():
    class Driver:
        class NVMLError(Exception):
            pass

        @staticmethod
        def nvmlDeviceGetUtilizationRates(handle):  # noqa: N802 the name in NVML
            if handle is None:
                raise Driver.NVMLError
            return types.SimpleNamespace(gpu=73, memory=12)

    nvml = Nvml()
    nvml._nvml = Driver
    assert nvml.utilisation_pct() is None
    nvml._handle = "gpu"
    assert nvml.utilisation_pct() == 73
