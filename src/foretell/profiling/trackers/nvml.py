"""Profiling: NVML: what the driver knows about a GPU: memory in use, clocks, power, and the energy counter."""

import os
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from foretell.errors import MeasurementError
from foretell.optional import require
from foretell.units import KILO, mib

_POLL_S = 0.005


@dataclass(frozen=True)
class Energy:
    """Mean power between two edges of the counter, and the time of one run in between."""

    power_w: float
    window_s: float
    run_ms: float
    runs: int


class Nvml:
    """One GPU as NVML shows it. ``open`` raises where there is no driver."""

    def __init__(self, index: int | None = None) -> None:
        self._index = index
        self._nvml: Any = None
        self._handle: Any = None

    def open(self) -> None:
        """Connect to the driver."""
        self._nvml = require("pynvml", extra="profile", purpose="Reading power and memory from the driver")
        try:
            self._nvml.nvmlInit()
            self._handle = self._find()
        except self._nvml.NVMLError as error:
            raise MeasurementError(f"The driver does not answer: {error}.") from error

    def _find(self) -> Any:
        """The requested device, or the first one that this process may use: a cluster gives each task its own."""
        if self._index is not None:
            return self._nvml.nvmlDeviceGetHandleByIndex(self._index)
        first = os.environ.get("CUDA_VISIBLE_DEVICES", "").partition(",")[0].strip()
        if first.startswith("GPU-"):
            return self._nvml.nvmlDeviceGetHandleByUUID(first)
        return self._nvml.nvmlDeviceGetHandleByIndex(int(first) if first.isdigit() else 0)

    def _query(self, name: str, *args: Any) -> Any:
        try:
            return getattr(self._nvml, name)(self._handle, *args)
        except self._nvml.NVMLError:  # this driver or this machine does not offer the reading
            return None

    def used_mib(self) -> float | None:
        """Memory in use on the whole device."""
        info = self._query("nvmlDeviceGetMemoryInfo")
        return None if info is None else mib(info.used)

    def process_mib(self) -> float | None:
        """Memory in use by this process, its context included."""
        for process in self._query("nvmlDeviceGetComputeRunningProcesses") or ():
            if process.pid == os.getpid() and process.usedGpuMemory is not None:
                return mib(process.usedGpuMemory)
        return None

    def clock_mhz(self) -> int | None:
        """The current clock of the multiprocessors."""
        value = self._query("nvmlDeviceGetClockInfo", self._nvml.NVML_CLOCK_SM)
        return None if value is None else int(value)

    def utilisation_pct(self) -> int | None:
        """The share of the driver's last period, a sixth of a second to a second, in which any kernel ran."""
        rates = self._query("nvmlDeviceGetUtilizationRates")
        return None if rates is None else int(rates.gpu)

    def facts(self) -> dict[str, object]:
        """Facts that stay the same during a campaign."""
        nvml = self._nvml
        limit = self._query("nvmlDeviceGetEnforcedPowerLimit")
        return {
            "device_name": _text(self._query("nvmlDeviceGetName")),
            "driver": _text(nvml.nvmlSystemGetDriverVersion()),
            "power_limit_w": None if limit is None else limit / KILO,
            "max_clock_mhz": self._query("nvmlDeviceGetMaxClockInfo", nvml.NVML_CLOCK_SM),
            "memory_clock_mhz": self._query("nvmlDeviceGetClockInfo", nvml.NVML_CLOCK_MEM),
            "device_used_before_mib": self.used_mib(),
        }

    def energy_mj(self) -> float:
        """The energy counter, in millijoules."""
        value = self._query("nvmlDeviceGetTotalEnergyConsumption")
        if value is None:
            raise MeasurementError("This device has no energy counter.")
        return float(value)


def _text(value: Any) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)


def measure_energy(nvml: Nvml, replay_for: Callable[[float], tuple[int, float]], seconds: float) -> Energy:
    """The power while ``replay_for(seconds)`` keeps the device busy; that returns its runs and their seconds.

    The counter changes about every 100 ms and a read costs milliseconds, so a thread reads it and records the changes.
    The first quarter of a second is dropped, because power is still rising.
    """
    edges: list[tuple[float, float]] = []
    stop = threading.Event()
    started = time.perf_counter()

    def watch() -> None:
        last = nvml.energy_mj()
        while not stop.wait(_POLL_S):
            now = nvml.energy_mj()
            if now != last:
                edges.append((time.perf_counter(), now))
                last = now

    thread = threading.Thread(target=watch, daemon=True)
    thread.start()
    try:
        runs, elapsed_s = replay_for(seconds)
    finally:
        ended = time.perf_counter()
        stop.set()
        thread.join()
    return energy_from_edges(edges, started + 0.25, ended, runs, elapsed_s)


def energy_from_edges(
    edges: list[tuple[float, float]], begin: float, end: float, runs: int, elapsed_s: float
) -> Energy:
    """Mean power between the first and the last edge of the window.

    >>> energy_from_edges([(0.1, 0.0), (0.3, 100.0), (1.3, 600.0)], 0.25, 2.0, 10, 1.0)
    Energy(power_w=0.5, window_s=1.0, run_ms=100.0, runs=10)
    """
    inside = [edge for edge in edges if begin <= edge[0] <= end]
    # a short measurement may have too few edges: accept one more from just before the window
    if len(inside) < 3 and len(inside) < len(edges):
        inside = [edge for edge in edges if begin - 0.1 <= edge[0] <= end]
    if len(inside) < 2 or runs == 0:
        raise MeasurementError(f"The energy counter changed {len(inside)} times: too few to compute the power.")
    (first_s, first_mj), (last_s, last_mj) = inside[0], inside[-1]
    window_s = last_s - first_s
    return Energy((last_mj - first_mj) / KILO / window_s, window_s, elapsed_s / runs * KILO, runs)
