"""Which ONNX files are read at once, and which in a cage."""

from pathlib import Path

import pytest
from onnx import ModelProto, helper

from foretell.frontends import ModelRequest, caged
from foretell.frontends.onnx import frontend
from foretell.frontends.onnx.frontend import OnnxFrontend, is_plain
from foretell.testing import tiny_onnx


def written(folder: Path, model: ModelProto | bytes) -> Path:
    path = folder / "m.onnx"
    path.write_bytes(model if isinstance(model, bytes) else model.SerializeToString())
    return path


def with_function() -> ModelProto:
    model = tiny_onnx()
    opset = helper.make_opsetid("", 17)
    node = helper.make_node("Relu", ["x"], ["y"])
    model.functions.append(helper.make_function("mine", "Twice", ["x"], ["y"], [node], [opset]))
    return model


def test_a_small_simple_model_is_plain(tmp_path: Path) -> None:
    assert is_plain(written(tmp_path, tiny_onnx()))
    assert is_plain(Path(__file__).parents[3] / "examples" / "resnet50.onnx")


def test_a_large_model_is_not_plain(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = written(tmp_path, tiny_onnx())
    monkeypatch.setattr(frontend, "MAX_PLAIN_BYTES", path.stat().st_size - 1)
    assert not is_plain(path)


def test_models_that_can_unfold_are_not_plain(tmp_path: Path) -> None:
    assert not is_plain(written(tmp_path, with_function()))
    plain = tiny_onnx().SerializeToString()
    assert not is_plain(written(tmp_path, plain + plain))  # two graphs, which protobuf merges
    assert not is_plain(written(tmp_path, plain + b"\x28\x01" * frontend.MAX_PLAIN_FIELDS))


@pytest.mark.parametrize("content", [b"", b"\x3a", b"\x3a\x7f", b"\xff" * 40, b"\x3d0000", b"\x08", b"x" * 100])
def test_what_is_damaged_is_not_plain(tmp_path: Path, content: bytes) -> None:
    assert not is_plain(written(tmp_path, content))
    assert not is_plain(tmp_path / "missing")


def test_a_file_that_is_not_plain_is_read_in_a_cage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = written(tmp_path, with_function())
    assert OnnxFrontend().load(ModelRequest(str(path))).parameter_count == 248
    monkeypatch.setattr(caged, "run_caged", lambda *_: b'{"error": "ModelError", "message": "caged"}')
    with pytest.raises(Exception, match="caged"):
        OnnxFrontend().load(ModelRequest(str(path)))
    assert OnnxFrontend().load(ModelRequest(with_function())).parameter_count == 248  # an object is read here
