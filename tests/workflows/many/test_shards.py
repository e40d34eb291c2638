"""Shards: each file is complete or absent, and what is damaged is not believed."""

import json
import os
from pathlib import Path
from typing import Any

import pyarrow.parquet
import pytest

from foretell.errors import DataError
from foretell.workflows.many.plan import ManyPlan
from foretell.workflows.many.shards import MANIFEST, ShardFolder
from foretell.workflows.many.task import from_bytes, to_bytes

PLAN = ManyPlan(("a", "b", "c"), "", "", 0, ({"device": "h200"},), 2, 60.0, "identity")


def table(*numbers: int, status: str = "ok") -> Any:
    return from_bytes(to_bytes([{"number": number, "name": f"m{number}", "status": status} for number in numbers]))


def test_a_shard_is_written_in_the_order_of_its_models_and_known_again(tmp_path: Path) -> None:
    folder = ShardFolder(tmp_path / "out", PLAN)
    with folder.locked():
        assert folder.begin() == []
        shard = folder.write(0, [table(1, status="error"), table(0)])
        assert folder.begin() == [shard]
        assert (shard.rows, shard.errors) == (2, 1)
    assert pyarrow.parquet.read_table(folder.path(0))["number"].to_pylist() == [0, 1]
    assert sorted(path.name for path in folder.folder.iterdir()) == [".lock", MANIFEST, "shard-000000.parquet"]


def test_the_manifest_says_whether_all_is_there(tmp_path: Path) -> None:
    folder = ShardFolder(tmp_path, PLAN)
    folder.begin()
    assert json.loads((tmp_path / MANIFEST).read_text())["complete"] is False
    folder.finish([folder.write(1, [table(2)]), folder.write(0, [table(0, 1)])])
    manifest = json.loads((tmp_path / MANIFEST).read_text())
    assert (manifest["complete"], manifest["models"], manifest["shards"]) == (True, 3, 2)
    assert [file["rows"] for file in manifest["files"].values()] == [2, 1]


@pytest.mark.parametrize("place", [100, -20, -60])
def test_a_damaged_shard_is_removed_and_made_again(tmp_path: Path, place: int) -> None:
    folder = ShardFolder(tmp_path, PLAN)
    folder.begin()
    folder.write(0, [table(0, 1)])
    data = bytearray(folder.path(0).read_bytes())
    data[place] ^= 1
    folder.path(0).write_bytes(data)
    assert folder.look(0) is None
    assert not folder.path(0).exists()


def test_half_a_file_and_a_partial_one_are_no_shards(tmp_path: Path) -> None:
    folder = ShardFolder(tmp_path, PLAN)
    folder.begin()
    folder.write(0, [table(0, 1)])
    half = folder.path(0).read_bytes()[:-40]
    folder.path(0).write_bytes(half)
    (tmp_path / ".shard-000001.part").write_bytes(half)
    with folder.locked():
        assert folder.begin() == []
    assert not list(tmp_path.glob("*.part"))


def test_a_disk_that_refuses_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = ShardFolder(tmp_path, PLAN)
    folder.begin()

    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(DataError, match="No space left"):
        folder.write(0, [table(0, 1)])
    assert [path.name for path in tmp_path.iterdir()] == [MANIFEST]


def test_another_plan_another_run_and_a_foreign_folder_are_refused(tmp_path: Path) -> None:
    folder = ShardFolder(tmp_path / "out", PLAN)
    with folder.locked():
        folder.begin()
        folder.write(0, [table(0, 1)])
        with pytest.raises(DataError, match="Another run"), folder.locked():
            pass
    other = ShardFolder(tmp_path / "out", ManyPlan(*[*vars(PLAN).values()][:-1], identity="other"))
    with pytest.raises(DataError, match="another plan"):
        other.begin()
    (tmp_path / "out" / MANIFEST).write_text("{")
    with pytest.raises(DataError, match="cannot be read"):
        folder.begin()
    (tmp_path / "out" / MANIFEST).unlink()
    with pytest.raises(DataError, match=r"has shards and no manifest\.json"):
        folder.begin()
