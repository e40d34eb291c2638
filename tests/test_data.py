"""The dataset that is committed: whole, small, without doubles, and what it says of itself is so."""

import math
from contextlib import closing
from pathlib import Path

import pytest

DATA = Path(__file__).parents[1] / "data"

pytest.importorskip("duckdb")

from foretell.datasets import open_store
from foretell.datasets.card import make_card
from foretell.datasets.schema import TABLES


@pytest.fixture(scope="module")
def store():
    opened = open_store(DATA)
    yield opened
    opened.close()


def one(store, sql):
    return store.query(sql).column(0).to_pylist()[0]


def test_it_stays_below_thirty_megabytes():
    assert sum(path.stat().st_size for path in DATA.rglob("*") if path.is_file()) < 30_000_000


@pytest.mark.parametrize("table", ["measurements", "slices", "colocation", "fusion_graphs", "fusion_nodes", "graphs"])
def test_no_row_is_there_twice(store, table):
    key = ", ".join(f'"{name}"' for name in TABLES[table].key)
    doubled = one(store, f"SELECT count(*) FROM (SELECT {key} FROM {table} GROUP BY {key} HAVING count(*) > 1)")
    assert doubled == 0


def test_what_was_measured_is_possible(store):
    wrong = """SELECT count(*) FROM measurements WHERE status = 'ok' AND NOT (
        latency_ms > 0 AND memory_mib > 0 AND latency_min_ms <= latency_ms AND reserved_mib >= memory_mib
        AND (power_w IS NULL OR power_w BETWEEN 60 AND 800))"""
    assert one(store, wrong) == 0
    assert one(store, "SELECT count(*) FROM slices WHERE status = 'ok' AND NOT (latency_ms > 0 AND sm_count > 0)") == 0
    faster = "SELECT count(*) FROM colocation WHERE status = 'ok' AND together_ms < 0.95 * solo_ms"
    assert one(store, faster) == 0


def test_a_fused_edge_lies_inside_one_kernel_or_a_copy_of_it():
    apart = """SELECT avg(CAST(a."group" <> b."group" AS INTEGER)) FROM fusion_edges e
        JOIN fusion_nodes a ON a.fusion_id = e.fusion_id AND a.node = e.source
        JOIN fusion_nodes b ON b.fusion_id = e.fusion_id AND b.node = e.target WHERE e.fused"""
    folders = sorted(DATA.glob("h200/*-inductor"))
    assert folders
    for folder in folders:
        with closing(open_store(folder)) as sitting:  # a node computed again in a second kernel has its first's group
            assert one(sitting, apart) < 0.1


def test_kernels_are_tied_to_nodes_of_their_graphs(store):
    card = make_card(store)
    assert card.kernel_time["share"] >= 0.97
    outside = """SELECT count(*) FROM kernel_nodes k JOIN
        (SELECT graph_hash, min(nodes) AS nodes FROM graphs GROUP BY graph_hash) g USING (graph_hash)
        WHERE k.node >= g.nodes"""
    assert one(store, outside) == 0


def test_the_sum_of_kernels_is_the_latency(store):
    sums = store.query(
        """SELECT m.latency_ms, k.us FROM measurements m JOIN
        (SELECT workload_id, sum(duration_us) AS us FROM kernels GROUP BY workload_id) k USING (workload_id)
        WHERE m.status = 'ok' AND m.latency_source = 'cuda-graph' AND m.latency_ms > 1"""
    )
    ratios = sorted(us / latency for latency, us in zip(*(sums.column(i).to_pylist() for i in (0, 1))))
    median = ratios[len(ratios) // 2]
    assert math.isclose(median, 1000, rel_tol=0.05)
