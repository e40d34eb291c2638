"""Carbon intensities and PUEs: what is shipped, how a place is found, and what a user's file may say."""

import tomllib
from importlib.resources import files

import pytest

from foretell.advisors.carbon import load_carbon
from foretell.advisors.prices import load_prices
from foretell.errors import DataError, UnknownNameError

FACTS = load_carbon()
RAW = tomllib.loads(files("foretell.advisors").joinpath("carbon.toml").read_text(encoding="utf-8"))


@pytest.fixture
def own(tmp_path):
    def write(text: str):
        path = tmp_path / "own.toml"
        path.write_text(text, encoding="utf-8")
        return path

    return write


def test_every_shipped_number_has_a_named_source_and_every_country_its_year():
    rows = [*RAW["country"].values(), *(row for regions in RAW["region"].values() for row in regions.values())]
    assert {row["source"] for row in rows} == set(RAW["sources"])
    assert all(2020 <= int(row["date"]) <= 2024 for row in RAW["country"].values())
    assert all(0 < row.get("g_co2e_per_kwh", 1) < 1300 for row in rows), "grams a kWh, not kilograms or tonnes"


def test_every_region_is_in_a_country_that_is_there():
    for cloud, regions in RAW["region"].items():
        for region, row in regions.items():
            assert row["country"] in RAW["country"]
            assert FACTS.intensity(cloud=cloud, region=region).value is not None


def test_where_the_prices_are_carbon_is_known_or_says_why():
    unknown = set()
    for price in load_prices():
        fact = FACTS.intensity(cloud=price.cloud, region=price.region)
        if fact.value is None:
            unknown.add((price.cloud, price.region))
            assert fact.note == f"the carbon intensity of {price.cloud} {price.region} is unknown: name its country"
    assert unknown == {("lambda", "europe-central-1"), ("nebius", "eu-north1"), ("nebius", "me-west1")}


def test_a_region_has_its_own_number_or_its_country_s():
    own_number = FACTS.intensity(cloud="AWS", region="US-East-1")
    assert own_number.value == pytest.approx(415.755)
    assert own_number.note.startswith("aws us-east-1: US EPA")
    assert own_number.date is None
    of_country = FACTS.intensity(cloud="oci", region="eu-amsterdam-1")
    assert of_country.value == FACTS.intensity(country="NLD").value == pytest.approx(267.622)
    assert of_country.note.startswith("oci eu-amsterdam-1, as all of Netherlands, 2023: codecarbon")
    assert of_country.date == "2023"


def test_a_country_by_code_or_name_goes_before_the_region():
    assert FACTS.intensity(cloud="aws", region="us-east-1", country="nor").value == pytest.approx(30.08)
    assert FACTS.intensity(country="south korea") == FACTS.intensity(country="KOR")
    with pytest.raises(UnknownNameError) as caught:
        FACTS.intensity(country="Luxemburg")
    assert str(caught.value).startswith("No carbon intensity for the country 'Luxemburg'. Did you mean 'Luxembourg'?")


def test_carbon_is_unknown_without_region_or_country():
    assert FACTS.intensity().value is None
    assert FACTS.intensity(cloud="aws").note.endswith("name a country, or a cloud and its region")
    assert FACTS.intensity(cloud="aws", region="free choice").value is None
    assert FACTS.pue("aws").value is None
    assert FACTS.pue(None).note == "the PUE is unknown: name a cloud"


def test_an_own_file_replaces_and_adds(own):
    path = own(
        """
        [sources]
        meter = "our meter"
        [pue]
        Rack = { pue = 1.3, date = "2025", source = "meter" }
        [country]
        nor = { g_co2e_per_kwh = 0, date = 2025-01-01, source = "a year of water" }
        ISL = { name = "Iceland", g_co2e_per_kwh = 28, source = "meter" }
        [region.rack]
        basement = { country = "isl", source = "meter" }
        roof = { g_co2e_per_kwh = 5.5, date = "2025-06", source = "meter" }
        """
    )
    facts = load_carbon(path)
    assert (facts.pue("RACK").value, facts.pue("rack").note) == (1.3, "PUE of Rack, 2025: our meter")
    assert facts.intensity(country="NOR").value == 0, "a grid without carbon is not an unknown one"
    assert facts.intensity(cloud="rack", region="basement").value == 28
    assert facts.intensity(cloud="rack", region="roof").note == "rack roof, 2025-06: our meter"
    assert facts.intensity(country="FRA") == FACTS.intensity(country="FRA")
    assert FACTS.intensity(country="NOR").value == pytest.approx(30.08), "the shipped ones stay as they are"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            '[pue]\na = { pue = 0.9, date = "2025", source = "s" }',
            "pue.a: pue is 0.9; it must be a number of at least 1",
        ),
        ('[pue]\na = { date = "2025", source = "s" }', "there is no pue; give it, or leave the entry out"),
        ('[pue]\na = { pue = 1.1, source = "s" }', "date is missing"),
        ("[pue]\na = 1.1", "pue.a is 1.1; it must be a table"),
        ("pue = 1.1", "pue is 1.1; it must be a table, such as [pue]"),
        (
            '[country]\nFRA = { g_co2e_per_kwh = -1, source = "s" }',
            "g_co2e_per_kwh is -1; it must be a number of at least 0",
        ),
        ('[country]\nFRA = { source = "s" }', "there is no g_co2e_per_kwh"),
        ("[country]\nFRA = { g_co2e_per_kwh = 1 }", "source is absent"),
        ('[country]\nFR = { g_co2e_per_kwh = 1, source = "s" }', "'FR' is not a country; use its three letters"),
        ('[country]\nFRA = { g_co2_per_kwh = 1, source = "s" }', "Did you mean 'g_co2e_per_kwh'?"),
        ('[region.a]\nb = { country = "FRO", source = "s" }', "region, a.b: there is no [country] 'FRO'. Did you mean"),
        ('[region.a]\nb = { source = "s" }', "there is no g_co2e_per_kwh"),
        ("[region]\na = 3", "region.a is 3"),
        ("[regions]", "unknown key 'regions'. Did you mean 'region'?"),
    ],
)
def test_a_mistake_is_named_with_its_place_in_one_line(own, text, message):
    with pytest.raises(DataError) as caught:
        load_carbon(own(text))
    assert message in str(caught.value)
    assert "own.toml" in str(caught.value)
    assert "\n" not in str(caught.value)
