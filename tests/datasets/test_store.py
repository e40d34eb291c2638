"""What both kinds of stores promise."""

from pathlib import Path
from typing import Any

import pytest

from foretell.datasets.opening import open_store
from foretell.datasets.schema import TABLES, VIEWS, name_number
from foretell.datasets.store import Store, merge
from foretell.errors import DataError


def test_every_table_comes_back_as_it_went_in_and_only_once(store: Store, rows: Any) -> None:
    for table in TABLES:
        some_rows = rows(table)
        assert (store.append(table, some_rows), store.append(table, some_rows)) == (5, 0), table
        [back] = store.rows(table)
        order = [(name, "ascending") for name in TABLES[table].key]
        assert back.sort_by(order).to_pylist() == some_rows.sort_by(order).to_pylist(), table
    assert store.tables() == dict.fromkeys(TABLES, 5)


def test_only_what_is_new_is_added_and_the_first_of_two_counts(store: Store, rows: Any) -> None:
    arrow = pytest.importorskip("pyarrow")
    assert store.append("slices", rows("slices", 4)) == 4
    assert store.append("slices", rows("slices", 4, start=2)) == 2
    first, second = (rows("slices", 1, start=9, sm_count=n) for n in (66, 132))
    assert store.append("slices", arrow.concat_tables([first, second])) == 1
    answer = store.query("SELECT sm_count, count(*) AS n FROM slices WHERE sm_count IN (66, 132) GROUP BY sm_count")
    assert answer.to_pylist() == [{"sm_count": 66, "n": 1}]
    assert store.count("slices") == 7


def test_views_and_kernels_by_name(store: Store, rows: Any) -> None:
    store.append("measurements", rows("measurements", 3, mode="training"))
    store.append("measurements", rows("measurements", 2, start=3, mode="decode"))
    assert set(VIEWS) == {"training", "llm", "measured_graphs"}
    counts = {view: store.query(f"SELECT count(*) AS n FROM {view}")["n"].to_pylist() for view in VIEWS}
    assert counts == {"training": [3], "llm": [2], "measured_graphs": [5]}
    names = rows("kernel_names", 1, name_id=name_number("gemm"), name="gemm")
    store.append("kernel_names", names)
    store.append("kernels", rows("kernels", 3, name_id=name_number("gemm")))
    store.append("kernels", rows("kernels", 1, start=7, name_id=name_number("lost")))
    answer = store.query("SELECT kernel, count(*) AS n FROM kernels GROUP BY kernel ORDER BY n")
    assert answer.to_pylist() == [{"kernel": None, "n": 1}, {"kernel": "gemm", "n": 3}]


def test_an_empty_store_can_be_queried(store: Store) -> None:
    assert store.tables() == {}
    assert store.query("SELECT workload_id, latency_ms FROM training").to_pylist() == []
    assert list(store.rows("kernels")) == []


def test_a_query_changes_nothing(store: Store, rows: Any) -> None:
    store.append("slices", rows("slices"))
    for sql in ("DROP VIEW slices", "SELECT 1; SELECT 2", "DELETE FROM slices", "SELECT nonsense FROM slices", "SELEC"):
        with pytest.raises(DataError) as refused:
            store.query(sql)
        assert "\n" not in str(refused.value)
    assert store.count("slices") == 5


def test_one_bad_row_refuses_the_whole_table(store: Store, rows: Any) -> None:
    arrow = pytest.importorskip("pyarrow")
    with pytest.raises(DataError, match="need a value in method"):
        store.append("slices", rows("slices").drop_columns(["method"]))
    some_rows = rows("slices")
    wrong = some_rows.set_column(some_rows.column_names.index("sm_count"), "sm_count", arrow.array(["many"] * 5))
    with pytest.raises(DataError, match="sm_count must be int32"):
        store.append("slices", wrong)
    with pytest.raises(DataError, match="Did you mean 'slices'"):
        store.append("slice", some_rows)
    with pytest.raises(DataError, match="no column 'sms'"):
        list(store.rows("slices", ("sms",)))
    assert store.tables() == {}


def test_merging_is_piecewise_and_can_be_repeated(store: Store, tmp_path: Path, rows: Any) -> None:
    source = open_store(tmp_path / "source")
    source.append("slices", rows("slices", 5))
    source.append("colocation", rows("colocation", 2))
    store.append("slices", rows("slices", 2))
    assert merge(source, store, at_once=3) == {"slices": 3, "colocation": 2}
    assert merge(source, store, at_once=3) == {"slices": 0, "colocation": 0}
    back = open_store(tmp_path / "back")
    assert merge(store, back, at_once=3) == {"slices": 5, "colocation": 2}
    left, right = (s.query("SELECT * FROM slices ORDER BY percent") for s in (back, source))
    assert left.to_pylist() == right.to_pylist()


def test_measurements_find_the_graph_of_the_front_end(store: Store, rows: Any) -> None:
    same = {"spec": "timm:resnet18", "input_shape": "3x224x224", "mode": "inference"}
    store.append("measurements", rows("measurements", 1, **same))
    store.append("graphs", rows("graphs", 1, **same, graph_hash="compiled", campaign_id="fusion"))
    store.append("graphs", rows("graphs", 1, **same, graph_hash="exported", campaign_id=None))
    hashes = store.query("SELECT graph_hash FROM measured_graphs")["graph_hash"].to_pylist()
    assert hashes == ["exported"]
