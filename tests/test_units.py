"""Conversions there and back."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from foretell import units


@given(st.integers(0, 2**50))
def test_sizes_there_and_back(size: int) -> None:
    assert units.bytes_from_mib(units.mib(size)) == size
    assert units.bytes_from_gib(units.gib(size)) == size


@given(st.floats(1e-6, 1e6))
def test_times_there_and_back(seconds: float) -> None:
    assert units.seconds_from_ms(units.ms(seconds)) == pytest.approx(seconds)
    assert units.seconds_from_us(units.ms(units.ms(seconds))) == pytest.approx(seconds)


def test_rates() -> None:
    assert units.per_second(8, 4.0) == 2000.0
    assert units.flops_per_s(989.4) == 989.4e12
    assert units.bytes_per_s(4800) == 4.8e12
    assert units.gflops_from_tflops(2) == 2000


@pytest.mark.parametrize(
    ("value", "text"),
    [(0, "0"), (999, "999"), (1000, "1 k"), (4_089_184_256, "4.09 G"), (2.5e16, "25000 T"), (-1500, "-1.5 k")],
)
def test_numbers_as_people_read_them(value: float, text: str) -> None:
    assert units.engineering(value) == text


def test_units_follow_the_prefix() -> None:
    assert units.engineering(1500, "B/s") == "1.5 kB/s"
    assert units.engineering(3, "B") == "3 B"


@pytest.mark.parametrize(
    ("value", "text"), [(0, "0 B"), (1023, "1023 B"), (1024, "1 KiB"), (2**31, "2 GiB"), (1023 * 2**20, "1023 MiB")]
)
def test_sizes_as_people_read_them(value: float, text: str) -> None:
    assert units.size(value) == text
