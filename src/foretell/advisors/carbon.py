"""Advisors: carbon: the carbon of a kilowatt-hour by cloud region and country, and the PUE of data centres."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path

from foretell.errors import DataError, UnknownNameError
from foretell.registry import did_you_mean
from foretell.toml_rows import Row, read_own, read_shipped, sources_of


@dataclass(frozen=True, slots=True)
class Fact:
    """A number, or None where it is unknown; ``note`` says what it is and its source, or why it is unknown."""

    value: float | None
    note: str
    date: str | None = None


@dataclass(frozen=True, slots=True)
class _Place:
    """A region or a country."""

    g_co2e_per_kwh: float | None
    name: str
    country: str | None
    date: str | None
    source: str


@dataclass(frozen=True)
class CarbonFacts:
    """What is known about grids and data centres; names are found without regard to case."""

    countries: Mapping[str, _Place] = field(repr=False)
    regions: Mapping[tuple[str, str], _Place] = field(repr=False)
    pues: Mapping[str, Fact] = field(repr=False)

    def intensity(self, *, cloud: str | None = None, region: str | None = None, country: str | None = None) -> Fact:
        """g CO₂e/kWh of a country if one is given, else of a cloud's region or of the country that it is in.

        >>> load_carbon().intensity(cloud="gcp", region="europe-west9").value
        34.0
        >>> load_carbon().intensity(country="Luxembourg").value
        105.263
        >>> load_carbon().intensity(cloud="lambda", region="europe-central-1").note
        'the carbon intensity of lambda europe-central-1 is unknown: name its country'
        """
        if country is not None:
            return _fact(self._country(country))
        if cloud is None or region is None:
            return Fact(None, "the carbon intensity is unknown: name a country, or a cloud and its region")
        place = self.regions.get((cloud.lower(), region.lower()))
        if place is None:
            return Fact(None, f"the carbon intensity of {cloud} {region} is unknown: name its country")
        # many clouds publish no number for a region: take that of its country, and say so
        if place.g_co2e_per_kwh is None and place.country is not None:
            country_fact = _fact(self.countries[place.country])
            return Fact(country_fact.value, f"{place.name}, as all of {country_fact.note}", country_fact.date)
        return _fact(place)

    def pue(self, cloud: str | None) -> Fact:
        """Energy of the data centre over energy of its machines, 1 or more.

        >>> load_carbon().pue("aws").note
        'the PUE of aws is unknown'
        """
        if cloud is None:
            return Fact(None, "the PUE is unknown: name a cloud")
        return self.pues.get(cloud.lower(), Fact(None, f"the PUE of {cloud} is unknown"))

    def _country(self, written: str) -> _Place:
        """A country by its three-letter ISO 3166 code or its English name."""
        names = {place.name.lower(): place for place in self.countries.values()}
        place = self.countries.get(written.upper()) or names.get(written.lower())
        if place is None:
            known = [*self.countries, *(place.name for place in self.countries.values())]
            raise UnknownNameError(
                f"No carbon intensity for the country {written!r}.{did_you_mean(written, known)} "
                "Your own file can give it: docs/costs.md"
            )
        return place


def load_carbon(path: Path | str | None = None) -> CarbonFacts:
    """The shipped facts; entries of a file of your own replace those of the same name, or are added."""
    return _shipped() if path is None else _parse(read_own(path), _shipped())


@lru_cache(maxsize=1)
def _shipped() -> CarbonFacts:
    return _parse(read_shipped(__package__, "carbon.toml"), CarbonFacts({}, {}, {}))


def _parse(file: Row, base: CarbonFacts) -> CarbonFacts:
    file.allow("sources", "pue", "country", "region")
    sources = sources_of(file)
    countries = {**base.countries}
    for code, row in file.rows("country").items():
        if len(code) != 3 or not code.isalpha():
            raise DataError(f"{row.where}: {code!r} is not a country; use its three letters of ISO 3166, such as LUX")
        name = row.maybe_text("name") or code.upper()
        countries[code.upper()] = _place(row.allow("name", "g_co2e_per_kwh", "date", "source"), name, sources)
    regions = {**base.regions}
    for cloud, inner in file.rows("region").items():
        for region, row in Row(f"{file.where}, region", {cloud: inner.fields}).rows(cloud).items():
            place = _place(row.allow("g_co2e_per_kwh", "country", "date", "source"), f"{cloud} {region}", sources)
            # also a country of the user's own file may be named
            if place.g_co2e_per_kwh is None and place.country not in countries:
                hint = did_you_mean(place.country or "", countries)
                raise DataError(f"{row.where}: there is no [country] {place.country!r}.{hint}")
            regions[cloud.lower(), region.lower()] = place
    pues = {**base.pues}
    for cloud, row in file.rows("pue").items():
        value = row.allow("pue", "date", "source").maybe_number("pue", least=1)
        if value is None:
            raise DataError(f"{row.where}: there is no pue; give it, or leave the entry out")
        date = row.date()
        pues[cloud.lower()] = Fact(value, f"PUE of {cloud}, {date}: {row.source(sources)}", date)
    return CarbonFacts(countries, regions, pues)


def _place(row: Row, name: str, sources: dict[str, object]) -> _Place:
    intensity = row.maybe_number("g_co2e_per_kwh", least=0)
    country = row.maybe_text("country")
    if intensity is None and country is None:
        raise DataError(f"{row.where}: there is no g_co2e_per_kwh; give it, or leave the entry out")
    return _Place(intensity, name, country.upper() if country else None, row.maybe_date(), row.source(sources))


def _fact(place: _Place) -> Fact:
    year = f", {place.date}" if place.date else ""
    return Fact(place.g_co2e_per_kwh, f"{place.name}{year}: {place.source}", place.date)
