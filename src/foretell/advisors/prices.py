"""Advisors: prices: what an hour of an instance costs; shipped with a date, overridden by the user's own file."""

from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Literal

from foretell.devices import find_device
from foretell.errors import DataError, DeviceError
from foretell.toml_rows import Row, read_own, read_shipped, sources_of

_NUMBERS = ("devices", "usd_per_h", "spot_usd_per_h")
_WORDS = ("cloud", "instance", "region", "device", "covers", "date", "source")


@dataclass(frozen=True, slots=True)
class Price:
    """An instance of a cloud in a region: its devices, and dollars per hour for all of it; None where unknown.

    ``covers`` says whether the price is that of the instance, or only of its devices with the machine billed
    separately.
    """

    cloud: str
    instance: str
    region: str
    device: str
    devices: int
    usd_per_h: float | None
    spot_usd_per_h: float | None
    covers: Literal["instance", "devices"]
    date: str
    source: str

    @property
    def key(self) -> tuple[str, str, str]:
        """What identifies an entry."""
        return self.cloud, self.instance, self.region

    def usd_per_h_as(self, market: Literal["on-demand", "spot"]) -> float | None:
        """The price on one market; an unknown spot price does not become the on-demand price."""
        return self.spot_usd_per_h if market == "spot" else self.usd_per_h

    def why_unknown(self, market: Literal["on-demand", "spot"]) -> str | None:
        """A sentence where the price on that market is unknown."""
        if self.usd_per_h_as(market) is not None:
            return None
        return f"the {market} price of {self.cloud} {self.instance} in {self.region} is unknown"


def load_prices(path: Path | str | None = None) -> tuple[Price, ...]:
    """The shipped prices; entries of a file of your own replace those of the same key, or are added.

    >>> any(price.instance == "p5en.48xlarge" and price.device == "h200" for price in load_prices())
    True
    """
    if path is None:
        return _shipped()
    merged = {price.key: price for price in _shipped()}
    # own prices replace shipped ones of the same key
    merged |= {price.key: price for price in _parse(read_own(path))}
    return tuple(merged.values())


def select_prices(
    prices: Iterable[Price], *, device: str | None = None, cloud: str | None = None, region: str | None = None
) -> tuple[Price, ...]:
    """The prices of a device, a cloud and a region; None does not restrict.

    >>> sorted({price.cloud for price in select_prices(load_prices(), device="a10g")})
    ['aws']
    """
    device_id = None if device is None else find_device(device).id
    return tuple(
        price
        for price in prices
        if device_id in (None, price.device)
        and (cloud is None or cloud.lower() == price.cloud)
        and (region is None or region.lower() == price.region.lower())
    )


@lru_cache(maxsize=1)
def _shipped() -> tuple[Price, ...]:
    return _parse(read_shipped(__package__, "prices.toml"))


def _parse(file: Row) -> tuple[Price, ...]:
    """The checked entries of a file; refuse two with the same key."""
    file.allow("price", "sources")
    sources = sources_of(file)
    entries = file.fields.get("price")
    if not isinstance(entries, list) or not all(isinstance(entry, dict) for entry in entries):
        raise DataError(f"{file.where}: it has no prices; write each as a table [[price]]. docs/costs.md shows one")
    prices: dict[tuple[str, str, str], Price] = {}
    for number, entry in enumerate(entries, 1):
        row = Row(f"{file.where}, price {number}", entry)
        price = _price(row, sources)
        if price.key in prices:
            raise DataError(f"{row.where}: {' '.join(price.key)} occurs twice; keep one of the entries")
        prices[price.key] = price
    return tuple(prices.values())


def _price(row: Row, sources: dict[str, object]) -> Price:
    row.allow(*_WORDS, *_NUMBERS)
    try:
        device = find_device(row.text("device")).id
    except DeviceError as error:
        raise DataError(f"{row.where}: {error}") from error
    usd_per_h = row.maybe_number("usd_per_h", least=0, open_end=True)
    spot_usd_per_h = row.maybe_number("spot_usd_per_h", least=0, open_end=True)
    if usd_per_h is None and spot_usd_per_h is None:
        raise DataError(f"{row.where}: there is no price; give usd_per_h or spot_usd_per_h, or leave the entry out")
    return Price(
        cloud=row.text("cloud").lower(),
        instance=row.text("instance"),
        region=row.text("region"),
        device=device,
        devices=row.count("devices", default=1),
        usd_per_h=usd_per_h,
        spot_usd_per_h=spot_usd_per_h,
        covers=_covers(row),
        date=row.date(),
        source=row.source(sources),
    )


def _covers(row: Row) -> Literal["instance", "devices"]:
    written = row.maybe_text("covers")
    if written is None or written == "instance":
        return "instance"
    if written == "devices":
        return "devices"
    raise DataError(f"{row.where}: covers is {written!r}; it must be 'instance' or 'devices'")
