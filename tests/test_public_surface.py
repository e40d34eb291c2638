"""What ``import foretell`` offers: exactly `__all__`, verbs that return records, and records that people can read."""

import json
import subprocess
import sys

import numpy
import pytest

import foretell
from foretell.errors import InputError, MissingExtraError
from foretell.records import Estimate, Prediction
from foretell.testing import tiny_onnx


def test_the_names_are_the_public_ones_and_all_of_them_are_there() -> None:
    assert dir(foretell) == sorted(foretell.__all__)
    assert all(getattr(foretell, name) is not None for name in foretell.__all__)
    with pytest.raises(AttributeError, match="no attribute 'guess'"):
        foretell.guess  # noqa: B018


def test_a_fresh_process_sees_the_same_names() -> None:
    code = "import foretell; print(dir(foretell) == sorted(foretell.__all__))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "True\n"


def records() -> list[foretell.Prediction | foretell.Sweep | foretell.ModelComparison | foretell.Inspection]:
    return [
        foretell.predict(tiny_onnx(), batch_size=8),
        foretell.sweep(tiny_onnx(), batch_sizes=[1, 8]),
        foretell.compare(tiny_onnx(), tiny_onnx()),
        foretell.inspect(tiny_onnx()),
        foretell.share([tiny_onnx(), tiny_onnx()], method="time-slicing"),
        foretell.advise(tiny_onnx(), devices=["h200", "l4"], mig=False, max_batch=4),
    ]


@pytest.mark.parametrize("record", records(), ids=lambda record: type(record).__name__)
def test_every_verb_returns_a_record_that_can_be_read_and_written(record: foretell.Prediction) -> None:
    text = repr(record)
    assert 3 <= len(text.splitlines()) <= 30
    assert max(map(len, text.splitlines())) < 400
    assert record.heading() in text
    json.dumps(record.to_dict(), allow_nan=False)
    page = record._repr_html_()
    assert page.count("<tr>") == len(list(record.lines()))
    rows = record.rows()
    assert rows
    assert all(set(row) == set(rows[0]) for row in rows)


def test_names_from_inside_a_model_cannot_write_html() -> None:
    prediction = foretell.predict(tiny_onnx())
    hostile = Prediction(**{**vars(prediction), "model": "<script>alert(1)</script>"})
    assert "<script>" not in hostile._repr_html_()
    assert "&lt;script&gt;" in hostile._repr_html_()


def test_a_sweep_can_be_read_twice_and_cut() -> None:
    points = foretell.sweep(tiny_onnx(), batch_sizes=[1, 2, 4])
    assert [p.prediction.batch_size for p in points] == [p.prediction.batch_size for p in points] == [1, 2, 4]
    assert len(points) == 3
    assert points[-1].prediction.batch_size == 4
    assert isinstance(points[:2], foretell.Sweep)
    assert len(points[:2]) == 2
    assert "2 points of" in repr(points[:2])


def test_a_frame_has_a_row_for_each_or_names_what_installs_pandas(monkeypatch: pytest.MonkeyPatch) -> None:
    points = foretell.sweep(tiny_onnx(), batch_sizes=[1, 2])
    monkeypatch.setitem(sys.modules, "pandas", None)
    monkeypatch.setattr("foretell.optional.available", lambda module: module != "pandas")
    with pytest.raises(MissingExtraError, match=r"pip install 'foretell\[pandas\]'"):
        points.to_frame()


def test_a_frame_is_made_of_the_rows() -> None:
    pandas = pytest.importorskip("pandas")
    frame = foretell.sweep(tiny_onnx(), batch_sizes=[1, 2]).to_frame()
    assert isinstance(frame, pandas.DataFrame)
    assert frame["batch_size"].tolist() == [1, 2]
    assert (frame["latency_ms_low"] < frame["latency_ms"]).all()


@pytest.mark.parametrize("batch_size", [2.5, 2.0, "8", True, None, 0, -1, 2**20 + 1, float("nan"), float("inf")])
def test_batch_sizes_that_are_no_integers_are_refused(batch_size: object) -> None:
    for verb in (foretell.predict, foretell.inspect, foretell.load_graph):
        with pytest.raises(InputError, match="must be a whole number between 1 and 1048576"):
            verb(tiny_onnx(), batch_size=batch_size)  # type: ignore[operator]
    with pytest.raises(InputError, match="must be a whole number"):
        foretell.sweep(tiny_onnx(), batch_sizes=[batch_size])  # type: ignore[list-item]


def test_integers_of_numpy_are_accepted() -> None:
    assert foretell.predict(tiny_onnx(), batch_size=numpy.int64(4)).batch_size == 4


def test_a_prediction_for_an_unmeasured_device_is_marked_as_extrapolated() -> None:
    measured, other = (foretell.predict(tiny_onnx(), device=device) for device in ("h200", "a100"))
    assert (measured.extrapolated, other.extrapolated) == (False, True)
    assert other.to_dict()["extrapolated"] is True
    assert "transfer, extrapolated" in repr(other)
    assert foretell.predict(tiny_onnx(), predictor="roofline").extrapolated


def test_what_is_not_known_is_absent_from_the_lines_and_none_in_rows() -> None:
    bare = Prediction("m", "h200", None, "cuda-graph", "inference", 1, "fp32", "mine", latency_ms=Estimate(1, 1, 1))
    assert [name for name, _ in bare.lines()] == ["latency_ms", "predictor"]
    (row,) = bare.rows()
    assert (row["latency_ms"], row["memory_mib"], row["memory_mib_low"]) == (1, None, None)
