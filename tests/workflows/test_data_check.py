"""``foretell data check``: all damage is found, and nothing else."""

import json
import os
from pathlib import Path

import pytest

from foretell.cli.main import main
from foretell.datasets.opening import open_store
from foretell.datasets.parquet_files import arrow_table
from foretell.datasets.schema import TABLES
from foretell.errors import DataError
from foretell.profiling.campaign.journal import DAMAGED, HEADERS, RECORDS, TRACES, Journal
from foretell.workflows.data import write_tables
from foretell.workflows.data_check import check

pytest.importorskip("duckdb")

COUNT = 6
KERNEL = {
    "name": ["gemm"], "duration_us": [3.0], "grid": [[4, 2, 1]], "block": [[128, 1, 1]], "registers": [40],
    "shared_bytes": [512], "occupancy_pct": [30.0], "op_index": [0], "op": ["a"], "leaf_op": ["a"], "module": ["0"],
}  # fmt: skip


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A campaign with tables, and a store beside it."""
    journal = Journal(tmp_path / "campaign")
    journal.open()
    journal.append({"kind": "campaign", "campaign_id": "c", "device_name": "cpu"})
    for number in range(COUNT):
        journal.append_trace({"workload_id": f"w{number}", "campaign_id": "c", "kernels": KERNEL})
        journal.append({"kind": "measurement", "campaign_id": "c", "workload_id": f"w{number}", "spec": "timm:a"})
    journal.close()
    write_tables(tmp_path / "campaign")
    rows = arrow_table(TABLES["measurements"], {"campaign_id": ["c"] * 9, "workload_id": [f"s{i}" for i in range(9)]})
    open_store(tmp_path / "store").append("measurements", rows)
    return tmp_path


def run(*argv: str) -> object:
    with pytest.raises(SystemExit) as ended:
        main(list(argv))
    return ended.value.code


def kinds(folder: Path) -> list[tuple[str, str, int, int]]:
    return [(Path(d.file).name, d.kind, d.damaged, d.saved) for d in check(str(folder)).damage]


def flip(path: Path, place: int, bit: int = 1) -> None:
    data = path.read_bytes()
    path.write_bytes(data[:place] + bytes([data[place] ^ bit]) + data[place + 1 :])


def test_what_is_whole_is_counted(folder: Path) -> None:
    result = check(str(folder))
    assert result.whole
    assert result.records == {
        "campaigns": 1, "journal": COUNT + 1, "kernel_names": 1, "kernels": COUNT, "measurements": COUNT + 9,
        "traces": COUNT,
    }  # fmt: skip
    with pytest.raises(DataError, match="There is no store"):
        check(str(folder / "absent"))


def test_a_journal_cut_in_half_lacks_rows_of_its_tables(folder: Path) -> None:
    path = folder / "campaign" / RECORDS
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join(lines[:4]))
    assert kinds(folder) == [(RECORDS, "lacks rows of measurements.parquet", 3, COUNT)]
    path.write_bytes(b"".join(lines[:4]) + lines[4][:9])
    assert (RECORDS, "torn end", 1, 4) in kinds(folder)


def test_every_flipped_byte_of_a_trace_is_found_and_costs_one_trace(folder: Path) -> None:
    path = folder / "campaign" / TRACES
    whole = path.read_bytes()
    for place in (20, 60, len(whole) // 2, len(whole) - 30, len(whole) - 5):
        flip(path, place)
        (first, *_) = kinds(folder)
        assert first[0] == TRACES
        assert first[2:] == (1, COUNT - 1)
        path.write_bytes(whole)


def test_garbage_and_damaged_lines_are_found(folder: Path) -> None:
    path = folder / "campaign" / RECORDS
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join([*lines[:2], b"garbage\n", lines[2].replace(b"w1", b"w9"), *lines[3:]]))
    found = kinds(folder)
    assert (RECORDS, "the checksum is missing", 1, COUNT) in found
    assert (RECORDS, "the checksum does not match", 1, COUNT) in found
    assert (RECORDS, "lacks rows of measurements.parquet", 1, COUNT) in found
    flip(folder / "campaign" / HEADERS, 5)
    assert (HEADERS, "the checksum does not match", 1, 0) in kinds(folder)


def test_damaged_tables_are_found(folder: Path) -> None:
    (stored,) = (folder / "store").glob("*.parquet")
    whole = stored.read_bytes()
    for place in (4, 40, len(whole) // 2, len(whole) - 6):
        flip(stored, place)
        assert [name for name, *_ in kinds(folder)] == [stored.name]
        stored.write_bytes(whole)
    table = folder / "campaign" / "kernels.parquet"
    os.truncate(table, table.stat().st_size - 9)
    ((name, kind, _, _),) = kinds(folder)
    assert (name, kind.partition(":")[0]) == ("kernels.parquet", "cannot be read")


def test_every_flipped_bit_of_a_table_is_found_unless_the_data_is_the_same(folder: Path) -> None:
    whole, missed = (folder / "campaign" / "kernel_names.parquet").read_bytes(), 0
    (folder / "alone").mkdir()
    table = folder / "alone" / "kernel_names.parquet"
    table.write_bytes(whole)
    assert check(str(table.parent)).whole
    for place in range(0, len(whole), 5):
        flip(table, place, 1 << place % 8)
        missed += check(str(table.parent)).whole
        table.write_bytes(whole)
    assert missed <= len("foretell-sha256:") // 5 + 1, "only the mark of the seal is not covered by it"


def test_the_command_says_it_with_its_exit_code(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("data", "check", str(folder)) == 0
    assert "whole" in capsys.readouterr().out
    flip(folder / "campaign" / RECORDS, 100)
    assert run("data", "check", str(folder), "--json") == 1
    shown = json.loads(capsys.readouterr().out)
    assert shown["whole"] is False
    assert shown["damage"][0]["kind"] == "the checksum does not match"
    assert run("data", "check", str(folder)) == 1
    assert "1 damaged, 6 can be saved" in capsys.readouterr().out


def test_tables_of_a_cut_journal_are_kept_or_given_up_only_when_asked(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    campaign = folder / "campaign"
    lines = (campaign / RECORDS).read_bytes().splitlines(keepends=True)
    (campaign / RECORDS).write_bytes(b"".join(lines[:4]))
    assert run("data", "tables", str(campaign)) == 2
    assert "3 rows that the journal lacks" in capsys.readouterr().err
    assert run("data", "tables", str(campaign), "--keep-old", "--allow-fewer") == 2
    assert run("data", "tables", str(campaign), "--keep-old", "--json") == 0
    captured = capsys.readouterr().out
    assert json.loads(captured)["measurements"] == COUNT
    assert run("data", "tables", str(campaign), "--allow-fewer", "--json") == 0
    assert json.loads(capsys.readouterr().out)["measurements"] == 3


def test_what_was_set_aside_is_counted_and_is_no_damage(folder: Path) -> None:
    campaign = folder / "campaign"
    flip(campaign / TRACES, 30)
    journal = Journal(campaign)
    journal.open()
    journal.append_trace({"workload_id": "w0", "campaign_id": "c", "kernels": KERNEL})
    journal.close()
    assert (campaign / DAMAGED).exists()
    result = check(str(folder))
    assert (result.whole, result.set_aside) == (True, 1)
