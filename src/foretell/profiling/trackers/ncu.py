"""Profiling: hardware counters of every kernel in the ranges that a program marks, read from the output of ``ncu``.

Many runs share one ``ncu`` process, because starting one takes longer than counting. The program launches a marker
kernel, which no model uses, before and after each run; the kernels between two markers belong to that run.
"""

import csv
import math
import re
import shutil
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, TypeVar

from foretell.errors import MeasurementError
from foretell.units import KILO

OCCUPANCY = "sm__warps_active.avg.pct_of_peak_sustained_active"
DURATION = "gpu__time_duration.sum"
MARKER = "nextafter"
# ncu must not flush caches or lock clocks, so that kernels run as they do without a profiler.
OPTIONS = (
    "--clock-control", "none", "--cache-control", "none", "--profile-from-start", "off", "--replay-mode", "kernel",
    "--target-processes", "application-only", "--metrics", f"{OCCUPANCY},{DURATION}", "--csv", "--page", "details",
    "--print-units", "base", "--print-kernel-base", "demangled", "--nvtx",
)  # fmt: skip

_CALL = re.compile(r"foretell-call-(\d+)")
_UNIT = "unit of "
_INSTALL_PATTERNS = ("/opt/nvidia/nsight-compute/*/ncu", "/usr/local/cuda*/bin/ncu")
_MICROSECONDS = {
    "ns": 1 / KILO, "nsecond": 1 / KILO, "us": 1.0, "usecond": 1.0, "ms": KILO, "msecond": KILO,
    "s": KILO * KILO, "second": KILO * KILO,
}  # fmt: skip


@dataclass(frozen=True)
class Counters:
    """One kernel with its counters; ``call`` is the number that was given to :func:`call_name`."""

    name: str
    duration_us: float
    occupancy_pct: float
    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    call: int | None = None


@dataclass(frozen=True)
class Metrics:
    """One kernel with all its metrics, in bytes, microseconds and counts; what ncu could not count is absent."""

    name: str
    call: int | None
    values: Mapping[str, float]


class Named(Protocol):
    """A kernel that has a name."""

    @property
    def name(self) -> str:
        """As ncu prints it."""
        ...


Kernel = TypeVar("Kernel", bound=Named)


def call_name(number: int) -> str:
    """The name of the NVTX range around an operator call, which identifies its kernels."""
    return f"foretell-call-{number}"


def find_ncu() -> str:
    """The path of ``ncu``, on PATH or where Nsight Compute is installed."""
    path = shutil.which("ncu")
    places = [path] if path else []
    # in reverse order, so that the newest of several installed versions comes first
    for place in _INSTALL_PATTERNS:
        root = Path("/")
        places += sorted(map(str, root.glob(place.lstrip("/"))), reverse=True)
    if not places:
        raise MeasurementError("Cannot find ncu: hardware counters need Nsight Compute. Install it or put it on PATH.")
    return places[0]


def read_counters(lines: Iterable[str]) -> list[Counters]:
    """The kernels in the output of ``ncu --csv``, in order; other lines and incomplete kernels are ignored.

    Both layouts can be read: one row for each metric (``details``), and one row for each kernel (``raw``).
    """
    return [kernel for kernel in map(_counters, _kernels(lines)) if kernel is not None]


def read_metrics(lines: Iterable[str]) -> list[Metrics]:
    """The kernels in the output of ``ncu --csv --print-units base``, in order, with whatever was counted of them."""
    found = []
    for values in _kernels(lines):
        counted = {}
        for name, text in values.items():
            # names of metrics have two underscores after their unit of the chip; those of columns have none
            if re.match(r"[a-z0-9]+__", name):
                with suppress(ValueError):  # n/a
                    counted[name] = _number(text) * _MICROSECONDS.get(values.get(_UNIT + name, ""), 1.0)
        counted = {name: value for name, value in counted.items() if math.isfinite(value)}
        found.append(Metrics(values.get("Kernel Name", ""), _call(values), counted))
    return found


def _kernels(lines: Iterable[str]) -> list[dict[str, str]]:
    """The columns and metrics of each kernel as texts, with the units of metrics."""
    header: list[str] = []
    units: dict[str, str] = {}
    kernels: dict[str, dict[str, str]] = {}
    for row in csv.reader(line for line in lines if line.startswith('"')):
        if row and row[0] == "ID":
            header = row
            continue
        if len(row) != len(header):  # an incomplete line
            continue
        values = dict(zip(header, row, strict=True))
        if not values["ID"]:  # the second line of the raw layout has the units
            units = {_UNIT + name: unit for name, unit in values.items()}
            continue
        kernel = kernels.setdefault(values["ID"], dict(units))
        kernel |= values
        if "Metric Name" in values:
            kernel[values["Metric Name"]] = values["Metric Value"]
            kernel[_UNIT + values["Metric Name"]] = values["Metric Unit"]
    return list(kernels.values())


def _counters(values: dict[str, str]) -> Counters | None:
    try:
        return Counters(
            name=values["Kernel Name"],
            duration_us=round(_number(values[DURATION]) * _MICROSECONDS[values[_UNIT + DURATION]], 6),
            occupancy_pct=_number(values[OCCUPANCY]),
            grid=_sizes(values.get("Grid Size", "")),
            block=_sizes(values.get("Block Size", "")),
            call=_call(values),
        )
    except (KeyError, ValueError):
        return None


def _call(values: dict[str, str]) -> int | None:
    """The number of the innermost range that names a call."""
    ranges = " ".join(value for name, value in values.items() if "Push/Pop_Range" in name)
    numbers = _CALL.findall(ranges)
    return int(numbers[-1]) if numbers else None


def _number(text: str) -> float:
    return float(text.replace(",", ""))


def _sizes(text: str) -> tuple[int, int, int]:
    x, y, z, *_ = [*map(int, re.findall(r"\d+", text)), 0, 0, 0]
    return x, y, z


def split_ranges(kernels: Sequence[Kernel]) -> list[list[Kernel]]:
    """The kernels between each pair of markers; a range whose end is missing is left out."""
    ranges: list[list[Kernel]] = []
    inside: list[Kernel] | None = None
    for kernel in kernels:
        if MARKER in kernel.name:
            if inside is not None:
                ranges.append(inside)
            inside = [] if inside is None else None
        elif inside is not None:
            inside.append(kernel)
    return ranges


def error_text(lines: Iterable[str]) -> str:
    """The errors that ``ncu`` printed, in one line; empty where there are none."""
    errors = [line.partition("==")[2].strip("= \n") for line in lines if line.startswith(("==ERROR==", "==WARNING=="))]
    return " ".join(errors)[:300]
