"""Bad input ends in one line that names the row and says what would work."""

from pathlib import Path

import pytest

import foretell
from foretell.devices import find_device
from foretell.errors import DataError
from foretell.workflows.adapting.measured import read_measured

HEADER = "model,batch_size,input,dtype,mode,latency_ms"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", r"columns model, .* missing"),
        ("model,batch_size,input,dtype,mode,latency_s\nM,1,,fp32,inference,1", r"unknown column 'latency_s'.*ms, MiB"),
        ("model,batch_size,input,dtype,mode\nM,1,,fp32,inference", r"column latency_ms missing"),
        (f"{HEADER}\nM,1,,fp32,inference,0", r"row 2: latency_ms is 0; it must be above 0"),
        (f"{HEADER}\nM,1,,fp32,inference,-3", r"row 2: latency_ms is -3"),
        (f"{HEADER}\nM,1,,fp32,inference,nan", r"row 2: latency_ms is nan"),
        (f"{HEADER}\nM,1,,fp32,inference,12 ms", r"row 2: latency_ms is '12 ms'; write a number without its unit"),
        (f"{HEADER}\nM,1,,fp32,inference,", r"row 2 has no latency_ms"),
        (f"{HEADER}\nM,one,,fp32,inference,1", r"row 2: batch_size is 'one'"),
        (f"{HEADER}\nM,0,,fp32,inference,1", r"row 2: The batch size is 0"),
        (f"{HEADER}\nM,1,,fp99,inference,1", r"row 2: .*fp99"),
        (f"{HEADER}\nM,1,,fp32,dreaming,1", r"row 2: Unknown mode 'dreaming'"),
        (f"{HEADER}\nM,1,,fp32,inference,1,2", r"row 2 has another number of fields"),
        (f"{HEADER}\n,1,,fp32,inference,1", r"row 2 has no model"),
        (f"{HEADER}\nabsent.onnx,1,,fp32,inference,1", r"row 2: absent.onnx cannot be read: .*absent.onnx"),
        (f"{HEADER}\nM,1,,fp32,inference,1\nM,1,,fp32,inference,2", r"row 3 is the same workload as row 2"),
        (f"{HEADER},device\nM,1,,fp32,inference,1,t4", r"row 2 is of t4, not of p4: adapt to one device"),
        (f"{HEADER}\n", r"has no measurement; a row needs model"),
        (f"{HEADER},channels_last\nM,1,,fp32,inference,1,perhaps", r"channels_last is 'perhaps'"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_named(models: list[Path], tmp_path: Path, own_folder: Path, text: str, message: str) -> None:
    file = tmp_path / "bad.csv"
    file.write_text(text.replace("\nM,", f"\n{models[0]},"))
    with pytest.raises(DataError, match=message) as caught:
        foretell.adapt("p4", file, out=tmp_path / "out.zip")
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "out.zip").exists()
    assert not (own_folder / "predictors").exists()


def test_a_missing_file_and_a_binary_one(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"Cannot read .*absent.csv: No such file"):
        read_measured(tmp_path / "absent.csv", find_device("p4"))
    (tmp_path / "binary.csv").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(DataError, match=r"not a CSV file in UTF-8"):
        read_measured(tmp_path / "binary.csv", find_device("p4"))


def test_an_empty_store_says_so(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"has no measurement of p4; it has: no measurement"):
        read_measured(tmp_path, find_device("p4"))


def test_a_store_gives_the_measurements_of_the_device_alone(tmp_path: Path) -> None:
    pytest.importorskip("pyarrow")
    from small.small_store import write_store

    store = write_store(tmp_path / "store", (8, 16))
    measured, _ = read_measured(store, find_device("h200"))
    assert measured
    assert all(one.row.latency_ms > 0 for one in measured)
    assert {one.workload.batch_size for one in measured} == {one.row.batch_size for one in measured}
    with pytest.raises(DataError, match=r"has no measurement of t4; it has: .*H200"):
        read_measured(store, find_device("t4"))
