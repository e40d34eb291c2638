"""Advisors: MIG: the smallest MIG profile that holds a workload and, where there is a limit, is fast enough.

The capacity of a profile is what the driver gives it (``nvidia-smi mig -lgip``, in the catalogue), not the gigabytes in
its name: 1g.5gb has 4,864 MiB. The need of a workload is ``device_memory_mib`` predicted for the whole device, CUDA
context included; smaller profiles need no more (DIPPM, fig. 3). Memory is compared by the upper end of its interval,
because a workload that does not fit fails. Latency is compared by its value, because one that is a little late does
not.
"""

import math
from collections.abc import Callable
from typing import Literal

from foretell.devices import Device, MigProfile
from foretell.errors import InputError
from foretell.frozen import dataclass
from foretell.records import Estimate
from foretell.units import bytes_from_gib, mib


@dataclass(frozen=True, slots=True)
class MigTrial:
    """A profile that was considered, and what it lacks: None for the chosen one."""

    profile: str
    memory_mib: float
    latency_ms: Estimate | None
    lacks: Literal["memory", "latency"] | None


@dataclass(frozen=True, slots=True)
class MigChoice:
    """The chosen profile, or None where nothing fits; the reason; and all profiles considered, smallest first."""

    profile: str | None
    reason: str
    considered: tuple[MigTrial, ...]


def choose_mig(
    device: Device,
    device_memory_mib: Estimate | float,
    *,
    latency_ms_on: Callable[[MigProfile], Estimate] | None = None,
    latency_limit_ms: float | None = None,
) -> MigChoice:
    """The smallest profile that holds the memory and on which the latency does not exceed the limit.

    Where the upper end of the memory's interval fits no profile but the value does, the largest profile is chosen.

    >>> from foretell.devices import find_device
    >>> a100 = find_device("a100")
    >>> [choose_mig(a100, needed_mib).profile for needed_mib in (4864, 4865, 40192, 40193)]
    ['1g.5gb', '1g.10gb', '7g.40gb', None]
    >>> choose_mig(a100, 40193).reason
    'memory: needs 40,193 MiB, and the largest profile, 7g.40gb, has 40,192 MiB'
    """
    need = _as_estimate(device_memory_mib)
    if (latency_limit_ms is None) != (latency_ms_on is None):
        raise InputError("A latency limit and the latency on a profile go together: give both or neither.")
    check_latency_limit(latency_limit_ms)
    profiles = _from_small_to_large(device)
    if not profiles:
        return MigChoice(None, f"{device.id} has no MIG", ())
    largest_mib = usable_mib(profiles[-1], device)
    # where only the upper end exceeds the largest profile, that profile is still tried
    required_mib = min(need.high, largest_mib) if need.value <= largest_mib else math.inf
    trials: list[MigTrial] = []
    for profile in profiles:
        memory_mib = usable_mib(profile, device)
        if memory_mib < required_mib:
            trials.append(MigTrial(profile.name, memory_mib, None, "memory"))
            continue
        # only for profiles that hold the model: a prediction takes a moment
        latency_ms = latency_ms_on(profile) if latency_ms_on is not None else None
        if latency_ms is not None and latency_limit_ms is not None and latency_ms.value > latency_limit_ms:
            trials.append(MigTrial(profile.name, memory_mib, latency_ms, "latency"))
            continue
        trials.append(MigTrial(profile.name, memory_mib, latency_ms, None))
        return MigChoice(profile.name, _why(need, trials, latency_limit_ms), tuple(trials))
    return MigChoice(None, _why_not(need, trials, latency_limit_ms), tuple(trials))


def usable_mib(profile: MigProfile, device: Device) -> float:
    """The memory of a profile, as NVML shows its total.

    >>> from foretell.devices import find_device
    >>> a100 = find_device("a100")
    >>> usable_mib(a100.mig_profiles[0], a100)
    4864.0
    """
    return mib(bytes_from_gib(min(profile.memory_gib, device.memory_gib)))


def check_latency_limit(latency_limit_ms: float | None) -> None:
    """Refuse a limit that no latency can meet."""
    if latency_limit_ms is not None and not (math.isfinite(latency_limit_ms) and latency_limit_ms > 0):
        raise InputError(f"The latency limit is {latency_limit_ms} ms; it must be a number above 0.")


def _from_small_to_large(device: Device) -> tuple[MigProfile, ...]:
    """The profiles by size, without the variants with media engines, which have the same memory and SMs."""
    plain = (profile for profile in device.mig_profiles if "+" not in profile.name)
    return tuple(sorted(plain, key=lambda profile: (profile.memory_gib, profile.sms)))


def _as_estimate(device_memory_mib: Estimate | float) -> Estimate:
    memory = device_memory_mib
    need = memory if isinstance(memory, Estimate) else Estimate(memory, memory, memory)
    if not (0 < need.value <= need.high and math.isfinite(need.high)):
        raise InputError(f"The memory is {need.value} MiB (up to {need.high}); it must be a number above 0.")
    return need


def _why(need: Estimate, trials: list[MigTrial], latency_limit_ms: float | None) -> str:
    chosen = trials[-1]
    parts = [f"its {chosen.memory_mib:,.0f} MiB hold the predicted {need.value:,.0f} MiB"]
    if need.high > chosen.memory_mib:
        parts.append(f"no profile holds the upper end of the interval, {need.high:,.0f} MiB")
    elif need.high > need.value:
        parts[0] += f" (up to {need.high:,.0f})"
    # profiles that fit by the value alone are named, so that the user can decide
    tight = [t.profile for t in trials if t.lacks == "memory" and t.memory_mib >= need.value]
    if tight:
        parts.append(f"{', '.join(tight)} would hold the prediction, but not the upper end of its interval")
    if chosen.latency_ms is not None and latency_limit_ms is not None:
        late = chosen.latency_ms.high > latency_limit_ms
        upper = f" (up to {_ms(chosen.latency_ms.high)})" if late else ""
        parts.append(f"it takes {_ms(chosen.latency_ms.value)}{upper}; the limit is {_ms(latency_limit_ms)}")
    return "; ".join(parts)


def _why_not(need: Estimate, trials: list[MigTrial], latency_limit_ms: float | None) -> str:
    timed = [(t.latency_ms.value, t.profile) for t in trials if t.latency_ms is not None]
    if timed and latency_limit_ms is not None:
        fastest_ms, profile = min(timed)
        return (
            f"latency: the fastest profile that holds it, {profile}, takes {_ms(fastest_ms)}; "
            f"the limit is {_ms(latency_limit_ms)}"
        )
    largest = trials[-1]
    return (
        f"memory: needs {need.value:,.0f} MiB, and the largest profile, {largest.profile}, "
        f"has {largest.memory_mib:,.0f} MiB"
    )


def _ms(duration_ms: float) -> str:
    return f"{duration_ms:,.0f} ms" if duration_ms >= 100 else f"{duration_ms:.3g} ms"
