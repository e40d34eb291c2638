"""``foretell data``."""

import json
from pathlib import Path

import pytest

from command_line import run
from foretell.datasets.opening import open_store
from foretell.datasets.parquet_files import arrow_table
from foretell.datasets.schema import TABLES

pytest.importorskip("duckdb")

ROW = {
    "campaign_id": "c", "workload_id": "w", "spec": "timm:resnet50", "family": "resnet", "mode": "training",
    "dtype": "bf16", "batch_size": 8, "status": "ok", "latency_ms": 2.5, "memory_mib": 100.0,
    "device_name": "NVIDIA H200",
    "input_shape": "3x224x224", "noisy": False, "latency_cv": 0.01,
}  # fmt: skip


@pytest.fixture
def store(tmp_path: Path) -> str:
    columns = {name: [value] for name, value in ROW.items()}
    open_store(tmp_path / "store").append("measurements", arrow_table(TABLES["measurements"], columns))
    return str(tmp_path / "store")


def test_card(store: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shown = run(capsys, "data", "card", "--store", store)
    assert "NVIDIA H200" in shown
    assert "no slices" in shown
    output = json.loads(run(capsys, "data", "card", "--store", store, "--json"))
    assert (output["measurements"], output["training"], output["llm"], output["repeatability"]["pairs"]) == (1, 1, 0, 0)
    assert run(capsys, "data", "card", "--store", store, "--markdown", str(tmp_path / "CARD.md")) == ""
    assert "| training | 1 |" in (tmp_path / "CARD.md").read_text()


def test_the_default_store_is_data_in_the_current_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert "no store at data" in run(capsys, "data", "card", code=2)
    monkeypatch.chdir(Path(__file__).parents[2])
    assert json.loads(run(capsys, "data", "query", "SELECT 1 AS one", "--json"))["rows"] == [{"one": 1}]


def test_query(store: str, capsys: pytest.CaptureFixture[str]) -> None:
    shown = run(capsys, "data", "query", "SELECT dtype, latency_ms FROM training", "--store", store)
    assert "bf16" in shown
    assert "2.5" in shown
    wide = "SELECT sum(batch_size) AS n, DATE '2026-11-15' AS d, 1.25 AS x FROM training"
    rows = json.loads(run(capsys, "data", "query", wide, "--store", store, "--json"))["rows"]
    assert rows == [{"n": 8, "d": "2026-11-15", "x": 1.25}]
    arguments = ("data", "query", "SELECT nothing FROM training", "--store", store)
    assert run(capsys, *arguments, code=2).count("\n") == 1


def test_a_row_wider_than_the_screen_is_shown_column_by_column(store: str, capsys: pytest.CaptureFixture[str]) -> None:
    shown = run(capsys, "data", "query", "SELECT * FROM measurements", "--store", store)
    lines = [line.split() for line in shown.splitlines()]
    assert ["latency_ms", "2.5"] in lines
    assert ["spec", "timm:resnet50"] in lines
    assert max(map(len, shown.splitlines())) <= 120


def test_errors_of_a_query_offer_what_was_meant(store: str, capsys: pytest.CaptureFixture[str]) -> None:
    for sql, words in (("SELECT statu FROM training", "status"), ("SELECT 1 FROM measurments", "measurements")):
        output = run(capsys, "data", "query", sql, "--store", store, code=2)
        assert output.count("\n") == 1
        assert words in output


def test_a_processor_s_measurements_count(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    row = {name: value for name, value in ROW.items() if name != "memory_mib"} | {"process_peak_mib": 409.0}
    columns = {name: [value] for name, value in (row | {"device_name": "cpu"}).items()}
    open_store(tmp_path / "cpu").append("measurements", arrow_table(TABLES["measurements"], columns))
    output = json.loads(run(capsys, "data", "card", "--store", str(tmp_path / "cpu"), "--json"))
    assert (output["measurements"], output["training"], output["by_device"]) == (1, 1, {"cpu": 1})


def test_merge_and_tables(store: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert "measurements" in run(capsys, "data", "merge", store, "--store", str(tmp_path / "other"))
    again = run(capsys, "data", "merge", store, "--store", str(tmp_path / "other"), "--json")
    assert json.loads(again) == {"measurements": 0}
    line = ROW | {"kind": "measurement"}
    (tmp_path / "journal.jsonl").write_text(json.dumps(line) + "\n")
    assert json.loads(run(capsys, "data", "tables", str(tmp_path), "--json")) == {"measurements": 1}
    assert "no journal" in run(capsys, "data", "tables", store, code=2)


def test_repack_says_what_each_table_takes(store: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert "measurements" in run(capsys, "data", "repack", "--store", store)
    output = json.loads(run(capsys, "data", "repack", "--store", store, "--json"))["measurements"]
    assert output["before_bytes"] == output["after_bytes"] > 0
    assert output["rows"] == 1
    assert "no store at" in run(capsys, "data", "repack", "--store", f"{store}-nowhere", code=2)


def test_a_damaged_file_is_one_line(store: str, capsys: pytest.CaptureFixture[str]) -> None:
    [path] = Path(store).glob("*.parquet")
    path.write_bytes(path.read_bytes()[:100])
    output = run(capsys, "data", "card", "--store", store, code=2)
    assert output.count("\n") == 1
    assert path.name in output
