"""The shipped prices hold what they promise; a user's file overrides them, and its mistakes are named."""

import tomllib
from importlib.resources import files

import pytest

from foretell.advisors.prices import Price, load_prices, select_prices
from foretell.devices import all_devices
from foretell.errors import DataError

PRICES = load_prices()
RAW = tomllib.loads(files("foretell.advisors").joinpath("prices.toml").read_text(encoding="utf-8"))
OWN = """
[[price]]
cloud = "aws"
instance = "p5en.48xlarge"
region = "us-east-1"
device = "h200"
devices = 8
usd_per_h = 40
date = "2026-09"
source = "our contract"

[[price]]
cloud = "Rack"
instance = "node-1"
region = "basement"
device = "NVIDIA A100-SXM4-40GB"
spot_usd_per_h = 0.5
date = 2026-09-01
source = "ours"

[sources]
ours = "depreciation over four years"
"""


def at(prices: tuple[Price, ...], *key: str) -> Price:
    (match,) = [price for price in prices if price.key == key]
    return match


@pytest.fixture
def own(tmp_path):
    def write(text: str):
        path = tmp_path / "own.toml"
        path.write_text(text, encoding="utf-8")
        return path

    return write


def test_every_shipped_price_has_a_device_a_date_and_a_named_source():
    ids = {device.id for device in all_devices()}
    for row in RAW["price"]:
        assert row["device"] in ids, "an id, not an alias"
        assert row["source"] in RAW["sources"]
        assert row["usd_per_h"] > row.get("spot_usd_per_h", 0) >= 0
    assert {row["source"] for row in RAW["price"]} == set(RAW["sources"])
    assert len(PRICES) == len(RAW["price"]) == len({price.key for price in PRICES})
    assert all(price.date == "2026-08" and "https://" in price.source for price in PRICES)


def test_a_gpu_hour_costs_what_gpu_hours_cost():
    """A price for the wrong number of devices would fall out of this range."""
    for price in PRICES:
        assert price.usd_per_h is not None
        assert 0.3 < price.usd_per_h / price.devices < 15, price.key


def test_the_a100_of_the_thesis_is_there():
    """5.6.4 has 2.934 $/h for an A100; Table 3.4 has 11.74 $/h for four at GCP."""
    price = at(PRICES, "gcp", "4x A100", "europe-west4")
    assert price.usd_per_h == pytest.approx(11.74, abs=0.005)
    assert price.usd_per_h / price.devices == pytest.approx(2.934, abs=0.0005)
    assert price.covers == "devices"


def test_spot_that_is_unknown_is_not_on_demand():
    price = at(PRICES, "oci", "BM.GPU.H200.8", "eu-amsterdam-1")
    assert price.usd_per_h_as("on-demand") == 80
    assert price.usd_per_h_as("spot") is None
    assert price.why_unknown("on-demand") is None
    assert price.why_unknown("spot") == "the spot price of oci BM.GPU.H200.8 in eu-amsterdam-1 is unknown"


def test_an_own_file_replaces_the_same_place_and_adds_others(own):
    merged = load_prices(own(OWN))
    assert len(merged) == len(PRICES) + 1
    replaced = at(merged, "aws", "p5en.48xlarge", "us-east-1")
    assert (replaced.usd_per_h, replaced.spot_usd_per_h, replaced.source) == (40, None, "our contract")
    added = at(merged, "rack", "node-1", "basement")
    assert (added.device, added.devices, added.usd_per_h, added.spot_usd_per_h) == ("a100-sxm-40gb", 1, None, 0.5)
    assert (added.date, added.source, added.covers) == ("2026-09-01", "depreciation over four years", "instance")
    assert load_prices() == PRICES, "the shipped ones stay as they are"


def test_selection_by_device_cloud_and_region():
    assert {price.device for price in select_prices(PRICES, device="h100")} == {"h100-sxm"}
    assert {price.cloud for price in select_prices(PRICES, cloud="AWS")} == {"aws"}
    assert [p.instance for p in select_prices(PRICES, device="t4", cloud="azure", region="EastUS")] == [
        "Standard_NC4as_T4_v3"
    ]
    assert select_prices(PRICES, region="nowhere") == ()
    assert select_prices(PRICES) == PRICES
    assert select_prices(PRICES, device="v100-pcie-32gb") == (), "unknown, not zero"


def entry(**changes: str | None) -> str:
    fields: dict[str, str | None] = {
        "cloud": '"c"', "instance": '"i"', "region": '"r"', "device": '"t4"', "usd_per_h": "1", "date": '"2026"',
        "source": '"s"',
    }  # fmt: skip
    fields |= changes
    return "[[price]]\n" + "\n".join(f"{name} = {text}" for name, text in fields.items() if text is not None) + "\n"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (entry(usd_per_h="0"), "price 1: usd_per_h is 0; it must be a number above 0, or absent if unknown"),
        (entry(spot_usd_per_h="-1"), "spot_usd_per_h is -1; it must be a number above 0"),
        (entry(usd_per_h='"2"'), "usd_per_h is '2'; it must be a number above 0"),
        (entry(usd_per_h="true"), "usd_per_h is True"),
        (entry(usd_per_h="nan"), "usd_per_h is nan"),
        (entry(usd_per_h="inf"), "usd_per_h is inf"),
        (entry(usd_per_h=None), "there is no price; give usd_per_h or spot_usd_per_h"),
        (entry(device='"a10o"'), "Unknown device 'a10o'. Did you mean 'a100-sxm-40gb'? See: foretell devices"),
        (entry(device=None), "device is absent; it must be text in quotes"),
        (entry(devices="0"), "devices is 0; it must be an integer of at least 1"),
        (entry(devices="1.5"), "devices is 1.5"),
        (entry(date=None), "date is missing; give the date of the value, such as '2026', '2026-08' or '2026-08-15'"),
        (entry(date='"last week"'), "date is 'last week'; it must be a date"),
        (entry(date='"2026-13"'), "date is '2026-13'"),
        (entry(source=None), "source is absent"),
        (entry(region='" "'), "region is ' '"),
        (entry(covers='"disk"'), "covers is 'disk'; it must be 'instance' or 'devices'"),
        (entry(spot_usd="1"), "unknown key 'spot_usd'. Did you mean 'spot_usd_per_h'?"),
        (entry() + entry(cloud='"C"'), "price 2: c i r occurs twice; keep one"),
        ("", "it has no prices; write each as a table [[price]]"),
        ("price = 3", "it has no prices"),
        ("prices = []", "unknown key 'prices'. Did you mean 'price'?"),
        ("sources = 3\n" + entry(), "sources is 3; it must be a table"),
        ("[[price", "is not TOML"),
    ],
)
def test_a_mistake_is_named_with_its_place_in_one_line(own, text, message):
    with pytest.raises(DataError) as caught:
        load_prices(own(text))
    assert message in str(caught.value)
    assert "own.toml" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_file_that_is_not_there_or_not_text(tmp_path):
    with pytest.raises(DataError, match="No such file"):
        load_prices(tmp_path / "absent.toml")
    (tmp_path / "binary.toml").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(DataError, match="is not TOML"):
        load_prices(str(tmp_path / "binary.toml"))
