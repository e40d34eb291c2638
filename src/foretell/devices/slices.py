"""Devices: a slice of a GPU (MPS, MIG, or a number of SMs), and the hardware that it leaves to a workload.

A slice can be written in three ways:

* ``mps:30``: 30 % of the SMs under CUDA MPS. Memory, bandwidth and L2 are shared, so the workload may use all of them.
* ``mig:1g.18gb``: a MIG instance, which owns a part of the memory, the bandwidth and the L2. ``1g.18gb`` and the name
  of the Kubernetes resource, ``nvidia.com/mig-1g.18gb``, mean the same.
* ``sms:66``: 66 SMs, as a CUDA green context gives them. Everything else is shared.

Idea: a slice is resolved to numbers (`Slice`), and `effective` turns device and slice into the `Hardware` that the
predictors see: SMs, bandwidth, L2, memory. Compute peaks scale with the share of SMs. Bandwidth is the part that the
slice owns, but no more than its SMs can draw (`foretell.devices.bandwidth`).

Source: MIG profiles are those of the catalogue, which cites NVIDIA's MIG user guide. That MPS rounds down to whole
pairs of SMs (a TPC) was observed on an H200.

Limits: other clients that share the memory are not part of a slice; how they disturb one another is predicted
elsewhere. The power limit and the clocks of the whole device apply.
"""

import math
import re
from typing import Literal

from foretell.devices.bandwidth import attainable_bandwidth_gb_per_s
from foretell.devices.device import Device
from foretell.errors import DeviceError
from foretell.frozen import dataclass

_PROFILE = re.compile(r"[1-9]\d*g\.\d+gb([.+-][a-z.]+)?")
_SMS_PER_TPC = 2  # MPS hands out whole texture processing clusters


@dataclass(frozen=True, slots=True)
class Slice:
    """A part of one device, resolved to numbers."""

    kind: Literal["mps", "mig", "sms"]
    text: str
    sms: int
    memory_gib: float
    bandwidth_fraction: float = 1.0
    l2_fraction: float = 1.0


@dataclass(frozen=True, slots=True)
class Hardware:
    """What a workload can use: the whole device, or a slice of it."""

    device: Device
    slice: Slice | None
    sms: int
    bandwidth_gb_per_s: float
    l2_mib: float
    memory_gib: float

    @property
    def sm_fraction(self) -> float:
        """The share of the device's SMs."""
        return self.sms / self.device.sms

    def peak_tflops(self, dtype: str, *, tensor_cores: bool) -> float:
        """The peak of the device, scaled by the share of SMs."""
        return self.device.peak_tflops(dtype, tensor_cores=tensor_cores) * self.sm_fraction


def parse_slice(text: str, device: Device) -> Slice:
    """Parse the text of a slice, and check that the device has it.

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
    if not device.is_nvidia:
        raise DeviceError(
            f"Slice {text!r} is NVIDIA's, and {device.id} is a GPU of {device.vendor}: leave the slice out."
        )
    plain = text.strip().lower().removeprefix("nvidia.com/")
    if plain.startswith(("mig:", "mig-")):
        return _mig(text, plain[len("mig:") :].strip(), device)
    if plain.startswith("mps:"):
        return _mps(text, plain.removeprefix("mps:").strip().removesuffix("%"), device)
    if plain.startswith("sms:"):
        return _sms(text, plain.removeprefix("sms:").strip(), device)
    # a bare profile name, as nvidia-smi prints it
    if _PROFILE.fullmatch(plain):
        return _mig(text, plain, device)
    raise DeviceError(f"Unknown slice {text!r}. Write mps:PERCENT, mig:PROFILE or sms:COUNT, such as mps:30 or sms:8.")


def effective(device: Device, slice_: Slice | None = None) -> Hardware:
    """Return the hardware that a workload can use: the slice, or the whole device without one.

    A MIG instance owns its share of the bandwidth. MPS and SM slices may use all of it, as far as their SMs can draw it
    (see `foretell.devices.bandwidth`).

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
    """A share of the SMs. MPS rounds down to whole pairs: 14, 20 and 46 % of an H200 are 18, 26 and 60 SMs."""
    # MPS limits the SMs of a client only since Volta; before, all clients share all SMs
    if device.compute_capability is not None and float(device.compute_capability) < 7:
        raise DeviceError(
            f"Slice {text!r} needs Volta or newer; {device.id} ({device.architecture}) shares all its SMs."
        )
    try:
        percent = float(value)
    except ValueError:
        percent = math.nan
    if not 1 <= percent <= 100:  # also true for NaN
        raise DeviceError(
            f"Slice {text!r} is not a share of {device.id}: write mps:1 to mps:100, in percent of its SMs."
        )
    pairs = math.floor(device.sms * percent / 100) // _SMS_PER_TPC
    sms = device.sms if percent == 100 else max(pairs, 1) * _SMS_PER_TPC  # a GPU may have an odd number of SMs
    return Slice("mps", f"mps:{percent:g}", sms, device.memory_gib)


def _sms(text: str, value: str, device: Device) -> Slice:
    """A fixed number of SMs."""
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
    """A MIG instance. Kubernetes writes ``1g.18gb.me`` for ``1g.18gb+me``."""
    if not device.mig_profiles:
        raise DeviceError(f"Slice {text!r} needs MIG, which {device.id} does not have: use mps:PERCENT or sms:COUNT.")
    name = f"{value.removesuffix('.me')}+me" if value.endswith(".me") else value
    for profile in device.mig_profiles:
        if profile.name == name:
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
