"""Devices: a device that a user describes in a TOML file: ``--device my-gpu.toml``.

The file has the fields of the catalogue, one below the other. With ``like``, all facts that it does not state are those
of a device of the catalogue: two lines describe a card whose power limit was lowered. The name of the file is the name
of the device.
"""

import re
from collections.abc import Mapping
from dataclasses import fields, replace
from pathlib import Path

from foretell.devices.catalog import cite, find_device, is_in_catalog, limits_of, remember
from foretell.devices.device import DTYPES, Device, MigProfile
from foretell.errors import DataError, DeviceError
from foretell.toml_rows import Row, read_own
from foretell.units import MEGA, bytes_from_gib, mib

SUFFIX = ".toml"
PAGE = "docs/devices.md"
_TEXTS = ("name", "vendor", "architecture", "compute_capability")
_NUMBERS = (
    "bandwidth_gb_per_s", "l2_mib", "memory_gib", "tdp_w", "launch_overhead_us", "base_clock_mhz", "boost_clock_mhz",
    "idle_power_w", "nvlink_gb_per_s", "pcie_gb_per_s", "rated_tdp_w",
)  # fmt: skip
_COUNTS = ("sms", "memory_mib", "pcie_generation")
_RATES = ("tensor_tflops", "vector_tflops")
_NAMES = ("like", *_TEXTS, *_NUMBERS, *_COUNTS, *_RATES, "mig")
_NEEDED = ("name", "sms", "vector_tflops", "bandwidth_gb_per_s", "memory_gib", "tdp_w")
_GPU_MAKERS = frozenset({"nvidia", "amd", "intel", "apple"})
_USUAL = {"vendor": "NVIDIA", "architecture": "unknown", "launch_overhead_us": 3.5, "l2_mib": 4.0, "tensor_tflops": {}}
_ID = re.compile(r"[a-z0-9][a-z0-9._-]*")
_MIG = tuple(field.name for field in fields(MigProfile))


def device_of(device: str | Path | Device) -> Device:
    """The device that a user means: a name of the catalogue, a file, or a `Device`.

    >>> device_of("a100").id, device_of(find_device("l4")).id
    ('a100-sxm-40gb', 'l4')
    """
    if not isinstance(device, Device):
        if not str(device).endswith(SUFFIX):
            return find_device(str(device))
        device = read_device(Path(device))
    elif is_in_catalog(device.id) and device != find_device(device.id):
        # it would be answered by what was fitted to, and is sold as, the catalogue's
        raise DeviceError(
            f"This Device is called {device.id!r}, but its facts are not the catalogue's. Give it a name of its own: "
            f"dataclasses.replace(device, id='my-{device.id}', …), or a file with like = {device.id!r}"
        )
    # what is derived from a prediction later asks for its device by name
    remember(device)
    return device


def is_device(name: str, device: Device) -> bool:
    """Whether a name that a driver, a file or a person gives means this device.

    >>> is_device("NVIDIA GeForce RTX 4090", find_device("rtx-4090")), is_device("l4", find_device("t4"))
    (True, False)
    """
    try:
        known = find_device(name)
    except DeviceError:
        return _letters(name) in (_letters(device.id), _letters(device.name))
    # a device of the user's that is like one of the catalogue has the other's name in its own
    return known.id == device.id or (not known.is_cpu and device.name.startswith(f"{known.name} ("))


def _letters(name: str) -> str:
    return "".join(letter for letter in name.lower() if letter.isalnum())


def read_device(path: Path) -> Device:
    """Read and check a file; a message says what is wrong and what would be right."""
    try:
        return _device(path, read_own(path, PAGE).allow(*_NAMES))
    except DataError as error:
        raise DeviceError(str(error)) from error


def _device(path: Path, row: Row) -> Device:
    name = path.name.removesuffix(SUFFIX).lower()
    if not _ID.fullmatch(name):
        raise DataError(f"{path}: a device is called as its file; use letters, digits, dots and dashes")
    if is_in_catalog(name):
        raise DataError(f"{path}: {name} is a device of the catalogue; call the file otherwise, such as my-{name}.toml")
    given: dict[str, object] = {key: row.text(key) for key in _TEXTS if key in row.fields}
    given |= {key: row.maybe_number(key, least=0, open_end=True) for key in _NUMBERS if key in row.fields}
    given |= {key: row.count(key, default=1) for key in _COUNTS if key in row.fields}
    given |= {key: _rates(row, key) for key in _RATES if key in row.fields}
    if "mig" in row.fields:
        given["mig_profiles"] = tuple(_profile(one) for one in row.list_of_rows("mig"))
    capability = given.get("compute_capability")
    if isinstance(capability, str):
        given["limits"] = limits_of(capability)
    like = row.maybe_text("like")
    base = None if like is None else _found(row, like)
    if base is not None:
        given.setdefault("name", f"{base.name} ({name})")
        if given.get("tdp_w", base.tdp_w) != base.tdp_w:
            given.setdefault("rated_tdp_w", base.tdp_w)
        if "memory_gib" in given:
            given.setdefault("memory_mib", None)
        device = replace(base, id=name, aliases=(), price_keys=(), **given)  # type: ignore[arg-type]
    else:
        missing = [key for key in _NEEDED if key not in given]
        if missing:
            are, them = ("is", "it") if len(missing) == 1 else ("are", "them")
            raise DataError(
                f"{row.where}: {', '.join(missing)} {are} missing. Give {them}, or take the rest from a device of the "
                f'catalogue: like = "rtx-4090". {PAGE} shows an example'
            )
        _refuse_unclear(row, given)
        device = Device(id=name, sources={}, **(_USUAL | given))  # type: ignore[arg-type]
    _check(row, device)
    # every fact that was not taken over comes from the file
    taken = {} if base is None else {key: f"{cite(base, key)} (of {base.id})" for key in base.sources}
    stated = {key: str(path) for key in given if key != "rated_tdp_w" or key in row.fields}
    rated = {} if base is None or "rated_tdp_w" not in given else {"rated_tdp_w": taken.get("tdp_w", "")}
    return replace(device, sources=taken | rated | stated)


def _found(row: Row, like: str) -> Device:
    try:
        return find_device(like)
    except DeviceError as error:
        raise DataError(f"{row.where}, like: {error}") from error


def _refuse_unclear(row: Row, given: Mapping[str, object]) -> None:
    """Refuse a GPU without a compute capability: it would be answered as a CPU, which nobody would notice."""
    is_gpu = "tensor_tflops" in given or str(given.get("vendor")).lower() in _GPU_MAKERS
    if is_gpu and "compute_capability" not in given:
        raise DataError(
            f'{row.where}: compute_capability is missing. A GPU states it, such as "8.9", "gfx942" or "apple9"; '
            'a CPU has vendor = "generic" and no tensor_tflops'
        )


def _rates(row: Row, name: str) -> dict[str, float]:
    value = row.fields[name]
    if not isinstance(value, dict):
        raise DataError(f"{row.where}: {name} is {value!r}; write it as {{ fp32 = 80.0, fp16 = 160.0 }}, in TFLOP/s")
    rates = Row(f"{row.where}, {name}", value).allow(*DTYPES)
    found = {key: rates.maybe_number(key, least=0, open_end=True) for key in value}
    return {key: rate for key, rate in found.items() if rate is not None}


def _profile(row: Row) -> MigProfile:
    row.allow(*_MIG)
    missing = [name for name in _MIG if name not in row.fields]
    if missing:
        raise DataError(f"{row.where}: {', '.join(missing)} is missing; foretell devices h200 shows such profiles")
    memory = row.maybe_number("memory_gib", least=0, open_end=True) or 0.0
    counts = {name: row.count(name, default=1) for name in _MIG if name not in ("name", "memory_gib")}
    return MigProfile(name=row.text("name"), memory_gib=memory, **counts)


def _check(row: Row, device: Device) -> None:
    """Refuse what no device can be: such a file has a unit wrong."""
    if "fp32" not in device.vector_tflops:
        raise DataError(f"{row.where}: vector_tflops has no fp32; every device computes in it")
    if device.base_clock_mhz and device.boost_clock_mhz and device.base_clock_mhz > device.boost_clock_mhz:
        raise DataError(f"{row.where}: base_clock_mhz is above boost_clock_mhz")
    if device.idle_power_w is not None and device.idle_power_w >= device.tdp_w:
        raise DataError(f"{row.where}: idle_power_w is not below tdp_w; both are in watts")
    if device.memory_mib is not None and not 0.9 < mib(bytes_from_gib(device.memory_gib)) / device.memory_mib < 1.1:
        raise DataError(f"{row.where}: memory_gib and memory_mib are not the same size")
    if device.rated_tdp_w is not None and not 0.1 <= device.tdp_w / device.rated_tdp_w <= 2:
        raise DataError(
            f"{row.where}: tdp_w is {device.tdp_w:g} W, and the maker's limit is {device.rated_tdp_w:g} W; no driver "
            "takes a limit that far away. For another card leave out rated_tdp_w and like"
        )
    for key, low, high, unit in (
        ("bandwidth_gb_per_s", 1, 50_000, "GB/s: an H200 has 4,800"),
        ("memory_gib", 0.5, 4_096, "GiB: an H200 has 140"),
        ("l2_mib", 0.01, 4_096, "MiB: an H200 has 60"),
        ("tdp_w", 1, 5_000, "watts: an H200 has 700"),
        ("sms", 1, 4_096, "multiprocessors, or cores of a CPU: an H200 has 132"),
    ):
        value = getattr(device, key)
        if not low <= value <= high:
            raise DataError(f"{row.where}: {key} is {value:g}; it is in {unit}")
    clock = device.boost_clock_mhz
    if device.compute_capability is not None and device.vendor == "NVIDIA" and clock:
        # 64 or 128 lanes a multiprocessor, two operations each
        lanes = device.vector_tflops["fp32"] * MEGA / (2 * device.sms * clock)
        if not 16 <= lanes <= 512:
            raise DataError(
                f"{row.where}: {device.sms} SMs at {clock:g} MHz do not make {device.vector_tflops['fp32']:g} TFLOP/s "
                "in fp32: an SM has 64 or 128 lanes, two operations each"
            )
    for part in device.mig_profiles:
        if part.sms > device.sms or part.memory_gib > device.memory_gib:
            raise DataError(f"{row.where}: the MIG profile {part.name} is larger than the device")
