import pytest

from foretell.errors import MeasurementError
from foretell.profiling.done import done_keys
from foretell.profiling.journal import Journal

arrow = pytest.importorskip("pyarrow")
parquet = pytest.importorskip("pyarrow.parquet")


def test_keys_of_journals_and_of_tables_are_found(tmp_path):
    journal = Journal(tmp_path / "running")
    journal.open()
    journal.append({"kind": "slices", "workload_id": "a", "percent": 10.0})
    journal.append({"kind": "colocation", "workload_id": "b", "percent": 10.0})
    journal.close()
    (tmp_path / "data" / "deeper").mkdir(parents=True)
    table = arrow.table({"workload_id": ["c", "c"], "percent": [20.0, 30.0]})
    parquet.write_table(table, tmp_path / "data" / "deeper" / "slices.parquet")
    found = done_keys([tmp_path / "running", tmp_path / "data"], "slices", ("workload_id", "percent"))
    assert found == {("a", 10.0), ("c", 20.0), ("c", 30.0)}


def test_what_cannot_be_read_is_named(tmp_path):
    with pytest.raises(MeasurementError, match="nothing at"):
        done_keys([tmp_path / "absent"], "slices", ("workload_id",))
    (tmp_path / "slices.parquet").write_bytes(b"PAR1 torn")
    with pytest.raises(MeasurementError, match="slices.parquet"):
        done_keys([tmp_path], "slices", ("workload_id",))
