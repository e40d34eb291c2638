"""Measured ceilings of devices: what is shipped can be read, and what cannot be is refused."""

import math
import tomllib
from dataclasses import replace

import pytest

from foretell.devices import find_device
from foretell.devices.ceilings import Ceilings, load_ceilings, parse_ceilings
from foretell.errors import DataError
from foretell.toml_rows import Row

# A100, as measured in chapter 3 of the thesis that the roofline follows
A100 = Ceilings("a100-sxm-40gb", "A100", "2023", "ERT", 1346.0, 3877.6, {"fp32": 18.5, "fp16": 292.2})


def test_shipped_ceilings_are_below_the_peaks_of_known_devices() -> None:
    for device, ceilings in load_ceilings().items():
        place = find_device(device)
        assert place.id == device
        assert (ceilings.dram_gb_per_s or 0) <= place.bandwidth_gb_per_s
        for name, rate in ceilings.tflops.items():
            assert rate <= place.peak_tflops(name, tensor_cores=name != "fp32")
        for name, rate in ceilings.plain_tflops.items():
            assert rate <= place.peak_tflops(name, tensor_cores=False)
        assert (ceilings.l1_gb_per_s or math.inf) > (ceilings.cache_gb_per_s or 0)


def test_printed_ceilings_can_be_read_back() -> None:
    ceilings = parse_ceilings(Row("ceilings.toml", tomllib.loads("[ceilings]\n" + A100.to_toml())))
    assert ceilings == {"a100-sxm-40gb": A100}


def test_ceilings_of_l1_and_plain_fp16_can_be_read_back() -> None:
    more = replace(A100, l1_gb_per_s=19287.0, plain_tflops={"fp16": 58.8})
    ceilings = parse_ceilings(Row("ceilings.toml", tomllib.loads("[ceilings]\n" + more.to_toml())))
    assert ceilings == {"a100-sxm-40gb": more}
    assert "plain_tflops" not in A100.to_toml()


def test_quotes_in_names_are_escaped() -> None:
    odd = Ceilings("cpu", 'a "cpu"\n\\', "2026-01-01", "x", 1.0)
    (ceilings,) = parse_ceilings(Row("f", tomllib.loads(odd.to_toml()))).values()
    assert ceilings.name == "a cpu"


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        ({"dram_gb_per_s": -1}, "dram_gb_per_s is -1"),
        ({"cache_gb_per_s": "fast"}, "cache_gb_per_s is 'fast'"),
        ({"tflops": {"fp31": 1.0}}, "'fp31'"),
        ({"tflops": 3}, "tflops is not a table"),
        ({"plain_tflops": 3}, "plain_tflops is not a table"),
        ({"l1_gb_per_s": 0}, "l1_gb_per_s is 0"),
        ({"tflops": {"fp32": 0}}, "fp32 is 0"),
        ({}, "nothing was measured"),
        ({"dram_gb_per_s": 1, "date": "soon"}, "date is 'soon'"),
        ({"dram_gb_per_s": 1, "colour": "red"}, "'colour'"),
    ],
)
def test_what_cannot_be_is_refused(entry: dict[str, object], message: str) -> None:
    fields = {"name": "n", "date": "2026-01-01", "source": "s"} | entry
    with pytest.raises(DataError, match=message):
        parse_ceilings(Row("f", {"ceilings": {"h200": fields}}))
