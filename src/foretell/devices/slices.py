"""The devices room: a part of a GPU (MPS, MIG, a number of SMs) and the hardware that it leaves.

Three ways to write one:

* ``mps:30``: 30 % of the SMs under MPS; memory, bandwidth and L2 are shared, so all of them may be used.
* ``mig:1g.18gb``: a MIG instance with memory of its own; also ``1g.18gb`` and ``nvidia.com/mig-1g.18gb``.
* ``sms:66``: 66 SMs, as a green context gives them; the rest is shared.
"""

import math
import re
from dataclasses import dataclass
from typing import Literal

from foretell.devices.bandwidth import attainable_bandwidth_gb_per_s
from foretell.devices.device import Device
from foretell.errors import DeviceError

_PROFILE = re.compile(r"[1-9]\d*g\.\d+gb([.+-][a-z.]+)?")
_SMS_PER_TPC = 2


@dataclass(frozen=True, slots=True)
class Slice:
    """A part of one device, resolved to counts."""

    kind: Literal["mps", "mig", "sms"]
    text: str
    sms: int
    memory_gib: float
    bandwidth_fraction: float = 1.0
    l2_fraction: float = 1.0


@dataclass(frozen=True, slots=True)
class Hardware:
    """What a workload can really use: the whole device, or what a slice leaves of it."""

    device: Device
    slice: Slice | None
    sms: int
    bandwidth_gb_per_s: float
    l2_mib: float
    memory_gib: float

    @property
    def sm_fraction(self) -> float:
        """Share of the device's SMs."""
        return self.sms / self.device.sms

    def peak_tflops(self, dtype: str, *, tensor_cores: bool) -> float:
        """The device's peak, scaled by the share of SMs."""
        return self.device.peak_tflops(dtype, tensor_cores=tensor_cores) * self.sm_fraction


def parse_slice(text: str, device: Device) -> Slice:
    """Read a slice as people write it, and check that the device has it.

    >>> from foretell.devices import find_device
    >>> h200 = find_device("h200")
    >>> parse_slice("mps:20", h200).sms, parse_slice("nvidia.com/mig-3g.71gb", h200).sms
    (26, 60)
    >>> parse_slice("sms:200", h200)
    Traceback (most recent call last):
    ...
    foretell.errors.DeviceError: Slice 'sms:200' asks for 200 SMs, but h200 has 132: write sms:1 to sms:132.
    """
    if device.is_cpu:
        raise DeviceError(
            f"Slice {text!r} needs a GPU, but {device.id!r} is a CPU: leave the slice out, or see: foretell devices"
        )
    plain = text.strip().lower().removeprefix("nvidia.com/")
    if plain.startswith(("mig:", "mig-")):
        return _mig(text, plain[len("mig:") :].strip(), device)
    if plain.startswith("mps:"):
        return _mps(text, plain.removeprefix("mps:").strip().removesuffix("%"), device)
    if plain.startswith("sms:"):
        return _sms(text, plain.removeprefix("sms:").strip(), device)
    if _PROFILE.fullmatch(plain):
        return _mig(text, plain, device)
    raise DeviceError(f"Unknown slice {text!r}. Write mps:PERCENT, mig:PROFILE or sms:COUNT, such as mps:30 or sms:8.")


def effective(device: Device, slice_: Slice | None = None) -> Hardware:
    """The hardware that is left: the whole device when there is no slice.

    A MIG instance owns its share of the bandwidth; MPS and SM slices may use all of it, as far as their
    SMs can draw it (see ``ceilings``, an analytic model).

    >>> from foretell.devices import find_device
    >>> a100 = find_device("a100")
    >>> part = effective(a100, parse_slice("mig:3g.20gb", a100))
    >>> part.sms, part.bandwidth_gb_per_s, part.memory_gib, part.l2_mib
    (42, 777.5, 19.5, 20.0)
    """
    if slice_ is None:
        return Hardware(device, None, device.sms, device.bandwidth_gb_per_s, device.l2_mib, device.memory_gib)
    if slice_.sms > device.sms:
        raise DeviceError(
            f"Slice {slice_.text!r} has {slice_.sms} SMs, but {device.id} has {device.sms}: "
            "read the slice for this device with parse_slice."
        )
    return Hardware(
        device=device,
        slice=slice_,
        sms=slice_.sms,
        bandwidth_gb_per_s=attainable_bandwidth_gb_per_s(device, slice_.sms, slice_.bandwidth_fraction),
        l2_mib=device.l2_mib * slice_.l2_fraction,
        memory_gib=min(slice_.memory_gib, device.memory_gib),
    )


def _mps(text: str, value: str, device: Device) -> Slice:
    """A share of the SMs; MPS rounds down to whole pairs of them (14, 20 and 46 % of an H200 show 18, 26 and 60)."""
    if device.compute_capability is not None and float(device.compute_capability) < 7:
        raise DeviceError(
            f"Slice {text!r} needs Volta or newer; {device.id} ({device.architecture}) shares all its SMs."
        )
    try:
        percent = float(value)
    except ValueError:
        percent = math.nan
    if not 1 <= percent <= 100:
        raise DeviceError(
            f"Slice {text!r} is not a share of {device.id}: write mps:1 to mps:100, in percent of its SMs."
        )
    pairs = math.floor(device.sms * percent / 100) // _SMS_PER_TPC
    sms = device.sms if percent == 100 else max(pairs, 1) * _SMS_PER_TPC
    return Slice("mps", f"mps:{percent:g}", sms, device.memory_gib)


def _sms(text: str, value: str, device: Device) -> Slice:
    """A number of SMs."""
    try:
        sms = int(value)
    except ValueError:
        raise DeviceError(f"Slice {text!r} has no number of SMs: write sms:1 to sms:{device.sms}.") from None
    if not 1 <= sms <= device.sms:
        raise DeviceError(
            f"Slice {text!r} asks for {sms} SMs, but {device.id} has {device.sms}: write sms:1 to sms:{device.sms}."
        )
    return Slice("sms", f"sms:{sms}", sms, device.memory_gib)


def _mig(text: str, value: str, device: Device) -> Slice:
    """A MIG instance; Kubernetes writes ``1g.18gb.me`` for ``1g.18gb+me``."""
    if not device.mig_profiles:
        raise DeviceError(f"Slice {text!r} needs MIG, which {device.id} does not have: use mps:PERCENT or sms:COUNT.")
    wanted = f"{value.removesuffix('.me')}+me" if value.endswith(".me") else value
    for profile in device.mig_profiles:
        if profile.name == wanted:
            return Slice(
                "mig",
                f"mig:{profile.name}",
                profile.sms,
                profile.memory_gib,
                profile.bandwidth_fraction,
                profile.l2_fraction,
            )
    known = ", ".join(profile.name for profile in device.mig_profiles)
    raise DeviceError(f"The catalogue has no MIG profile {value!r} for {device.id}. Choose from: {known}.")
