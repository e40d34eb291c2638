"""Workflows: measure how fast this host launches work in eager mode, and store the result for ``predict``."""

import json
import math
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING

from foretell.errors import DataError
from foretell.files import write_whole
from foretell.frontends.cache import cache_folder
from foretell.predictors.host_latency import REFERENCE, HostCalibration, spread_bounds

if TYPE_CHECKING:
    from foretell.profiling.host_calibration import HostSpeed

VERSION = 1
_OPTIONAL = ("slowdown", "training_slowdown", "dispatch_us")
_NUMBERS = ("low", "high", *_OPTIONAL)


def calibration_path() -> Path:
    """The file of this host's calibration; it may not exist."""
    return cache_folder() / "host-calibration.json"


def calibrate(device: str | None = None) -> HostCalibration:
    """Measure this host and store the result. A measurement without CUDA keeps what an earlier one with CUDA found."""
    from foretell.profiling.host_calibration import measure_host

    calibration = calibration_of(measure_host(device))
    with suppress(DataError):  # a damaged file is simply replaced
        known = read_calibration()
        if calibration.slowdown is None and known.slowdown is not None and known.host == calibration.host:
            calibration = replace(known, dispatch_us=calibration.dispatch_us)
    write_calibration(calibration)
    return calibration


def calibration_of(speed: "HostSpeed") -> HostCalibration:
    """The calibration from a measurement. Without CUDA it has no launches, and the bounds are the reference's."""
    from statistics import median  # slow to import, and every prediction imports this module

    facts = (speed.host, speed.cpu, speed.device, speed.torch)
    if not speed.inference:
        return HostCalibration(*facts, None, None, REFERENCE.low, REFERENCE.high, speed.dispatch_us, speed.measured_at)
    # One training network gives no spread, so the inference ratios stand in.
    training = speed.training if len(speed.training) > 1 else speed.inference
    low, high = spread_bounds(max(_standard_error(speed.inference), _standard_error(training)))
    return HostCalibration(
        *facts,
        median(speed.inference),
        median(training),
        low,
        high,
        speed.dispatch_us,
        speed.measured_at,
    )


def _standard_error(ratios: Sequence[float]) -> float:
    """The standard error of the mean logarithm."""
    from statistics import stdev

    # Logarithms, because slowdowns are ratios: twice as fast and twice as slow weigh the same.
    return stdev(math.log(ratio) for ratio in ratios) / math.sqrt(len(ratios))


def write_calibration(calibration: HostCalibration, path: Path | None = None) -> None:
    """Store a calibration, completely or not at all."""
    target = path or calibration_path()
    text = json.dumps({"version": VERSION, **asdict(calibration)}, indent=1)
    try:
        write_whole(target, text.encode())
    except OSError as error:
        raise DataError(
            f"Cannot store the calibration in {target}: {error.strerror}. Set FORETELL_CACHE to a writable folder."
        ) from error


def read_calibration(path: Path | None = None) -> HostCalibration:
    """This host's calibration, or the reference if it was never calibrated."""
    source = path or calibration_path()
    try:
        text = source.read_bytes()
    except FileNotFoundError:
        return REFERENCE
    except OSError as error:
        raise _damaged(source, error.strerror or "unreadable") from error
    try:
        values = json.loads(text)
        if not isinstance(values, dict) or values.pop("version", None) != VERSION:
            raise _damaged(source, f"not a calibration of version {VERSION}")
        calibration = HostCalibration(**values)
    except (ValueError, TypeError) as error:  # not JSON, not text, or other fields than ours
        raise _damaged(source, str(error)) from error
    wrong = _wrong_field(calibration)
    if wrong is not None:
        raise _damaged(source, f"{wrong} is {getattr(calibration, wrong)!r}")
    return calibration


def _wrong_field(calibration: HostCalibration) -> str | None:
    """The first field with an invalid value; None if all are valid."""
    for name, value in asdict(calibration).items():
        if name in _NUMBERS:
            number = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
            if not (number and value > 0) and not (value is None and name in _OPTIONAL):
                return name
        elif not isinstance(value, str):
            return name
    if (calibration.slowdown is None) != (calibration.training_slowdown is None):
        return "training_slowdown"
    return "high" if calibration.high < calibration.low else None


def _damaged(path: Path, reason: str) -> DataError:
    return DataError(f"The calibration in {path} cannot be used ({reason}). Run again: foretell calibrate")
