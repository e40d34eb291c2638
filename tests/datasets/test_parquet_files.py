"""Files: found by name, checked, whole or absent."""

from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from foretell.datasets.parquet_files import (
    TableWriter,
    arrow_table,
    check_pages,
    find_files,
    fitted,
    look,
    read_columns,
    rename,
    table_of,
)  # fmt: skip
from foretell.datasets.schema import SCHEMA_VERSION, TABLES
from foretell.errors import DataError

pa = pytest.importorskip("pyarrow")
parquet = pytest.importorskip("pyarrow.parquet")


def write(path: Path, rows: Any, table: str = "slices") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    with TableWriter(path.with_suffix(".part"), TABLES[table]) as writer:
        writer.write(rows)
        rename(writer.finish(), path)
    return path


def test_files_are_found_at_any_depth_by_their_names(tmp_path: Path, rows: Any) -> None:
    deep = write(tmp_path / "a" / "b" / "slices.parquet", rows("slices", 3))
    hashed = write(tmp_path / "slices-0123456789abcdef.parquet", rows("slices", 2, start=3))
    for other in ("slices.parquet.part", "notes.parquet", "slices-x.parquet", ".append-slices-7.part"):
        (tmp_path / other).write_bytes(b"not ours")
    assert {(f.path, f.table, f.version, f.rows) for f in find_files(tmp_path)} == {
        (deep, "slices", SCHEMA_VERSION, 3), (hashed, "slices", SCHEMA_VERSION, 2),
    }  # fmt: skip
    assert [table_of(Path(n)) for n in ("kernel_names.parquet", "kernels-abcdef12.parquet", "x.parquet")] == [
        "kernel_names", "kernels", None,
    ]  # fmt: skip


def test_files_are_small(tmp_path: Path, rows: Any) -> None:
    path = write(
        tmp_path / "kernels.parquet", rows("kernels", 2000, campaign_id="c" * 12, op="aten::conv2d"), "kernels"
    )
    with parquet.ParquetFile(path) as file:
        group = file.metadata.row_group(0)
        columns = {group.column(i).path_in_schema: group.column(i) for i in range(group.num_columns)}
    assert {column.compression for column in columns.values()} == {"ZSTD"}
    assert columns["campaign_id"].total_compressed_size < 200, "a constant column costs nothing"


def test_a_file_that_was_not_finished_leaves_nothing(tmp_path: Path, rows: Any) -> None:
    def stop() -> None:
        with TableWriter(tmp_path / "slices.parquet.part", TABLES["slices"]) as writer:
            writer.write(rows("slices"))
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        stop()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("damage", ["cut", "emptied", "text"])
def test_a_damaged_file_is_named_and_left_alone(tmp_path: Path, rows: Any, damage: str) -> None:
    path = write(tmp_path / "slices.parquet", rows("slices"))
    content = path.read_bytes()
    broken = {"cut": content[: len(content) // 2], "emptied": b"", "text": b"PAR1 no"}[damage]
    path.write_bytes(broken)
    with pytest.raises(DataError, match=r"slices\.parquet is damaged.*Restore it") as refused:
        find_files(tmp_path)
    assert "\n" not in str(refused.value)
    assert path.read_bytes() == broken


def test_a_damaged_page_is_found(tmp_path: Path, rows: Any) -> None:
    path = write(tmp_path / "slices.parquet", rows("slices", 500))
    data = bytearray(path.read_bytes())
    data[60:70] = bytes(b ^ 0xFF for b in data[60:70])
    path.write_bytes(data)
    [file] = find_files(tmp_path)
    with pytest.raises(DataError, match=r"slices\.parquet is damaged"):
        check_pages([file])


def test_any_flipped_bit_of_a_footer_is_an_error_of_ours_or_none(tmp_path: Path, rows: Any) -> None:
    path = write(tmp_path / "kernel_names.parquet", rows("kernel_names", 3), "kernel_names")
    content = path.read_bytes()
    footer = len(content) - 8 - int.from_bytes(content[-8:-4], "little")
    for place in range(footer, len(content)):
        flipped = bytearray(content)
        flipped[place] ^= 1 << place % 8
        path.write_bytes(flipped)
        with suppress(DataError):
            check_pages([look(path)])


def test_newer_files_are_refused_and_older_ones_read(tmp_path: Path, rows: Any) -> None:
    data = rows("slices")
    parquet.write_table(
        data.replace_schema_metadata({"schema_version": "1"}).select(["workload_id"]), tmp_path / "slices.parquet"
    )
    [file] = find_files(tmp_path)
    assert (file.version, read_columns(file, ("workload_id", "percent")).column_names) == (1, ["workload_id"])
    parquet.write_table(
        data.replace_schema_metadata({"schema_version": str(SCHEMA_VERSION + 1)}), tmp_path / "slices.parquet"
    )
    with pytest.raises(DataError, match=rf"schema version {SCHEMA_VERSION + 1}; .* reads up to {SCHEMA_VERSION}"):
        find_files(tmp_path)


def test_rows_are_fitted_to_the_schema() -> None:
    table = TABLES["kernel_names"]
    raw_table = pa.table({"name": ["a"], "name_id": pa.array([3], pa.int16()), "foreign": [1]})
    assert fitted(table, raw_table).to_pylist() == [{"name_id": 3, "name": "a"}]
    assert fitted(table, pa.table({"name_id": [3]})).to_pylist() == [{"name_id": 3, "name": None}]
    with pytest.raises(DataError, match="name_id"):
        fitted(table, pa.table({"name": ["a"]}))
    with pytest.raises(DataError, match="does not fit"):
        arrow_table(table, {"name_id": ["three"]})


def test_a_folder_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with (
        pytest.raises(DataError, match="Nothing was changed"),
        TableWriter(tmp_path / "file" / "x.part", TABLES["slices"]),
    ):
        pass
