import json

import pytest

from command_line import run
from foretell.testing import tiny_onnx


@pytest.fixture
def model(tmp_path):
    path = tmp_path / "tiny.onnx"
    path.write_bytes(tiny_onnx().SerializeToString())
    return str(path)


def test_a_newcomer_sees_how_many_kernels_there_are_and_of_what(capsys, model):
    shown = run(capsys, "fuse", model, "--runtime", "onnxruntime", "--most", "1")
    assert "operators in" in shown
    assert "more patterns; --most shows them" in shown
    told = json.loads(run(capsys, "fuse", model, "--runtime", "onnxruntime", "--json"))
    assert told["runtime"] == "onnxruntime"
    assert told["kernels"] == len(told["groups"]) < told["operators"]
    assert sum(len(group["nodes"]) for group in told["groups"]) == told["operators"]


def test_an_unknown_runtime_is_one_line(capsys, model):
    assert "Unknown runtime" in run(capsys, "fuse", model, "--runtime", "tensorrt", code=2)
