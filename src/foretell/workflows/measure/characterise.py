"""Workflows: measure the ceilings of this machine and store them. The roofline prefers them to the catalogue."""

import json
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from foretell.devices import Device, find_device
from foretell.devices.ceilings import Ceilings, load_ceilings, parse_row
from foretell.errors import DataError, DeviceError
from foretell.files import write_whole
from foretell.frontends.cache import cache_folder
from foretell.toml_rows import Row

if TYPE_CHECKING:
    from foretell.profiling.ceilings import MeasuredCeilings

VERSION = 1


def ceilings_path() -> Path:
    """The file of this machine's ceilings; it may not exist."""
    return cache_folder() / "ceilings.json"


def characterise(device: str | None = None) -> tuple[Ceilings, "MeasuredCeilings"]:
    """Measure this machine's CPU or GPU and store the result; stored ceilings of its other devices stay."""
    from foretell.profiling.ceilings import measure_ceilings

    measured = measure_ceilings(device)
    ceilings = ceilings_of(measured)
    known: dict[str, Ceilings] = {}
    with suppress(DataError):  # a damaged file is simply replaced
        known = dict(read_own_ceilings())
    write_own_ceilings(known | {ceilings.device: ceilings})
    return ceilings, measured


def ceilings_of(measured: "MeasuredCeilings") -> Ceilings:
    """A measurement as ceilings, under the catalogue's name of the device."""
    details = [f"torch {measured.torch}"]
    details += [f"driver {measured.driver}"] if measured.driver else []
    details += [f"{measured.threads} threads"] if measured.kind == "cpu" else []
    return Ceilings(
        device_id(measured),
        measured.device_name,
        measured.measured_at[:10],
        f"foretell characterise, {', '.join(details)}",
        measured.dram_gb_per_s,
        measured.cache_gb_per_s,
        dict(measured.tflops),
        measured.reference_ms,
        measured.l1_gb_per_s,
        dict(measured.plain_tflops),
    )


def device_id(measured: "MeasuredCeilings") -> str:
    """The catalogue's id of the device; an unknown GPU gets an id made from its name."""
    return "cpu" if measured.kind == "cpu" else device_id_of(measured.device_name)


def device_id_of(name: str) -> str:
    """The catalogue's id of a GPU, or one made from its name.

    >>> device_id_of("NVIDIA A100-SXM4-40GB"), device_id_of("NVIDIA TITAN X")
    ('a100-sxm-40gb', 'nvidia-titan-x')
    """
    try:
        return find_device(name).id
    except DeviceError:
        return "-".join("".join(c if c.isalnum() else " " for c in name.lower()).split())


def write_own_ceilings(known: Mapping[str, Ceilings], path: Path | None = None) -> None:
    """Store the ceilings, completely or not at all."""
    target = path or ceilings_path()
    rows = {device: {key: value for key, value in asdict(ceilings).items() if key != "device" and value is not None}
            for device, ceilings in known.items()}  # fmt: skip
    try:
        write_whole(target, json.dumps({"version": VERSION, "ceilings": rows}, indent=1).encode())
    except OSError as error:
        raise DataError(
            f"Cannot store the ceilings in {target}: {error.strerror}. Set FORETELL_CACHE to a writable folder."
        ) from error


def read_own_ceilings(path: Path | None = None) -> Mapping[str, Ceilings]:
    """The ceilings measured on this machine, by device id; empty if nothing was measured."""
    source = path or ceilings_path()
    try:
        values = json.loads(source.read_bytes())
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        raise _damaged(source, str(error)) from error
    if not isinstance(values, dict) or values.pop("version", None) != VERSION:
        raise _damaged(source, f"not of version {VERSION}")
    try:
        rows = Row(str(source), values).allow("ceilings").rows("ceilings")
        return {device: parse_row(device, row, {}) for device, row in rows.items()}
    except DataError as error:
        raise _damaged(source, str(error)) from error


def known_ceilings(device: Device) -> Ceilings | None:
    """The measured ceilings of a device: from this machine, else from the package; None if there are none."""
    return read_own_ceilings().get(device.id) or load_ceilings().get(device.id)


def _damaged(path: Path, reason: str) -> DataError:
    return DataError(f"The ceilings in {path} cannot be used ({reason}). Run again: foretell characterise")
