"""Profiling: hardware counters of every kernel in the ranges that a program marks, read from what ``ncu`` prints.

Many runs share one ``ncu`` process, because starting one takes longer than counting. The program launches a marker
kernel, which no model has, before and after each run; the kernels between two markers belong to that run.
"""

import csv
import re
import shutil
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from foretell.errors import MeasurementError
from foretell.units import KILO

OCCUPANCY = "sm__warps_active.avg.pct_of_peak_sustained_active"
DURATION = "gpu__time_duration.sum"
MARKER = "nextafter"
# Caches are left as the run finds them, clocks as the device sets them: the kernels run as they do without a profiler.
OPTIONS = (
    "--clock-control", "none", "--cache-control", "none", "--profile-from-start", "off", "--replay-mode", "kernel",
    "--target-processes", "application-only", "--metrics", f"{OCCUPANCY},{DURATION}", "--csv", "--page", "details",
    "--print-units", "base", "--print-kernel-base", "demangled", "--nvtx",
)  # fmt: skip

_CALL = re.compile(r"foretell-call-(\d+)")
_PLACES = ("/opt/nvidia/nsight-compute/*/ncu", "/usr/local/cuda*/bin/ncu")
_MICROSECONDS = {
    "ns": 1 / KILO, "nsecond": 1 / KILO, "us": 1.0, "usecond": 1.0, "ms": KILO, "msecond": KILO,
    "s": KILO * KILO, "second": KILO * KILO,
}  # fmt: skip


@dataclass(frozen=True)
class Counters:
    """One kernel as the hardware counted it; ``call`` is the number of the call that :func:`call_name` was given."""

    name: str
    duration_us: float
    occupancy_pct: float
    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    call: int | None = None


def call_name(number: int) -> str:
    """What the NVTX range around an operator call is named, so that its kernels can be told from others."""
    return f"foretell-call-{number}"


def find_ncu() -> str:
    """Where ``ncu`` is, on the path or where Nsight Compute is installed."""
    found = shutil.which("ncu")
    places = [found] if found else []
    for place in _PLACES:
        root = Path("/")
        places += sorted(map(str, root.glob(place.lstrip("/"))), reverse=True)
    if not places:
        raise MeasurementError("Cannot find ncu: hardware counters need Nsight Compute. Install it or put it on PATH.")
    return places[0]


def read_counters(lines: Iterable[str]) -> list[Counters]:
    """The kernels of ``ncu --csv``, in order; lines that are not CSV are passed over, half a kernel is dropped.

    Both layouts are read: one row a metric (``details``), and one row a kernel (``raw``).
    """
    header: list[str] = []
    units: dict[str, str] = {}
    found: dict[str, dict[str, str]] = {}
    for row in csv.reader(line for line in lines if line.startswith('"')):
        if row and row[0] == "ID":
            header = row
            continue
        if len(row) != len(header):
            continue
        values = dict(zip(header, row, strict=True))
        if not values["ID"]:  # the second line of the raw layout has the units
            units = values
            continue
        kernel = found.setdefault(values["ID"], {"unit": units.get(DURATION, "")})
        kernel |= values
        if "Metric Name" in values:
            kernel[values["Metric Name"]] = values["Metric Value"]
            if values["Metric Name"] == DURATION:
                kernel["unit"] = values["Metric Unit"]
    return [kernel for kernel in map(_counters, found.values()) if kernel is not None]


def _counters(values: dict[str, str]) -> Counters | None:
    try:
        return Counters(
            name=values["Kernel Name"],
            duration_us=round(_number(values[DURATION]) * _MICROSECONDS[values["unit"]], 6),
            occupancy_pct=_number(values[OCCUPANCY]),
            grid=_sizes(values.get("Grid Size", "")),
            block=_sizes(values.get("Block Size", "")),
            call=_call(values),
        )
    except (KeyError, ValueError):
        return None


def _call(values: dict[str, str]) -> int | None:
    """The innermost range of the kernel's thread that names a call."""
    ranges = " ".join(value for name, value in values.items() if "Push/Pop_Range" in name)
    found = _CALL.findall(ranges)
    return int(found[-1]) if found else None


def _number(text: str) -> float:
    return float(text.replace(",", ""))


def _sizes(text: str) -> tuple[int, int, int]:
    x, y, z, *_ = [*map(int, re.findall(r"\d+", text)), 0, 0, 0]
    return x, y, z


def split_ranges(kernels: Sequence[Counters]) -> list[list[Counters]]:
    """The kernels between each pair of markers; a range whose end is missing is left out."""
    ranges: list[list[Counters]] = []
    inside: list[Counters] | None = None
    for kernel in kernels:
        if MARKER in kernel.name:
            if inside is not None:
                ranges.append(inside)
            inside = [] if inside is None else None
        elif inside is not None:
            inside.append(kernel)
    return ranges


def complaint(lines: Iterable[str]) -> str:
    """What ``ncu`` says went wrong, in one line; empty where it says nothing."""
    errors = [line.partition("==")[2].strip("= \n") for line in lines if line.startswith(("==ERROR==", "==WARNING=="))]
    return " ".join(errors)[:300]
