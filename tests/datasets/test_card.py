"""The card, the same on both stores."""

import json
from pathlib import Path
from typing import Any

import pytest

from foretell.datasets.card import make_card
from foretell.datasets.parquet_files import arrow_table
from foretell.datasets.parquet_store import ParquetStore
from foretell.datasets.schema import TABLES
from foretell.datasets.store import Store

KEYS = (
    "measurements", "architectures", "energy", "kernel_traces", "training", "llm", "slices", "colocation", "mixes",
    "occupancy", "compiled", "fusion_inductor", "fusion_onnxruntime",
)  # fmt: skip


def add(store: Store, table: str, *rows: dict[str, Any]) -> None:
    names = {name for row in rows for name in row}
    columns = {name: [row.get(name) for row in rows] for name in names}
    store.append(table, arrow_table(TABLES[table], columns))


def measurement(workload: str, campaign: str = "c1", **values: Any) -> dict[str, Any]:
    day = campaign[-1]
    defaults = {
        "workload_id": workload, "campaign_id": campaign, "spec": f"timm:{workload[0]}", "family": workload[0],
        "zoo": "timm", "mode": "inference", "dtype": "fp16", "batch_size": 8, "input_shape": "3x224x224",
        "status": "ok",
        "latency_ms": 2.0, "memory_mib": 100.0, "latency_cv": 0.01, "noisy": False, "device_name": "NVIDIA H200",
        "latency_source": "cuda-graph", "measured_at": f"2026-11-1{day}T00:00:00.000+00:00", "parameters": 5,
    }  # fmt: skip
    return defaults | values


def fill(store: Store) -> None:
    token = {"zoo": "hf", "input_shape": "128"}
    add(
        store, "measurements",
        measurement("a1", energy_j=1.0, power_w=200.0),
        measurement("a1", "c2", latency_ms=2.02, power_w=210.0),
        measurement("a2", mode="training", dtype="bf16", noisy=True),
        measurement("b1", mode="prefill", **token),
        measurement("b2", mode="decode", **token | {"input_shape": "512"}),
        measurement("x1", status="skipped", error="about 103 ms", latency_ms=None, memory_mib=None),
        measurement("x2", status="skipped", error="about 7.5 ms", latency_ms=None, memory_mib=None),
        measurement("x3", status="ok", latency_ms=None),
    )  # fmt: skip
    kernel = {"campaign_id": "c1", "workload_id": "a1", "op": "aten::relu", "name_id": 1}
    add(
        store, "kernels",
        *(kernel | {"sequence": i, "op_index": i, "duration_us": us} for i, us in enumerate((6.0, 3.0, 1.0))),
    )  # fmt: skip
    node = {"workload_id": "a1", "graph_hash": "g"}
    add(store, "kernel_nodes", node | {"op_index": 0, "node": 4}, node | {"op_index": 1, "node": -1})
    part = {"campaign_id": "c1", "workload_id": "a1", "method": "mps", "status": "ok"}
    add(store, "slices", part | {"percent": 10.0}, part | {"percent": 20.0}, part | {"percent": 30.0, "status": "oom"})
    add(store, "slices", part | {"percent": 10.0, "campaign_id": "c2"})
    group = {"campaign_id": "c1", "members": 2, "status": "ok"}
    add(
        store, "colocation",
        group | {"group_id": "g1", "member": 0}, group | {"group_id": "g1", "member": 1},
        group | {"group_id": "g2", "member": 0}, group | {"group_id": "g2", "member": 1, "status": "timeout"},
        group | {"group_id": "g3", "member": 0},
    )  # fmt: skip
    mix = {"campaign_id": "c1", "jobs": 2, "status": "ok"}
    add(
        store, "mixes",
        mix | {"mix_id": "m1", "job": 0}, mix | {"mix_id": "m1", "job": 1},
        mix | {"mix_id": "m2", "job": 0}, mix | {"mix_id": "m2", "job": 1, "status": "crash"},
        mix | {"mix_id": "m3", "job": 0}, mix | {"mix_id": "m4", "job": 0}, mix | {"mix_id": "m4", "job": 1},
    )  # fmt: skip
    add(store, "occupancy", {"campaign_id": "c1", "workload_id": "a1", "status": "ok"})
    compiled = {"workload_id": "a1", "status": "ok"}
    add(store, "compiled", compiled | {"campaign_id": "c1"}, compiled | {"campaign_id": "c2"})
    add(store, "compiled", compiled | {"campaign_id": "c1", "workload_id": "a2", "status": "oom", "error": "full"})
    fusion = {"campaign_id": "c1", "spec": "timm:a", "status": "ok", "backend": "onnxruntime"}
    add(
        store, "fusion_graphs",
        fusion | {"fusion_id": "f1"}, fusion | {"fusion_id": "f2"}, fusion | {"fusion_id": "f3", "backend": "inductor"},
        fusion | {"fusion_id": "f4", "spec": "timm:b", "status": "build_error", "error": "no"},
    )  # fmt: skip


def test_distinct_good_records_are_counted(store: Store) -> None:
    fill(store)
    card = make_card(store)
    assert dict(zip(KEYS, (4, 2, 1, 1, 1, 2, 2, 1, 2, 1, 1, 1, 1), strict=True)) == card.counts
    assert card.kernel_time["share"] == pytest.approx(0.6)
    assert card.kernel_time["share_tied_to_calls"] == pytest.approx(1.0)
    again = card.repeatability
    assert (again.workloads, again.pairs, again.pairs_on_another_day, again.hours_between_max) == (1, 1, 1, 24.0)
    assert again.differences["latency_ms"].mean == pytest.approx(0.01)
    assert again.differences["power_w"].mean == pytest.approx(0.05)
    assert card.failures["measurements"] == {"skipped: about … ms": 2}
    assert card.failures["compiled"] == {"oom: full": 1}
    assert card.by["mode"] == {"decode": 1, "inference": 1, "prefill": 1, "training": 1}
    assert card.ranges["llm_sequence"] == {"min": 128, "median": 320.0, "max": 512}
    assert card.noise["noisy_share"] == pytest.approx(0.2)
    assert "one device only: NVIDIA H200" in card.gaps
    assert card.size_bytes > 0
    text = json.dumps(card.to_dict())
    assert set(KEYS) | {"repeatability", "kernel_time_tied_to_nodes", "by_table", "by_device"} <= set(json.loads(text))


def test_an_empty_store_has_a_card(store: Store) -> None:
    card = make_card(store)
    assert card.counts == dict.fromkeys(KEYS, 0)
    assert {"no measurements", "no slices"} <= set(card.gaps)
    assert card.to_dict()["kernel_time_tied_to_nodes"] is None


def test_the_committed_data_keeps_what_it_had() -> None:
    card = make_card(ParquetStore(Path(__file__).parents[2] / "data"))
    least = {
        "measurements": 2066,
        "architectures": 787,
        "energy": 379,
        "kernel_traces": 811,
        "training": 77,
        "llm": 176,
    }
    assert all(card.counts[name] >= count for name, count in least.items())
    assert card.size_bytes < 40 * 10**6
