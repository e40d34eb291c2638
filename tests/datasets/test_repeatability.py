"""Differences between two measurements of one thing."""

import pytest

from foretell.datasets.repeatability import compare_repeats


def record(workload: str, campaign: str, day: int, **values: float | None) -> dict[str, object]:
    defaults = {"latency_ms": 10.0, "memory_mib": 100.0, "power_w": None}
    moment = f"2026-11-{day:02}T12:00:00.000+00:00"
    return (
        {"workload_id": workload, "campaign_id": campaign, "device_name": "d", "measured_at": moment}
        | defaults
        | values
    )


def test_later_measurements_are_compared_with_the_first() -> None:
    repeats = compare_repeats(
        [
            record("a", "3", 16, latency_ms=9.9, power_w=330.0),
            record("a", "1", 15, power_w=300.0),
            record("a", "2", 15, latency_ms=10.2),
            record("b", "1", 15),
            record("c", "1", 15),
            record("c", "3", 17, memory_mib=101.0),
        ]
    )
    assert (repeats.workloads, repeats.pairs, repeats.pairs_on_another_day) == (2, 3, 2)
    assert (repeats.hours_between_median, repeats.hours_between_max) == (24.0, 48.0)
    latency, memory, power = (repeats.differences[name] for name in ("latency_ms", "memory_mib", "power_w"))
    assert latency.mean == pytest.approx(0.01)
    assert (latency.median, latency.max) == (pytest.approx(0.01), pytest.approx(0.02))
    assert (memory.pairs, memory.max) == (3, pytest.approx(0.01))
    assert (power.pairs, power.median) == (1, pytest.approx(0.1))
    assert repeats.to_dict()["latency_ms"]["pairs"] == 3  # type: ignore[index]


def test_other_devices_and_single_measurements_are_no_pairs() -> None:
    elsewhere = record("a", "2", 16) | {"device_name": "other"}
    repeats = compare_repeats([record("a", "1", 15), elsewhere, record("b", "1", 15), record("b", "1", 16)])
    assert (repeats.pairs, repeats.hours_between_max, repeats.differences) == (0, None, {})
