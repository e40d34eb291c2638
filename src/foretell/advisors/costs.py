"""Advisors: costs: dollars, energy and carbon of inference and training; arithmetic alone, every number is an argument.

An unknown number is None, and so is every result that needs it; the field ``unknown`` of a result says why, by the name
of the field. A latency, a power or an energy may be an Estimate. The low end of a result comes from the low ends of all
inputs, and the high end from the high ends, which makes intervals rather too wide. Prices, PUE and carbon intensity
have no interval.

    hours   = steps × step time                      usd    = hours × price
    kWh     = power × hours × PUE                    kg CO₂e = kWh × g CO₂e/kWh / 1000

K. Panner Selvam's thesis: 3.4.5 (cloud cost), 5.6.4 (training cost), 6.3.2 (C = E × CI; there without PUE).
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from foretell.errors import InputError
from foretell.records import Estimate
from foretell.units import KILO, MEGA, seconds_from_ms

_SECONDS_PER_H = 3600
_J_PER_KWH = KILO * _SECONDS_PER_H
# a rate that fits exactly must not need one more instance because of the last bit of a division
_SLACK = 1e-12


@dataclass(frozen=True, slots=True)
class InferenceCost:
    """The cost of a million inferences on devices that are busy all the time.

    ``seconds_per_million`` is the time of one copy of the model; ``device_kwh`` leaves out the data centre (PUE).
    """

    seconds_per_million: Estimate
    usd_per_million: Estimate | None
    device_kwh_per_million: Estimate | None
    kwh_per_million: Estimate | None
    kg_co2e_per_million: Estimate | None
    unknown: Mapping[str, str] = field(hash=False)


@dataclass(frozen=True, slots=True)
class TrainingCost:
    """The cost of a training; ``device_kwh`` leaves out the data centre (PUE)."""

    hours: Estimate
    usd: Estimate | None
    device_kwh: Estimate | None
    kwh: Estimate | None
    kg_co2e: Estimate | None
    unknown: Mapping[str, str] = field(hash=False)


@dataclass(frozen=True, slots=True)
class Fleet:
    """The whole instances that serve a rate, and what they cost whether busy or not."""

    instances: Estimate
    usd_per_h: Estimate | None
    usd_per_million: Estimate | None
    unknown: Mapping[str, str] = field(hash=False)


def inference_cost(
    latency_ms: Estimate | float,
    batch_size: int,
    *,
    usd_per_h: float | None = None,
    replicas: int = 1,
    energy_j: Estimate | float | None = None,
    power_w: Estimate | float | None = None,
    pue: float | None = None,
    g_co2e_per_kwh: float | None = None,
) -> InferenceCost:
    """The cost of a million inferences; each is an item of a batch that takes ``latency_ms``.

    Args:
        latency_ms: time of one forward pass of a batch.
        batch_size: items in a batch.
        usd_per_h: price of an instance on which ``replicas`` copies of the model run side by side, all busy.
        replicas: copies on one instance: its devices, times the slices of each.
        energy_j: energy of one forward pass of a batch; where it is not given, power × latency.
        power_w: mean draw of one copy.
        pue: energy of the data centre over energy of the device; 1 counts the device alone.
        g_co2e_per_kwh: carbon intensity of the grid.

    >>> cost = inference_cost(3.6, 1, usd_per_h=2.0, power_w=500, pue=1.2)
    >>> cost.seconds_per_million.value, cost.usd_per_million.value, round(cost.kwh_per_million.value, 9)
    (3600.0, 2.0, 0.6)
    >>> cost.kg_co2e_per_million, cost.unknown["kg_co2e_per_million"]
    (None, 'the carbon intensity of the grid is unknown')
    """
    latency = _positive("latency", "ms", latency_ms)
    _check_integer("batch size", batch_size)
    _check_integer("number of replicas", replicas)
    seconds = latency.scaled(MEGA / batch_size).scaled(seconds_from_ms(1))
    # a predicted energy is better than power × latency, whose errors add up
    if energy_j is not None:
        device_kwh: Estimate | None = _positive("energy", "J", energy_j).scaled(MEGA / batch_size / _J_PER_KWH)
    else:
        device_kwh = _device_kwh(seconds.scaled(1 / _SECONDS_PER_H), power_w)
    # the price is that of the instance, which all replicas share
    usd = _dollars(seconds.scaled(1 / _SECONDS_PER_H / replicas), usd_per_h)
    kwh, kg_co2e = _energy_and_carbon(device_kwh, pue, g_co2e_per_kwh)
    unknown = _reasons(usd_per_h, device_kwh, pue, g_co2e_per_kwh, energy_word="the energy and the power are")
    suffixed = {f"{name}_per_million": reason for name, reason in unknown.items()}
    return InferenceCost(seconds, usd, device_kwh, kwh, kg_co2e, suffixed)


def training_cost(
    step_ms: Estimate | float,
    steps: int,
    *,
    usd_per_h: float | None = None,
    power_w: Estimate | float | None = None,
    devices: int = 1,
    pue: float | None = None,
    g_co2e_per_kwh: float | None = None,
) -> TrainingCost:
    """The cost of a training on one instance, whose price includes all its devices.

    Args:
        step_ms: time of one step on all devices together.
        steps: how many steps.
        usd_per_h: price of the instance.
        power_w: mean draw of one device.
        devices: devices that draw it.
        pue: energy of the data centre over energy of the devices; 1 counts the devices alone.
        g_co2e_per_kwh: carbon intensity of the grid.

    >>> cost = training_cost(350, 200_000, usd_per_h=2.934)
    >>> f"{cost.hours.value:.2f} h, {cost.usd.value:.2f} $"
    '19.44 h, 57.05 $'
    """
    _check_integer("number of devices", devices)
    _check_integer("number of steps", steps, least=0)
    hours = _positive("step time", "ms", step_ms).scaled(seconds_from_ms(1)).scaled(steps / _SECONDS_PER_H)
    one_kwh = _device_kwh(hours, power_w)
    device_kwh = None if one_kwh is None else one_kwh.scaled(devices)
    kwh, kg_co2e = _energy_and_carbon(device_kwh, pue, g_co2e_per_kwh)
    unknown = _reasons(usd_per_h, device_kwh, pue, g_co2e_per_kwh, energy_word="the power is")
    return TrainingCost(hours, _dollars(hours, usd_per_h), device_kwh, kwh, kg_co2e, unknown)


def fleet_for_rate(
    rate_per_s: float,
    latency_ms: Estimate | float,
    batch_size: int,
    *,
    utilisation: float,
    replicas: int = 1,
    usd_per_h: float | None = None,
) -> Fleet:
    """The instances that serve a rate of requests; each request is an item of a full batch.

    Args:
        rate_per_s: requests a second; 0 needs no instance.
        latency_ms: time of one forward pass of a batch.
        batch_size: items in a batch.
        utilisation: the share of its time that an instance may be busy, above 0 and up to 1; the rest absorbs bursts.
        replicas: copies of the model on one instance.
        usd_per_h: price of an instance.

    >>> fleet = fleet_for_rate(1000, 20, 8, utilisation=0.5, usd_per_h=1.5)
    >>> fleet.instances.value, fleet.usd_per_h.value, round(fleet.usd_per_million.value, 4)
    (5, 7.5, 2.0833)
    """
    if not (math.isfinite(rate_per_s) and rate_per_s >= 0):
        raise InputError(f"The rate is {rate_per_s} requests a second; it must be a number of at least 0.")
    if not 0 < utilisation <= 1:
        raise InputError(f"The utilisation is {utilisation}; it must be above 0 and at most 1, such as 0.7.")
    _check_integer("batch size", batch_size)
    _check_integer("number of replicas", replicas)
    seconds = _positive("latency", "ms", latency_ms).scaled(seconds_from_ms(1))
    needed = seconds.scaled(rate_per_s / (batch_size * replicas * utilisation))
    # half an instance cannot be rented
    instances = Estimate(*(math.ceil(end * (1 - _SLACK)) for end in (needed.value, needed.low, needed.high)))
    usd = _dollars(instances, usd_per_h)
    unknown = {} if usd is not None else dict.fromkeys(("usd_per_h", "usd_per_million"), "the price is unknown")
    if rate_per_s == 0:
        unknown["usd_per_million"] = "there are no requests"
        return Fleet(instances, usd, None, unknown)
    per_million = None if usd is None else usd.scaled(MEGA / (rate_per_s * _SECONDS_PER_H))
    return Fleet(instances, usd, per_million, unknown)


def _dollars(hours: Estimate, usd_per_h: float | None) -> Estimate | None:
    """Hours times price; a price of 0 is a free machine, an unknown price is None."""
    if usd_per_h is None:
        return None
    if not (math.isfinite(usd_per_h) and usd_per_h >= 0):
        raise InputError(f"The price is {usd_per_h} $/h; it must be a number of at least 0, or None where unknown.")
    return hours.scaled(usd_per_h)


def _device_kwh(hours: Estimate, power_w: Estimate | float | None) -> Estimate | None:
    if power_w is None:
        return None
    power_kw = _positive("power", "W", power_w).scaled(1 / KILO)
    return Estimate(hours.value * power_kw.value, hours.low * power_kw.low, hours.high * power_kw.high)


def _energy_and_carbon(
    device_kwh: Estimate | None, pue: float | None, g_co2e_per_kwh: float | None
) -> tuple[Estimate | None, Estimate | None]:
    """Energy including the data centre's overhead, and its carbon in kg."""
    if pue is not None and not (math.isfinite(pue) and pue >= 1):
        raise InputError(f"The PUE is {pue}; it must be a number of at least 1, or None where unknown.")
    if g_co2e_per_kwh is not None and not (math.isfinite(g_co2e_per_kwh) and g_co2e_per_kwh >= 0):
        raise InputError(f"The carbon intensity is {g_co2e_per_kwh} g/kWh; it must be a number of at least 0, or None.")
    # without a PUE the energy at the meter is unknown; a PUE of 1 would be a claim
    kwh = None if device_kwh is None or pue is None else device_kwh.scaled(pue)
    return kwh, None if kwh is None or g_co2e_per_kwh is None else kwh.scaled(g_co2e_per_kwh / KILO)


def _reasons(
    usd_per_h: float | None,
    device_kwh: Estimate | None,
    pue: float | None,
    g_co2e_per_kwh: float | None,
    *,
    energy_word: str,
) -> dict[str, str]:
    """Why each of usd, device_kwh, kwh and kg_co2e is unknown: everything that is missing, in one sentence."""
    no_energy = [f"{energy_word} unknown"] if device_kwh is None else []
    no_pue = ["the PUE is unknown"] if pue is None else []
    no_grid = ["the carbon intensity of the grid is unknown"] if g_co2e_per_kwh is None else []
    missing = {
        "usd": ["the price is unknown"] if usd_per_h is None else [],
        "device_kwh": no_energy,
        "kwh": no_energy + no_pue,
        "kg_co2e": no_energy + no_pue + no_grid,
    }
    return {name: ", ".join(reasons) for name, reasons in missing.items() if reasons}


def _positive(what: str, unit: str, quantity: Estimate | float) -> Estimate:
    """A quantity above 0 with its interval; a plain number is its own interval."""
    estimate = quantity if isinstance(quantity, Estimate) else Estimate(quantity, quantity, quantity)
    if not (0 < estimate.low <= estimate.value <= estimate.high and math.isfinite(estimate.high)):
        raise InputError(
            f"The {what} is {estimate.value} {unit} ({estimate.low} to {estimate.high}); it must be a number above 0."
        )
    return estimate


def _check_integer(what: str, number: int, *, least: int = 1) -> None:
    if number < least or number != int(number):
        raise InputError(f"The {what} is {number}; it must be an integer of at least {least}.")
