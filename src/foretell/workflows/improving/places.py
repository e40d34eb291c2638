"""Workflows: other places for a workload: another GPU, slices of this one, another region or market; with their prices.

Prices are those of whole instances, divided by their devices. Those that cover devices alone, with the machine billed
separately, are left out: they would look too cheap.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from foretell.advisors.prices import load_prices
from foretell.devices import Device, find_device, parse_slice
from foretell.errors import InputError
from foretell.records import Target, Workload
from foretell.registry import did_you_mean

_HALF = ("fp16", "bf16", "tf32")


@dataclass(frozen=True, slots=True)
class Rent:
    """What one device costs for an hour, and where."""

    usd_per_h: float
    instance: str
    region: str


@dataclass(frozen=True, slots=True)
class Place:
    """Where a workload could run instead; so many ``copies`` of it run side by side on a device."""

    name: str
    kind: Literal["device", "slice", "region", "market"]
    how: str
    workload: Workload
    rent: Rent | None
    copies: int = 1


class Prices:
    """The shipped prices and those of a user's file, by device."""

    def __init__(self, file: Path | str | None = None, region: str | None = None) -> None:
        self._prices = [price for price in load_prices(file) if price.covers == "instance"]
        self.region = region
        known = {price.region for price in self._prices}
        if region is not None and region not in known:
            raise InputError(f"There are no prices for the region {region!r}.{did_you_mean(region, known)}")

    def cheapest(self, device: str, region: str | None = None, *, spot: bool = False) -> Rent | None:
        """The cheapest offer of a device, in one region if one is given."""
        offers = [
            Rent(usd / price.devices, f"{price.cloud} {price.instance}", price.region)
            for price in self._prices
            if price.device == device and region in (None, price.region)
            if (usd := price.spot_usd_per_h if spot else price.usd_per_h) is not None
        ]
        return min(offers, key=lambda rent: rent.usd_per_h, default=None)

    def devices(self) -> list[str]:
        """The devices that somebody rents out."""
        return sorted({price.device for price in self._prices})


def other_devices(workload: Workload, prices: Prices, names: Sequence[str] | None = None) -> Iterator[Place]:
    """The workload on each other GPU that is rented out, or on those that are named; as it is, at its precision."""
    here = workload.target.device
    for name in prices.devices() if names is None else names:
        device = find_device(name)
        if device.id != here.id and not device.is_cpu and _runs(device, workload.dtype):
            rent = prices.cheapest(device.id, prices.region) or prices.cheapest(device.id)
            there = f"rent {rent.instance} ({rent.region})" if rent else "no price is known"
            moved = replace(workload, target=Target(device, None, workload.target.runtime))
            yield Place(device.id, "device", there, moved, rent)


def _runs(device: Device, dtype: str) -> bool:
    return device.is_nvidia and (dtype not in _HALF or dtype in device.tensor_tflops)


def slices(workload: Workload, rent: Rent | None) -> Iterator[Place]:
    """The workload on each kind of MIG slice of its GPU, as many copies as there are slices."""
    device = workload.target.device
    if workload.target.slice is not None:
        return
    for profile in device.mig_profiles:
        if profile.max_instances > 1:
            part = parse_slice(f"mig:{profile.name}", device)
            moved = replace(workload, target=replace(workload.target, slice=part))
            how = f"{profile.max_instances} MIG slices {profile.name} on one GPU, a copy of the model on each"
            yield Place(f"{profile.max_instances} × {profile.name}", "slice", how, moved, rent, profile.max_instances)


def other_offers(workload: Workload, prices: Prices, rent: Rent) -> Iterator[Place]:
    """The same GPU in the cheapest region, and on the spot market."""
    device = workload.target.device.id
    cheapest = prices.cheapest(device)
    if cheapest is not None and cheapest.region != rent.region:
        how = (
            f"rent {cheapest.instance} there: ${cheapest.usd_per_h:.2f} instead of ${rent.usd_per_h:.2f} a GPU and hour"
        )
        yield Place(f"region {cheapest.region}", "region", how, workload, cheapest)
    spot = prices.cheapest(device, prices.region, spot=True)
    if spot is not None:
        how = (
            f"{spot.instance} ({spot.region}) may be taken away: ${spot.usd_per_h:.2f} instead of ${rent.usd_per_h:.2f}"
        )
        yield Place("spot instances", "market", how, workload, spot)
