"""Other places for a workload, and what they cost."""

from pathlib import Path

import pytest

from foretell.devices import find_device, parse_slice
from foretell.errors import InputError
from foretell.records import Target, Workload
from foretell.testing import tiny_graph
from foretell.workflows.improving.places import Prices, other_devices, other_offers, slices

OWN = """
[[price]]
cloud = "mine"
instance = "box"
region = "cellar"
device = "h200"
devices = 4
usd_per_h = 2.0
date = "2026-01-01"
source = "https://example.org"
"""


@pytest.fixture
def prices(tmp_path: Path) -> Path:
    file = tmp_path / "prices.toml"
    file.write_text(OWN)
    return file


def on(device: str, dtype: str = "fp32") -> Workload:
    return Workload(tiny_graph(), Target(find_device(device)), dtype)


def test_the_price_of_an_instance_is_divided_by_its_devices(prices: Path) -> None:
    rent = Prices(prices).cheapest("h200")
    assert rent is not None
    assert (rent.usd_per_h, rent.instance, rent.region) == (0.5, "mine box", "cellar")
    assert Prices(prices).cheapest("h200", "us-east-1") != rent
    with pytest.raises(InputError, match=r"no prices for the region 'cellars'. Did you mean 'cellar'"):
        Prices(prices, "cellars")


def test_other_devices_run_the_precision(prices: Path) -> None:
    names = [place.name for place in other_devices(on("h200", "bf16"), Prices(prices))]
    assert "h200" not in names
    assert "t4" not in names  # no units for bf16
    assert {"l4", "h100-sxm"} <= set(names)
    (named,) = other_devices(on("h200"), Prices(prices), ["t4"])
    assert named.workload.target.device.id == "t4"


def test_slices_are_those_of_which_several_fit() -> None:
    found = {place.name: place for place in slices(on("h200"), None)}
    assert found["7 × 1g.18gb"].copies == 7
    assert all(place.copies > 1 for place in found.values())
    part = parse_slice("mig:1g.18gb", find_device("h200"))
    assert not list(slices(Workload(tiny_graph(), Target(find_device("h200"), part)), None))


def test_a_cheaper_region_is_offered_to_whoever_is_elsewhere(prices: Path) -> None:
    offers = Prices(prices, "us-east-1")
    rent = offers.cheapest("h200", "us-east-1")
    assert rent is not None
    names = [place.name for place in other_offers(on("h200"), offers, rent)]
    assert "region cellar" in names
    cheapest = Prices(prices).cheapest("h200")
    assert cheapest is not None
    assert "region cellar" not in [place.name for place in other_offers(on("h200"), Prices(prices), cheapest)]
