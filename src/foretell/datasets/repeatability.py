"""Datasets: repeatability: how well measurements of the same workload in several campaigns agree."""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import numpy as np

QUANTITIES = ("latency_ms", "memory_mib", "power_w")
_SECONDS_AN_HOUR = 3600.0


@dataclass(frozen=True)
class Spread:
    """Statistics of the relative difference between two measurements of one quantity."""

    pairs: int
    median: float
    mean: float
    p95: float
    max: float


@dataclass(frozen=True)
class Repeatability:
    """What repeated measurements show; each later one is compared with the first on the same kind of device."""

    workloads: int
    pairs: int
    pairs_on_another_day: int
    hours_between_median: float | None
    hours_between_max: float | None
    differences: Mapping[str, Spread]

    def to_dict(self) -> dict[str, object]:
        """Plain values; relative differences are shares, 0.01 is one per cent."""
        spreads = {name: vars(spread) for name, spread in self.differences.items()}
        return {name: value for name, value in vars(self).items() if name != "differences"} | spreads


def compare_repeats(records: Iterable[Mapping[str, Any]]) -> Repeatability:
    """Compare the records of workloads that were measured more than once.

    >>> row = {"workload_id": "w", "device_name": "d", "memory_mib": 8.0, "power_w": None}
    >>> again = compare_repeats([
    ...     row | {"campaign_id": "a", "measured_at": "2026-01-01T00:00:00+00:00", "latency_ms": 1.0},
    ...     row | {"campaign_id": "b", "measured_at": "2026-01-02T00:00:00+00:00", "latency_ms": 1.01}])
    >>> again.pairs, again.hours_between_max, round(again.differences["latency_ms"].mean, 6)
    (1, 24.0, 0.01)
    """
    groups: dict[tuple[object, object], dict[object, Mapping[str, Any]]] = defaultdict(dict)
    for record in sorted(records, key=lambda row: (str(row["measured_at"]), str(row["campaign_id"]))):
        # sorted by time: the first measurement of each campaign counts
        groups[record["workload_id"], record["device_name"]].setdefault(record["campaign_id"], record)
    repeated = [list(group.values()) for group in groups.values() if len(group) > 1]
    pairs = [(group[0], later) for group in repeated for later in group[1:]]
    days = [(first, later) for first, later in pairs if _day(first) != _day(later)]
    hours = [gap for first, later in pairs if (gap := _hours(first, later)) is not None]
    differences = {name: spread for name in QUANTITIES if (spread := _spread(pairs, name)) is not None}
    return Repeatability(
        workloads=len({group[0]["workload_id"] for group in repeated}),
        pairs=len(pairs),
        pairs_on_another_day=len(days),
        hours_between_median=float(np.median(hours)) if hours else None,
        hours_between_max=max(hours) if hours else None,
        differences=differences,
    )


def _spread(pairs: Sequence[tuple[Mapping[str, Any], Mapping[str, Any]]], name: str) -> Spread | None:
    values = [abs(later[name] / first[name] - 1) for first, later in pairs if first[name] and later[name] is not None]
    if not values:
        return None
    median, p95 = (float(v) for v in np.quantile(values, (0.5, 0.95)))
    return Spread(len(values), median, float(np.mean(values)), p95, max(values))


def _day(record: Mapping[str, Any]) -> str:
    return str(record["measured_at"])[:10]


def _hours(first: Mapping[str, Any], later: Mapping[str, Any]) -> float | None:
    try:
        begin, end = (datetime.fromisoformat(str(row["measured_at"])) for row in (first, later))
        return (end - begin).total_seconds() / _SECONDS_AN_HOUR
    except (ValueError, TypeError):
        return None
