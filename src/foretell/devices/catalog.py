"""Devices: the catalogue of known devices, and the search by name.

Names are compared without case, spaces, dashes and underscores, and without a leading NVIDIA, Tesla or GeForce. A
family name without a size or form factor means one member of the family: ``a100`` is the 40 GB SXM card (as in cloud
price lists), ``h100`` the SXM card, ``v100`` the 16 GB SXM2 card.
"""

import difflib
import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from importlib.resources import files
from typing import Any

from foretell.devices.device import Device, MigProfile, SmLimits
from foretell.errors import DeviceError

_BRAND = re.compile(r"^(nvidia|tesla|geforce)+")
_CONFUSABLE = str.maketrans("oil", "011")  # letters that are mistaken for digits: "a10o" suggests "a100"


_others: dict[str, Device] = {}  # devices of the user's, by the key of their name


@dataclass(frozen=True, slots=True)
class _Catalog:
    """The contents of catalog.toml."""

    devices: tuple[Device, ...]
    by_key: Mapping[str, Device]
    citations: Mapping[str, str]
    limits: Mapping[str, tuple[SmLimits, str]]


def all_devices() -> tuple[Device, ...]:
    """Return every device, in the order of the catalogue.

    >>> [device.id for device in all_devices()][:3]
    ['h200', 'h100-sxm', 'h100-pcie']
    """
    return _catalog().devices


def find_device(name: str) -> Device:
    """Return the device that ``name`` means.

    >>> find_device("NVIDIA A100-SXM4-40GB").id, find_device("h200_sxm").id, find_device("4090").id
    ('a100-sxm-40gb', 'h200', 'rtx-4090')
    >>> find_device("a10o")
    Traceback (most recent call last):
    ...
    foretell.errors.DeviceError: Unknown device 'a10o'. Did you mean 'a100-sxm-40gb'? See: foretell devices
    """
    device = _catalog().by_key.get(_key(name)) or _others.get(_key(name))
    if device is None:
        raise DeviceError(f"Unknown device {name!r}.{_suggestion(name)} See: foretell devices")
    return device


def is_in_catalog(name: str) -> bool:
    """Whether the catalogue has a device of this name."""
    return _key(name) in _catalog().by_key


def remember(device: Device) -> None:
    """Let `find_device` find a device that the catalogue does not have, as long as this process runs."""
    if not is_in_catalog(device.id):
        _others[_key(device.id)] = device


def limits_of(capability: str) -> SmLimits | None:
    """What an SM of a compute capability can hold; None where the catalogue does not say."""
    found = _catalog().limits.get(capability)
    return found[0] if found else None


def cite(device: Device, field: str) -> str:
    """Return the source of one field of a device, such as ``tdp_w`` or ``tensor_tflops.fp8``.

    >>> cite(find_device("l4"), "bandwidth_gb_per_s").startswith("NVIDIA L4")
    True
    """
    sources = device.sources
    key = sources.get(field) or sources.get(field.partition(".")[0])
    if key is None:
        raise DeviceError(f"{field!r} of {device.id} has no source. Fields with one: {', '.join(sorted(sources))}")
    return _catalog().citations.get(key, key)  # a device of the user's names its file


def _key(name: str) -> str:
    """The name without case, punctuation and brand."""
    letters = re.sub(r"[^a-z0-9]", "", name.lower())
    return _BRAND.sub("", letters)


def _suggestion(name: str) -> str:
    """A sentence that suggests the closest device, if one is close; o and 0, l and 1 count as equal."""
    folded = {key.translate(_CONFUSABLE): device.id for key, device in _catalog().by_key.items()}
    close = difflib.get_close_matches(_key(name).translate(_CONFUSABLE), folded, n=1, cutoff=0.6)
    return f" Did you mean {folded[close[0]]!r}?" if close else ""


@lru_cache(maxsize=1)
def _catalog() -> _Catalog:
    """Read catalog.toml once."""
    raw = tomllib.loads(files(__package__).joinpath("catalog.toml").read_text(encoding="utf-8"))
    limits = {
        capability: (SmLimits(**{k: v for k, v in row.items() if k != "source"}), row["source"])
        for capability, row in raw["sm_limits"].items()
    }
    devices = tuple(_device(name, row, limits) for name, row in raw["device"].items())
    by_key: dict[str, Device] = {}
    for device in devices:
        for alias in (device.id, device.name, *device.aliases):
            # two devices with one name would make find_device depend on the order of the file
            owner = by_key.setdefault(_key(alias), device)
            if owner is not device:
                raise DeviceError(f"Two devices have the name {alias!r}: {owner.id} and {device.id}")
    return _Catalog(devices, by_key, raw["sources"], limits)


def _device(name: str, row: Mapping[str, Any], limits: Mapping[str, tuple[SmLimits, str]]) -> Device:
    """Make a `Device` from one table of the file."""
    # the file lists the fields of each source; the record looks up the source of a field
    sources = {field: key for key, fields in row["sources"].items() for field in fields}
    facts = {k: v for k, v in row.items() if k not in {"sources", "mig", "aliases", "price_keys"}}
    # the file calls the profiles "mig"; the record has them as mig_profiles
    if "mig" in row:
        sources["mig_profiles"] = sources.pop("mig")
    capability = row.get("compute_capability")
    if capability is not None:
        facts["limits"], sources["limits"] = limits[capability]
    return Device(
        id=name,
        sources=sources,
        mig_profiles=tuple(MigProfile(**profile) for profile in row.get("mig", ())),
        aliases=tuple(row.get("aliases", ())),
        price_keys=tuple(row.get("price_keys", ())),
        **facts,
    )
