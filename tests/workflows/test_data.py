"""From a campaign's folder to a store and its card."""

from pathlib import Path

import pytest

from foretell.errors import DataError
from foretell.profiling.campaign.journal import Journal
from foretell.profiling.workload import Workload
from foretell.workflows.data import card, merge_stores, open_existing, query, write_card, write_tables

pytest.importorskip("duckdb")

WORKLOAD = Workload("synthetic:lenet?scale=2", 4, (1, 28, 28), "fp32", family="synthetic-lenet")
KERNEL = {
    "name": ["gemm"], "duration_us": [3.0], "grid": [[4, 2, 1]], "block": [[128, 1, 1]], "registers": [40],
    "shared_bytes": [512], "occupancy_pct": [30.0], "op_index": [0], "op": ["a"], "leaf_op": ["a"], "module": ["0"],
}  # fmt: skip


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """What a campaign leaves."""
    journal = Journal(tmp_path / "campaign")
    journal.open()
    journal.append({"kind": "campaign", "campaign_id": "c", "device_name": "cpu", "libraries": {"torch": "2.13"}})
    line = {"kind": "measurement", "campaign_id": "c", "workload_id": WORKLOAD.id, "part": "p", "status": "ok"}
    journal.append(line | WORKLOAD.to_json() | {"latency_ms": 1.5, "memory_mib": 3.0, "noisy": False})
    journal.append(line | WORKLOAD.to_json() | {"workload_id": "other", "status": "oom", "error": "too much"})
    journal.append_trace({"workload_id": WORKLOAD.id, "kernels": KERNEL})
    journal.close()
    return tmp_path / "campaign"


def test_a_journal_becomes_tables_beside_it(folder: Path) -> None:
    assert write_tables(folder) == {"campaigns": 1, "measurements": 2, "kernels": 1, "kernel_names": 1}
    assert query("SELECT status FROM measurements ORDER BY status", str(folder))[1] == [
        {"status": "ok"},
        {"status": "oom"},
    ]
    with pytest.raises(DataError, match="no journal"):
        write_tables(folder.parent)


def test_stores_are_merged_once(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(DataError, match="no tables"):
        merge_stores([str(folder)], str(tmp_path / "store"))
    rows = write_tables(folder)
    assert merge_stores([str(folder), str(folder)], str(tmp_path / "store")) == rows
    assert set(merge_stores([str(folder)], str(tmp_path / "store")).values()) == {0}
    with pytest.raises(DataError, match="already has its tables"):
        merge_stores([str(folder)], str(tmp_path))


def test_a_card_is_written_completely(folder: Path, tmp_path: Path) -> None:
    write_tables(folder)
    written_card = card(str(folder))
    assert written_card.counts["measurements"] == 1
    write_card(written_card, tmp_path / "CARD.md", "postgresql://me:secret@host/base")
    text = (tmp_path / "CARD.md").read_text()
    assert "postgresql://me@host/base" in text
    assert "secret" not in text
    with pytest.raises(DataError, match="Cannot write"):
        write_card(written_card, tmp_path / "absent" / "CARD.md", "data")


def test_a_store_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="no store at"):
        open_existing(str(tmp_path / "absent"))
    assert not (tmp_path / "absent").exists()
