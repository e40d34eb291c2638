import json
from xml.etree import ElementTree

import pytest

from command_line import run
from foretell.predictors.fusion import kernel_graph
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
    output = json.loads(run(capsys, "fuse", model, "--runtime", "onnxruntime", "--json"))
    assert output["runtime"] == "onnxruntime"
    assert output["kernels"] == len(output["groups"]) < output["operators"]
    assert sum(len(group["nodes"]) for group in output["groups"]) == output["operators"]


def test_an_unknown_runtime_is_one_line(capsys, model):
    assert "Unknown runtime" in run(capsys, "fuse", model, "--runtime", "tensorrt", code=2)


@pytest.fixture
def known_groups(monkeypatch):
    """Kernels without a fitted partitioner: every node one."""
    monkeypatch.setattr(kernel_graph, "find_kernels", lambda graph, _: [(i,) for i in range(len(graph.nodes))])


@pytest.mark.usefixtures("known_groups")
def test_a_picture_is_written_completely(capsys, model, tmp_path):
    file = tmp_path / "new" / "net.svg"
    shown = run(capsys, "fuse", model, "--runtime", "onnxruntime", "--svg", str(file))
    assert f"picture: {file}" in shown
    texts = [element.text or "" for element in ElementTree.parse(file).getroot().iter()]
    assert any("under onnxruntime" in text for text in texts)
    assert "Conv" in texts
    assert not any("µs" in text for text in texts)  # known on CPUs only
    assert [entry.name for entry in file.parent.iterdir()] == ["net.svg"]


@pytest.mark.usefixtures("known_groups")
def test_a_picture_has_the_times_of_the_device_that_is_named(capsys, model, tmp_path):
    file = tmp_path / "net.svg"
    output = json.loads(run(capsys, "fuse", model, "--svg", str(file), "--device", "mi300x", "--json"))
    assert output["kernels"] == output["operators"]
    text = file.read_text(encoding="utf-8")
    assert "Times: the least by the roofline on mi300x, batch 1, fp32: each operator by itself, unfused" in text
    assert "µs" in text


@pytest.mark.usefixtures("known_groups")
def test_a_picture_that_cannot_be_written_or_timed_is_one_line(capsys, model, tmp_path):
    (tmp_path / "file").write_text("")
    assert "Choose another --svg" in run(capsys, "fuse", model, "--svg", str(tmp_path / "file" / "net.svg"), code=2)
    assert "Unknown device" in run(capsys, "fuse", model, "--svg", str(tmp_path / "a.svg"), "-d", "a10o", code=2)
    assert "--svg" in run(capsys, "fuse", model, "-d", "h200", code=2)


@pytest.mark.usefixtures("known_groups")
def test_without_a_fitted_predictor_the_picture_has_no_times(capsys, model, tmp_path, monkeypatch):
    def missing(*_: object) -> None:
        raise FileNotFoundError("unit-network-h200.zip")

    monkeypatch.setattr(kernel_graph, "find_predictor", missing)
    run(capsys, "fuse", model, "--svg", str(tmp_path / "net.svg"))
    assert "µs" not in (tmp_path / "net.svg").read_text(encoding="utf-8")
