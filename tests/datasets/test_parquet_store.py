"""A folder of Parquet files: nothing lost, nothing doubled, whatever happens."""

import errno
import importlib.util
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from foretell.datasets.parquet_store import ParquetStore
from foretell.datasets.schema import SCHEMA_VERSION, TABLES, name_number
from foretell.datasets.store import merge
from foretell.errors import DataError

pa = pytest.importorskip("pyarrow")
parquet = pytest.importorskip("pyarrow.parquet")
APPENDER = Path(__file__).with_name("appender.py")
DATA = Path(__file__).parents[2] / "data"


def appender(*arguments: object) -> "subprocess.Popen[str]":
    return subprocess.Popen([sys.executable, APPENDER, *map(str, arguments)], stdout=subprocess.PIPE, text=True)


def numbered_rows(number: int) -> Any:
    spec = importlib.util.spec_from_file_location("appender", APPENDER)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.rows(number)


def counts(store: ParquetStore) -> tuple[int, int]:
    answer = store.query("SELECT count(*) AS n, count(DISTINCT workload_id) AS d FROM measurements").to_pylist()[0]
    return answer["n"], answer["d"]


def test_two_processes_lose_and_double_nothing(tmp_path: Path) -> None:
    processes = [appender(tmp_path / "store", first, first + 6) for first in (0, 3)]
    output = [process.communicate(timeout=300)[0].split() for process in processes]
    assert [process.returncode for process in processes] == [0, 0]
    added = [int(number) for words in output for number in words[1::2]]
    assert sum(added) == 9 * 30, "what both append is added by one of them"
    assert counts(ParquetStore(tmp_path / "store")) == (270, 270)


def test_killed_twenty_times_at_any_moment(tmp_path: Path) -> None:
    where, log = tmp_path / "store", tmp_path / "log"
    process = appender(where, "--kill", 20, log)
    output, _ = process.communicate(timeout=300)
    assert process.returncode == 0
    lines = [tuple(map(int, line.split())) for line in output.splitlines()]
    assert len(lines) == 20
    reported = lines[-1][0]
    assert reported >= 5, "nothing was tested if nothing was written"
    store = ParquetStore(where)
    files = list(where.glob("measurements-*.parquet"))
    assert reported <= len(files) <= reported + 1, "all that was reported, and at most the one under way"
    assert counts(store) == (30 * len(files), 30 * len(files)), "every append is there whole and once"
    added = [store.append("measurements", numbered_rows(number)) for number in range(reported + 1)]
    assert added == [0] * reported + [30 * (reported + 1 - len(files))]
    assert not list(where.glob(".append-*")), "what the killed have left is cleared away"


def test_killed_at_every_step_of_an_append(tmp_path: Path) -> None:
    process = appender(tmp_path, "--die")
    process.communicate(timeout=300)
    assert process.returncode == 0
    steps = sorted(path.name for path in tmp_path.iterdir())
    assert steps == ["close", "fsync", "replace", "replaced", "write"]
    for step in steps:
        store, done = ParquetStore(tmp_path / step), step == "replaced"
        assert bool(list((tmp_path / step).glob(".append-*.part"))) != done, step
        assert counts(store) == ((60, 60) if done else (30, 30)), step
        assert store.append("measurements", numbered_rows(1)) == (0 if done else 30), step
        assert counts(store) == (60, 60), step
        assert not list((tmp_path / step).glob(".append-*.part")), step


def test_a_full_disk_is_one_clear_line(tmp_path: Path) -> None:
    where = tmp_path / "store"
    ParquetStore(where).append("measurements", numbered_rows(0))
    before = {path.name: path.read_bytes() for path in where.iterdir()}
    process = appender(where, 1, 2, 3000)
    output, _ = process.communicate(timeout=300)
    assert process.returncode == 2
    assert output.startswith(f"Cannot write to {where}: ")
    assert "Nothing was changed" in output
    assert {path.name: path.read_bytes() for path in where.iterdir()} == before


@pytest.mark.parametrize("refused", ["rename", "lock", "folder"])
def test_a_folder_that_may_not_be_written(
    tmp_path: Path, rows: Any, refused: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    where = tmp_path / "store"
    ParquetStore(where).append("slices", rows("slices", 2))

    def refuse(*_: object, **__: object) -> None:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    if refused == "rename":
        monkeypatch.setattr("foretell.datasets.parquet_files.os.replace", refuse)
    elif refused == "lock":
        monkeypatch.setattr("foretell.datasets.parquet_store.os.open", refuse)
    else:
        monkeypatch.setattr(Path, "mkdir", refuse)
    with pytest.raises(DataError, match=r"Read-only file system\. Nothing was changed") as error:
        ParquetStore(where).append("slices", rows("slices", 5))
    assert "\n" not in str(error.value)
    monkeypatch.undo()
    assert ParquetStore(where).count("slices") == 2
    assert not list(where.glob("*.part"))
    (tmp_path / "file").write_text("")
    with pytest.raises(DataError, match="Cannot write"):
        ParquetStore(tmp_path / "file" / "below").append("slices", rows("slices"))


def test_a_damaged_file_stops_reading_and_appending_and_is_left_alone(tmp_path: Path, rows: Any) -> None:
    store = ParquetStore(tmp_path)
    store.append("slices", rows("slices", 300))
    [path] = tmp_path.glob("slices-*.parquet")
    content = path.read_bytes()
    for broken in (content[:-20], content[:50] + bytes(200) + content[250:]):
        path.write_bytes(broken)
        with pytest.raises(DataError, match=f"{path.name} is damaged") as refused:
            store.query("SELECT * FROM slices")
        assert "\n" not in str(refused.value)
        with pytest.raises(DataError, match=f"{path.name} is damaged"):
            store.append("slices", rows("slices", 3))
        assert path.read_bytes() == broken
    path.write_bytes(content)
    assert store.append("slices", rows("slices", 301)) == 1


def test_folders_with_odd_names(tmp_path: Path, rows: Any) -> None:
    store = ParquetStore(tmp_path / "it's [a] *store*?")
    store.append("slices", rows("slices"))
    assert store.query("SELECT count(*) AS n FROM slices").to_pylist() == [{"n": 5}]


def test_a_python_variable_is_no_table(tmp_path: Path) -> None:
    frame = pa.table({"a": [1]})
    with pytest.raises(DataError, match="frame does not exist"):
        ParquetStore(tmp_path).query("SELECT * FROM frame")
    assert frame.num_rows == 1


def old_folder(folder: Path, campaign: str, names: list[str]) -> None:
    """A campaign's folder as version 1 wrote it: numbers of names count from 0 in every folder."""
    folder.mkdir(parents=True)
    tables = {
        "measurements": {"campaign_id": [campaign], "workload_id": ["w"], "status": ["ok"]},
        "kernels": {"workload_id": ["w"] * 2, "sequence": [0, 1], "name_id": pa.array([0, 1], pa.int32())},
        "kernel_names": {"name_id": pa.array([0, 1], pa.int32()), "name": names},
    }
    for name, columns in tables.items():
        table = pa.table(columns).replace_schema_metadata({"schema_version": "1"})
        parquet.write_table(table, folder / f"{name}.parquet")


def test_version_1_is_read_by_folder_and_becomes_the_newest(tmp_path: Path) -> None:
    old_folder(tmp_path / "old" / "1", "one", ["gemm", "relu"])
    old_folder(tmp_path / "old" / "2", "two", ["relu", "conv"])
    sql = "SELECT campaign_id, sequence, kernel, name_id FROM kernels ORDER BY campaign_id, sequence"
    old = ParquetStore(tmp_path / "old")
    kernels_read = [(row["campaign_id"], row["kernel"]) for row in old.query(sql).to_pylist()]
    assert kernels_read == [("one", "gemm"), ("one", "relu"), ("two", "relu"), ("two", "conv")]
    assert [row["name_id"] for row in old.query(sql).to_pylist()] == [name_number(name) for _, name in kernels_read]
    assert old.tables() == {"measurements": 2, "kernels": 4, "kernel_names": 3}
    new = ParquetStore(tmp_path / "new")
    assert merge(old, new) == {"measurements": 2, "kernel_names": 3, "kernels": 4}
    assert new.query(sql).to_pylist() == old.query(sql).to_pylist()
    [path] = (tmp_path / "new").glob("kernels-*.parquet")
    assert parquet.read_schema(path).metadata[b"schema_version"] == str(SCHEMA_VERSION).encode()
    assert merge(old, new) == {"measurements": 0, "kernel_names": 0, "kernels": 0}


def test_the_committed_data_is_read() -> None:
    store = ParquetStore(DATA)
    answer = store.query(
        "SELECT count(*) AS n, count(kernel) AS named, count(DISTINCT (campaign_id, workload_id, sequence)) AS keys "
        "FROM kernels"
    ).to_pylist()[0]
    assert answer["n"] == answer["named"] == answer["keys"] >= 440_138
    assert set(store.query("SELECT * FROM measurements LIMIT 1").column_names) == set(TABLES["measurements"].columns)


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT * FROM read_csv('{outside}')",
        "SELECT * FROM read_text('{outside}')",
        "SELECT * FROM read_text('{store}/../outside.csv')",
        "SELECT * FROM read_blob('/proc/self/environ')",
        "SELECT * FROM '{outside}'",
        "SELECT * FROM glob('/etc/*')",
        "SELECT * FROM read_parquet('https://example.com/x.parquet')",
        "SELECT * FROM sniff_csv('{outside}')",
        "SELECT * FROM query('SELECT * FROM read_text(''{outside}'')')",
        "COPY (SELECT 1) TO '{outside}'",
        "ATTACH '{outside}'",
        "INSTALL httpfs",
        "LOAD httpfs",
        "SET enable_external_access = true",
        "SELECT 1; SET enable_external_access = true",
    ],
)
def test_a_query_reads_nothing_outside_its_store(tmp_path, rows, monkeypatch, sql):
    (tmp_path / "outside.csv").write_text("secret\n")
    (tmp_path / "a[b]*").mkdir()
    monkeypatch.chdir(tmp_path / "a[b]*")
    store = ParquetStore(Path("store"))
    store.append("measurements", rows("measurements"))
    with pytest.raises(DataError):
        store.query(sql.format(outside=tmp_path / "outside.csv", store=tmp_path / "a[b]*" / "store"))
    assert (tmp_path / "outside.csv").read_text() == "secret\n"
    assert store.query("SELECT count(*) AS n FROM measurements").to_pylist() == [{"n": 5}]
    store.close()
