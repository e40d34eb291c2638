"""Which MIG profile a workload gets, at and around every boundary."""

import math
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise

import pytest

from foretell.advisors.mig import MigChoice, choose_mig, usable_mib
from foretell.devices import Device, MigProfile, all_devices, find_device
from foretell.errors import InputError
from foretell.records import Estimate

WITH_MIG = [device for device in all_devices() if device.mig_profiles]
A100 = find_device("a100")
# as the MIG User Guide lists them, from small to large, without media extensions
GUIDE = {
    "a100": "1g.5gb 1g.10gb 2g.10gb 3g.20gb 4g.20gb 7g.40gb",
    "a100-pcie": "1g.5gb 1g.10gb 2g.10gb 3g.20gb 4g.20gb 7g.40gb",
    "a100-80gb": "1g.10gb 1g.20gb 2g.20gb 3g.40gb 4g.40gb 7g.80gb",
    "a100-pcie-80gb": "1g.10gb 1g.20gb 2g.20gb 3g.40gb 4g.40gb 7g.80gb",
    "h100": "1g.10gb 1g.20gb 2g.20gb 3g.40gb 4g.40gb 7g.80gb",
    "h100-pcie": "1g.10gb 1g.20gb 2g.20gb 3g.40gb 4g.40gb 7g.80gb",
    "h200": "1g.18gb 1g.35gb 2g.35gb 3g.71gb 4g.71gb 7g.141gb",
    "b200": "1g.23gb 1g.45gb 2g.45gb 3g.90gb 4g.90gb 7g.180gb",
}


def profiles(device: Device) -> list[MigProfile]:
    return [profile for profile in device.mig_profiles if "+" not in profile.name]


def takes(**latency_ms: float) -> Callable[[MigProfile], Estimate]:
    """A latency by slices: ``g1=30`` for every 1g profile."""
    by_slices = {name.removeprefix("g"): value for name, value in latency_ms.items()}

    def latency(profile: MigProfile) -> Estimate:
        value = by_slices[profile.name[0]]
        return Estimate(value, value / 2, value * 2)

    return latency


@pytest.mark.parametrize("name", GUIDE)
def test_the_catalogue_has_the_profiles_of_the_guide(name: str) -> None:
    assert {profile.name for profile in profiles(find_device(name))} == set(GUIDE[name].split())


@pytest.mark.parametrize("device", WITH_MIG, ids=lambda device: device.id)
def test_smaller_in_memory_is_never_larger_in_anything_else(device: Device) -> None:
    """Otherwise "the smallest profile" would have no meaning."""
    ordered = sorted(profiles(device), key=lambda p: (p.memory_gib, p.sms))
    for small, large in pairwise(ordered):
        assert small.sms <= large.sms
        assert small.bandwidth_eighths <= large.bandwidth_eighths
        assert (small.memory_gib, small.sms) != (large.memory_gib, large.sms)


@pytest.mark.parametrize("device", WITH_MIG, ids=lambda device: device.id)
def test_every_memory_up_to_the_largest_profile_has_an_answer(device: Device) -> None:
    for profile in profiles(device):
        exact_mib = usable_mib(profile, device)
        choice = choose_mig(device, exact_mib)
        assert choice.profile is not None
        chosen = next(p for p in profiles(device) if p.name == choice.profile)
        assert usable_mib(chosen, device) == exact_mib
        above = choose_mig(device, exact_mib + 0.01)
        larger = [p.name for p in profiles(device) if usable_mib(p, device) > exact_mib]
        assert above.profile in larger if larger else above.profile is None


def test_memory_is_what_the_driver_gives_not_what_the_name_says() -> None:
    assert usable_mib(A100.mig_profiles[0], A100) == 4864
    assert choose_mig(A100, 4900).profile == "1g.10gb"


def test_of_profiles_with_equal_memory_the_one_with_fewer_sms_is_chosen() -> None:
    assert choose_mig(A100, 9000).profile == "1g.10gb"
    assert choose_mig(A100, 15000).profile == "3g.20gb"


def test_media_extensions_are_never_advised() -> None:
    names = {t.profile for device in WITH_MIG for t in choose_mig(device, 10**9).considered}
    assert names
    assert not any("+" in name for name in names)


def test_the_upper_end_decides_and_the_reason_says_so() -> None:
    choice = choose_mig(A100, Estimate(4500, 4200, 5200))
    assert choice.profile == "1g.10gb"
    assert "4,500 MiB (up to 5,200)" in choice.reason
    assert "1g.5gb would hold the prediction, but not the upper end" in choice.reason
    sure = choose_mig(A100, Estimate(4500, 4200, 4864))
    assert sure.profile == "1g.5gb"
    assert "would hold" not in sure.reason


def test_the_largest_profile_is_chosen_if_only_the_value_fits() -> None:
    choice = choose_mig(A100, Estimate(15000, 14000, 41000))
    assert choice.profile == "7g.40gb"
    assert "no profile holds the upper end of the interval, 41,000 MiB" in choice.reason


def test_no_profile_has_enough_memory() -> None:
    choice = choose_mig(A100, Estimate(41000, 10, 60000))
    assert choice.profile is None
    assert choice.reason == "memory: needs 41,000 MiB, and the largest profile, 7g.40gb, has 40,192 MiB"
    assert {t.lacks for t in choice.considered} == {"memory"}


@pytest.mark.parametrize("name", ["t4", "l4", "cpu"])
def test_a_device_without_mig(name: str) -> None:
    assert choose_mig(find_device(name), 100) == MigChoice(None, f"{name} has no MIG", ())


@pytest.mark.parametrize(
    ("limit_ms", "profile"), [(40, "1g.5gb"), (39.9, "2g.10gb"), (20, "2g.10gb"), (9, "7g.40gb"), (8, "7g.40gb")]
)
def test_the_latency_limit_holds_when_it_is_met_exactly(limit_ms: float, profile: str) -> None:
    latency = takes(g1=40, g2=20, g3=15, g4=12, g7=8)
    choice = choose_mig(A100, 1000, latency_ms_on=latency, latency_limit_ms=limit_ms)
    assert choice.profile == profile
    assert f"the limit is {limit_ms:g} ms" in choice.reason


def test_the_reason_names_an_upper_end_beyond_the_limit() -> None:
    choice = choose_mig(A100, 1000, latency_ms_on=takes(g1=40), latency_limit_ms=50)
    assert choice.profile == "1g.5gb"
    assert "it takes 40 ms (up to 80 ms); the limit is 50 ms" in choice.reason


def test_no_profile_meets_the_latency_limit() -> None:
    latency = takes(g1=40, g2=20, g3=15, g4=12, g7=8)
    choice = choose_mig(A100, 6000, latency_ms_on=latency, latency_limit_ms=7.9)
    assert choice.profile is None
    assert choice.reason == "latency: the fastest profile that holds it, 7g.40gb, takes 8 ms; the limit is 7.9 ms"
    assert [t.lacks for t in choice.considered] == ["memory", *["latency"] * 5]


def test_profiles_are_tried_from_small_to_large_and_no_further_than_needed() -> None:
    tried: list[str] = []

    def latency(profile: MigProfile) -> Estimate:
        tried.append(profile.name)
        return takes(g1=40, g2=20, g3=15)(profile)

    choice = choose_mig(A100, 6000, latency_ms_on=latency, latency_limit_ms=16)
    assert tried == ["1g.10gb", "2g.10gb", "3g.20gb"]
    assert [t.profile for t in choice.considered] == ["1g.5gb", *tried]
    assert choice.considered[0].latency_ms is None


@pytest.mark.parametrize("memory", [0.0, -1.0, math.nan, math.inf, Estimate(1, 1, math.inf)])
def test_impossible_memory_is_refused(memory: float | Estimate) -> None:
    with pytest.raises(InputError, match="memory is"):
        choose_mig(A100, memory)


@pytest.mark.parametrize("limit_ms", [0.0, -1.0, math.nan, math.inf])
def test_impossible_limits_are_refused(limit_ms: float) -> None:
    with pytest.raises(InputError, match="latency limit is"):
        choose_mig(A100, 1000, latency_ms_on=takes(g1=1), latency_limit_ms=limit_ms)


def test_a_limit_needs_a_latency() -> None:
    with pytest.raises(InputError, match="go together"):
        choose_mig(A100, 1000, latency_limit_ms=5)


def test_a_latency_without_a_limit_is_refused_too() -> None:
    with pytest.raises(InputError, match="go together"):
        choose_mig(A100, 1000, latency_ms_on=takes(g1=1))


def test_the_reason_claims_nothing_that_was_not_checked() -> None:
    assert choose_mig(A100, 1000).reason == "its 4,864 MiB hold the predicted 1,000 MiB"
    assert choose_mig(A100, Estimate(1000, 900, 1200)).reason == (
        "its 4,864 MiB hold the predicted 1,000 MiB (up to 1,200)"
    )
    timed = choose_mig(A100, 1000, latency_ms_on=takes(g1=40), latency_limit_ms=80)
    assert timed.reason == "its 4,864 MiB hold the predicted 1,000 MiB; it takes 40 ms; the limit is 80 ms"
    tight = choose_mig(A100, Estimate(4864, 4800, 5000))
    assert tight.reason.endswith("; 1g.5gb would hold the prediction, but not the upper end of its interval")
    over = choose_mig(A100, Estimate(4865, 4800, 5000))
    assert "would hold" not in over.reason
    several = choose_mig(A100, Estimate(4000, 3000, 12000))
    assert "; 1g.5gb, 1g.10gb, 2g.10gb would hold the prediction" in several.reason


def test_the_largest_profile_can_be_filled_completely() -> None:
    assert choose_mig(A100, Estimate(40192, 40000, 50000)).profile == "7g.40gb"
    assert choose_mig(A100, Estimate(40192.5, 40000, 50000)).profile is None
    largest = choose_mig(A100, Estimate(100, 90, 40192))
    assert largest.profile == "7g.40gb"
    assert "no profile holds" not in largest.reason


@pytest.mark.parametrize(
    ("latency_ms", "text"), [(99.96, "100 ms"), (100, "100 ms"), (1234.5, "1,234 ms"), (0.01234, "0.0123 ms")]
)
def test_latencies_have_three_digits_or_none_behind_the_point(latency_ms: float, text: str) -> None:
    choice = choose_mig(A100, 1000, latency_ms_on=takes(g1=latency_ms), latency_limit_ms=10**6)
    assert f"it takes {text};" in choice.reason


def test_the_reason_names_the_fastest_profile_with_enough_memory() -> None:
    latency = takes(g1=5, g2=20, g3=9, g4=12, g7=10)
    choice = choose_mig(A100, 11000, latency_ms_on=latency, latency_limit_ms=4)
    assert choice.reason == "latency: the fastest profile that holds it, 3g.20gb, takes 9 ms; the limit is 4 ms"
    assert [trial.memory_mib for trial in choice.considered][:2] == pytest.approx([4864, 9850.88])
    assert choice.considered[-1].latency_ms == Estimate(10, 5, 20)


@pytest.mark.parametrize("need", [Estimate(0, 0, 5), Estimate(-1, -2, 5), Estimate(6, 4, 5)])
def test_an_impossible_estimate_is_refused(need: Estimate) -> None:
    with pytest.raises(InputError, match="it must be a number above 0"):
        choose_mig(A100, need)


def test_a_profile_has_no_more_than_its_device() -> None:
    profile = A100.mig_profiles[-1]
    small = replace(A100, memory_gib=1.0)
    assert usable_mib(profile, small) == 1024
