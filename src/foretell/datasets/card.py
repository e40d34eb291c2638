"""Datasets: the card of a store: what it contains, how noisy it is, how well it repeats, and what is missing.

All numbers come from SQL that both DuckDB and PostgreSQL understand, so a card does not depend on the kind of store.
"""

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from foretell.datasets.repeatability import Repeatability, compare_repeats
from foretell.datasets.schema import SCHEMA_VERSION
from foretell.datasets.store import Store
from foretell.units import bytes_from_mib, size

Number = int | float
# A workload counts once, however often it was measured. Measurements on a CPU have no device memory; they have the peak
# of the process instead.
_GOOD = "status = 'ok' AND latency_ms IS NOT NULL AND (memory_mib IS NOT NULL OR process_peak_mib IS NOT NULL)"
# a bench of unrelated operators is measured and traced, but it is not a model
_MODELS = f"{_GOOD} AND coalesce(spec, '') NOT LIKE 'synthetic:operators%'"
_COUNTS: Mapping[str, str] = {
    "measurements": f"SELECT count(DISTINCT workload_id) FROM measurements WHERE {_MODELS}",
    "architectures": f"SELECT count(DISTINCT spec) FROM measurements WHERE {_MODELS}",
    "energy": f"SELECT count(DISTINCT workload_id) FROM measurements WHERE {_GOOD} AND energy_j IS NOT NULL",
    "kernel_traces": "SELECT count(DISTINCT workload_id) FROM kernels WHERE workload_id IN "
    f"(SELECT workload_id FROM measurements WHERE {_MODELS})",
    "training": f"SELECT count(DISTINCT workload_id) FROM training WHERE {_GOOD}",
    "llm": f"SELECT count(DISTINCT workload_id) FROM llm WHERE {_GOOD}",
    "slices": "SELECT count(*) FROM (SELECT DISTINCT workload_id, method, percent FROM slices WHERE status = 'ok') s",
    "colocation": "SELECT count(DISTINCT group_id) FROM "
    "(SELECT group_id FROM colocation GROUP BY campaign_id, group_id "
    "HAVING min(CASE WHEN status = 'ok' THEN 1 ELSE 0 END) = 1 AND count(*) = max(members)) g",
    "mixes": "SELECT count(DISTINCT mix_id) FROM (SELECT mix_id FROM mixes GROUP BY campaign_id, mix_id "
    "HAVING min(CASE WHEN status = 'ok' THEN 1 ELSE 0 END) = 1 AND count(*) = max(jobs)) x",
    "occupancy": "SELECT count(DISTINCT workload_id) FROM occupancy WHERE status = 'ok'",
    "compiled": "SELECT count(DISTINCT workload_id) FROM compiled WHERE status = 'ok'",
    "fusion_inductor": "SELECT count(DISTINCT spec) FROM fusion_graphs WHERE status = 'ok' AND backend = 'inductor'",
    "fusion_onnxruntime": "SELECT count(DISTINCT spec) FROM fusion_graphs "
    "WHERE status = 'ok' AND backend = 'onnxruntime'",
}
_RANGES = ("batch_size", "latency_ms", "memory_mib", "energy_j", "power_w", "parameters")
_GROUPS = ("zoo", "family", "mode", "dtype", "device_name", "latency_source")
_STATUS_TABLES = ("measurements", "slices", "colocation", "mixes", "occupancy", "compiled", "fusion_graphs")
_MAX_REASONS = 10
_REASON_CHARACTERS = 60


@dataclass(frozen=True)
class Card:
    """The contents of a store in numbers."""

    counts: Mapping[str, int]
    by_table: Mapping[str, int]
    ranges: Mapping[str, Mapping[str, Number]]
    by: Mapping[str, Mapping[str, int]]
    noise: Mapping[str, Number]
    repeatability: Repeatability
    kernel_time: Mapping[str, Number]
    failures: Mapping[str, Mapping[str, int]]
    campaigns: Sequence[Mapping[str, object]]
    size_bytes: int
    gaps: Sequence[str] = field(default=())

    def to_dict(self) -> dict[str, object]:
        """The card as one JSON object, with its counts at the top level."""
        tied = self.kernel_time.get("share")
        return {
            **self.counts,
            "schema_version": SCHEMA_VERSION,
            "by_table": dict(self.by_table),
            "ranges": {name: dict(values) for name, values in self.ranges.items()},
            **{f"by_{name.removesuffix('_name')}": dict(values) for name, values in self.by.items()},
            "noise": dict(self.noise),
            "repeatability": self.repeatability.to_dict(),
            "kernel_time_tied_to_nodes": tied,
            "kernel_time": dict(self.kernel_time),
            "failures": {table: dict(reasons) for table, reasons in self.failures.items()},
            "campaigns": [dict(campaign) for campaign in self.campaigns],
            "size_bytes": self.size_bytes,
            "known_gaps": list(self.gaps),
        }


def make_card(store: Store) -> Card:
    """Make the card of a store."""
    counts = {name: int(_one(store, sql) or 0) for name, sql in _COUNTS.items()}
    by = {name: _grouped(store, name) for name in _GROUPS}
    ranges = _ranges(store)
    noise = _noise(store)
    kernel_time = _kernel_time(store)
    # tables without failures are left out
    failures = {table: reasons for table in _STATUS_TABLES if (reasons := _failures(store, table))}
    gaps = _gaps(counts, by, ranges, noise, kernel_time, _combinations(store))
    return Card(
        counts=counts,
        by_table=store.tables(),
        ranges=ranges,
        by=by,
        noise=noise,
        repeatability=_repeatability(store),
        kernel_time=kernel_time,
        failures=failures,
        campaigns=_campaigns(store),
        size_bytes=store.size_bytes(),
        gaps=gaps,
    )


def _records(store: Store, sql: str) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = store.query(sql).to_pylist()
    return rows


def _one(store: Store, sql: str) -> Any:
    return next(iter(_records(store, sql)[0].values()))


def _grouped(store: Store, column: str) -> dict[str, int]:
    rows = _records(
        store,
        f"SELECT {column} AS name, count(DISTINCT workload_id) AS n FROM measurements WHERE {_GOOD} "
        f"GROUP BY {column} ORDER BY n DESC, name",
    )
    return {str(row["name"] or "none"): int(row["n"]) for row in rows}


def _quantile(share: float, value: str) -> str:
    return f"percentile_cont({share}) WITHIN GROUP (ORDER BY {value})"


def _ranges(store: Store) -> dict[str, dict[str, Number]]:
    sequence = "CASE WHEN input_shape LIKE '%x%' THEN NULL ELSE CAST(input_shape AS INTEGER) END"
    ranges = {}
    for name, value, condition in (
        *((column, column, _GOOD) for column in _RANGES),
        (
            "sequence",
            sequence,
            f"{_GOOD} AND input_shape <> '' AND input_shape NOT LIKE '%x%' AND zoo IN ('hf', 'llm')",
        ),
        ("llm_sequence", sequence, f"{_GOOD} AND mode IN ('prefill', 'decode') AND input_shape NOT LIKE '%x%'"),
        ("llm_batch_size", "batch_size", f"{_GOOD} AND mode IN ('prefill', 'decode')"),
    ):
        # the values in a subquery, the aggregate outside: texts that are no numbers are then never cast
        sql = (
            f"SELECT min(v) AS low, {_quantile(0.5, 'v')} AS median, max(v) AS high, count(v) AS n "
            f"FROM (SELECT {value} AS v FROM measurements WHERE {condition}) t WHERE v IS NOT NULL"
        )
        row = _records(store, sql)[0]
        if row["n"]:
            ranges[name] = {"min": row["low"], "median": row["median"], "max": row["high"]}
    return ranges


def _noise(store: Store) -> dict[str, Number]:
    row = _records(
        store,
        f"SELECT count(*) AS records, {_quantile(0.5, 'cv')} AS latency_cv_median, "
        f"{_quantile(0.9, 'cv')} AS latency_cv_p90, {_quantile(0.99, 'cv')} AS latency_cv_p99, "
        "avg(CASE WHEN noisy THEN 1.0 ELSE 0.0 END) AS noisy_share, "
        "avg(CASE WHEN latency_source = 'kernel-sum' THEN 1.0 ELSE 0.0 END) AS kernel_sum_share "
        "FROM (SELECT noisy, latency_source, CAST(latency_cv AS DOUBLE PRECISION) AS cv "
        f"FROM measurements WHERE {_GOOD}) m",
    )[0]
    return {name: float(value) if name != "records" else int(value) for name, value in row.items() if value is not None}


def _repeatability(store: Store) -> Repeatability:
    return compare_repeats(
        _records(
            store,
            "SELECT workload_id, campaign_id, device_name, measured_at, latency_ms, memory_mib, power_w "
            f"FROM measurements WHERE {_GOOD} AND workload_id IN (SELECT workload_id FROM measurements "
            f"WHERE {_GOOD} GROUP BY workload_id HAVING count(DISTINCT campaign_id) > 1)",
        )
    )


def _kernel_time(store: Store) -> dict[str, Number]:
    """The share of all kernel time that has a node of a graph, and that has an ATen call."""
    row = _records(
        store,
        "SELECT count(*) AS kernels, sum(CAST(duration_us AS DOUBLE PRECISION)) AS total, "
        "sum(CASE WHEN n.node >= 0 THEN CAST(duration_us AS DOUBLE PRECISION) END) AS node, "
        "sum(CASE WHEN op_index >= 0 AND op <> '' THEN CAST(duration_us AS DOUBLE PRECISION) END) AS op "
        "FROM (SELECT workload_id, duration_us, op_index, op FROM kernels) k LEFT JOIN "
        "(SELECT workload_id AS id, op_index AS place, max(node) AS node FROM kernel_nodes GROUP BY 1, 2) n "
        "ON n.id = k.workload_id AND n.place = k.op_index",
    )[0]
    total = float(row["total"] or 0)
    if not total:
        return {}
    workloads = _one(store, "SELECT count(DISTINCT workload_id) FROM kernel_nodes WHERE node >= 0")
    return {
        "kernels": int(row["kernels"]),
        "share": float(row["node"] or 0) / total,
        "share_tied_to_calls": float(row["op"] or 0) / total,
        "workloads_with_nodes": int(workloads),
    }


def _failures(store: Store, table: str) -> dict[str, int]:
    reasons: Counter[str] = Counter()
    rows = _records(store, f"SELECT status, error, count(*) AS n FROM {table} WHERE status <> 'ok' GROUP BY 1, 2")
    for row in rows:
        reasons[f"{row['status']}: {_reason(row['error'] or '')}".removesuffix(": ")] += int(row["n"])
    return dict(reasons.most_common())


def _reason(error: str) -> str:
    """The kind of an error: its first line, with numbers replaced and cut to length.

    >>> _reason("about 103 ms") == _reason("about 7.5 ms")
    True
    """
    line = error.strip().partition("\n")[0]
    kind = re.sub(r"\d[\d.,]*", "…", line)
    return kind if len(kind) <= _REASON_CHARACTERS else kind[: _REASON_CHARACTERS - 1].rstrip() + "…"


def _campaigns(store: Store) -> list[dict[str, object]]:
    return _records(
        store,
        "SELECT campaign_id, min(device_name) AS device, min(driver) AS driver, min(host_cpu) AS host_cpu, "
        "min(libraries) AS libraries, min(measured_at) AS first, max(measured_at) AS last, count(*) AS records "
        "FROM measurements GROUP BY campaign_id ORDER BY first, campaign_id",
    )


def _combinations(store: Store) -> dict[tuple[str, str], int]:
    sql = f"SELECT mode, dtype, count(DISTINCT workload_id) AS n FROM measurements WHERE {_GOOD} GROUP BY mode, dtype"
    return {(str(row["mode"]), str(row["dtype"])): int(row["n"]) for row in _records(store, sql)}


def _gaps(
    counts: Mapping[str, int],
    by: Mapping[str, Mapping[str, int]],
    ranges: Mapping[str, Mapping[str, Number]],
    noise: Mapping[str, Number],
    kernel_time: Mapping[str, Number],
    combinations: Mapping[tuple[str, str], int],
) -> tuple[str, ...]:
    """What these records do not cover."""
    gaps = [f"no {name.replace('_', ' ')}" for name, count in counts.items() if not count]
    if len(by["device_name"]) == 1:
        gaps.append(f"one device only: {next(iter(by['device_name']))}")
    modes, dtypes = sorted({mode for mode, _ in combinations}), sorted({dtype for _, dtype in combinations})
    for mode in modes:
        few = {dtype: combinations.get((mode, dtype), 0) for dtype in dtypes}
        gaps += [f"{mode} in {dtype}: {n} workloads" for dtype, n in few.items() if n < _MAX_REASONS]
    # too few for a held-out family to say anything
    rare = [family for family, n in by["family"].items() if n < 5]
    if rare:
        gaps.append(f"{len(rare)} of {len(by['family'])} families have fewer than 5 workloads")
    if "latency_ms" in ranges:
        larger = (
            f" or larger than {size(bytes_from_mib(ranges['memory_mib']['max']))}" if "memory_mib" in ranges else ""
        )
        gaps.append(f"nothing slower than {ranges['latency_ms']['max']:.3g} ms{larger}")
    if noise.get("kernel_sum_share"):
        gaps.append(f"{noise['kernel_sum_share']:.1%} of the latencies are sums of kernels: capture failed")
    if counts["kernel_traces"] and not kernel_time.get("share"):
        gaps.append("no kernel is tied to a graph node yet")
    return tuple(gaps)
