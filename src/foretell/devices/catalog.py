"""Devices: the catalogue of known devices, and the search by name.

Names are compared without case, spaces, dashes and underscores, and without a leading NVIDIA, Tesla or GeForce. A
family name without a size or form factor means one member of the family: ``a100`` is the 40 GB SXM card (as in cloud
price lists), ``h100`` the SXM card, ``v100`` the 16 GB SXM2 card.
"""

import re
import tomllib
from collections.abc import Mapping
from functools import cache, lru_cache
from importlib.resources import files
from typing import Any

from foretell.devices.device import Device, MigProfile, SmLimits
from foretell.errors import DeviceError
from foretell.frozen import dataclass

_BRAND = re.compile(r"^(nvidia|tesla|geforce)+")
_CONFUSABLE = str.maketrans("oil", "011")  # letters that are mistaken for digits: "a10o" suggests "a100"
_DEVICE = re.compile(r"^\[device\.([a-z0-9-]+)\]$", re.MULTILINE)  # not [device.x.sources], which belongs to x
_FEW = 4
_LIMITS = "[sm_limits."
_NAME = re.compile(r'^name = "(.*)"$', re.MULTILINE)
_ALIASES = re.compile(r"^aliases = \[(.*)\]$", re.MULTILINE)
_QUOTED = re.compile(r'"([^"]*)"')
_ORDINAL = re.compile(r"(cuda|gpu|hip|rocm|xpu|mps)(:?\d+)?")  # how frameworks call a GPU of the machine they run on


_others: dict[str, Device] = {}  # devices of the user's, by the key of their name


@dataclass(frozen=True, slots=True)
class _Catalog:
    """The text of catalog.toml, cut into its parts."""

    citations: str
    limits: str
    devices: Mapping[str, str]


def all_devices() -> tuple[Device, ...]:
    """Return every device, in the order of the catalogue.

    >>> [device.id for device in all_devices()][:3]
    ['h200', 'h100-sxm', 'h100-pcie']
    """
    return tuple(_device(name) for name in _catalog().devices)


def find_device(name: str) -> Device:
    """Return the device that ``name`` means.

    >>> find_device("NVIDIA A100-SXM4-40GB").id, find_device("h200_sxm").id, find_device("4090").id
    ('a100-sxm-40gb', 'h200', 'rtx-4090')
    >>> find_device("a10o")
    Traceback (most recent call last):
    ...
    foretell.errors.DeviceError: Unknown device 'a10o'. Did you mean 'a100-sxm-40gb'? See: foretell devices
    """
    if name in _catalog().devices:
        return _device(name)
    key = _key(name)
    if key in _ids():
        return _device(_ids()[key])
    if key in _others:
        return _others[key]
    if _ORDINAL.fullmatch(name.strip().lower()):
        raise DeviceError(
            f"{name!r} is a GPU of some machine, and predictions are for kinds of GPUs: give its name, as nvidia-smi "
            "prints it, or describe it: foretell devices new -o my-gpu.toml"
        )
    raise DeviceError(f"Unknown device {name!r}.{_suggestion(name)} See: foretell devices")


def is_in_catalog(name: str) -> bool:
    """Whether the catalogue has a device of this name."""
    return _key(name) in _ids()


def remember(device: Device) -> None:
    """Let `find_device` find a device that the catalogue does not have, as long as this process runs."""
    if not is_in_catalog(device.id):
        _others[_key(device.id)] = device


def limits_of(capability: str) -> SmLimits | None:
    """What an SM of a compute capability can hold; None where the catalogue does not say."""
    found = _limits().get(capability)
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
    return _citations().get(key, key)  # a device of the user's names its file


def _key(name: str) -> str:
    """The name without case, punctuation and brand."""
    letters = re.sub(r"[^a-z0-9]", "", name.lower())
    return _BRAND.sub("", letters)


def _suggestion(name: str) -> str:
    """A sentence that suggests the members of a family, or the closest device; o and 0, l and 1 count as equal."""
    key, ids = _key(name), _ids()
    family = dict.fromkeys(ids[one] for one in ids if len(key) > 3 and re.search(rf"{key}(?!\d)", one))
    if len(family) > 1:
        return f" Did you mean one of {', '.join(map(repr, list(family)[:_FEW]))}?"
    folded = {one.translate(_CONFUSABLE): device for one, device in ids.items()}
    import difflib  # only where somebody mistypes a name: start-up time counts

    close = difflib.get_close_matches(key.translate(_CONFUSABLE), folded, n=1, cutoff=0.6)
    return f" Did you mean {folded[close[0]]!r}?" if close else ""


@lru_cache(maxsize=1)
def _catalog() -> _Catalog:
    """Cut catalog.toml into its tables.

    Parsing all of it takes 0.1 s, and most commands ask for one device: a table is parsed when it is asked for.
    """
    text = files(__package__).joinpath("catalog.toml").read_text(encoding="utf-8")
    head, *tables = _DEVICE.split(text)
    citations, _, limits = head.partition(_LIMITS)
    return _Catalog(citations, _LIMITS + limits, dict(zip(tables[::2], tables[1::2], strict=True)))


@lru_cache(maxsize=1)
def _ids() -> Mapping[str, str]:
    """The devices by the keys of all their names; one that is called by its id is found without them."""
    ids: dict[str, str] = {}
    for device, table in _catalog().devices.items():
        aliases = _ALIASES.search(table)
        for alias in (device, *_NAME.findall(table), *_QUOTED.findall(aliases[1] if aliases else "")):
            # two devices with one name would make find_device depend on the order of the file
            owner = ids.setdefault(_key(alias), device)
            if owner != device:
                raise DeviceError(f"Two devices have the name {alias!r}: {owner} and {device}")
    return ids


@lru_cache(maxsize=1)
def _citations() -> Mapping[str, str]:
    citations: dict[str, str] = tomllib.loads(_catalog().citations)["sources"]
    return citations


@lru_cache(maxsize=1)
def _limits() -> Mapping[str, tuple[SmLimits, str]]:
    """What an SM holds, and the source, by compute capability."""
    return {
        capability: (SmLimits(**{k: v for k, v in row.items() if k != "source"}), row["source"])
        for capability, row in tomllib.loads(_catalog().limits)["sm_limits"].items()
    }


@cache
def _device(name: str) -> Device:
    """Make a `Device` from one table of the file."""
    row: Mapping[str, Any] = tomllib.loads(f"[device.{name}]\n{_catalog().devices[name]}")["device"][name]
    # the file lists the fields of each source; the record looks up the source of a field
    sources = {field: key for key, fields in row["sources"].items() for field in fields}
    facts = {k: v for k, v in row.items() if k not in {"sources", "mig", "aliases", "price_keys"}}
    # the file calls the profiles "mig"; the record has them as mig_profiles
    if "mig" in row:
        sources["mig_profiles"] = sources.pop("mig")
    # GPUs of other makers than NVIDIA name their target here, of which no limits are known
    if row.get("compute_capability") in _limits():
        facts["limits"], sources["limits"] = _limits()[row["compute_capability"]]
    return Device(
        id=name,
        sources=sources,
        mig_profiles=tuple(MigProfile(**profile) for profile in row.get("mig", ())),
        aliases=tuple(row.get("aliases", ())),
        price_keys=tuple(row.get("price_keys", ())),
        **facts,
    )
