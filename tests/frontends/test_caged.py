"""Somebody's file is read in a cage: only a graph or an error comes back, and nothing of it is believed."""

import json
from pathlib import Path

import pytest

from command_line import run
from foretell.errors import InputError, ModelError, UnsupportedOperatorError, UntrustedModelError
from foretell.frontends import ModelRequest, caged, convert
from foretell.frontends.caged import answer_to, read_caged
from foretell.frontends.request import parse_inputs
from foretell.graph import Graph
from foretell.graph.ir import serde
from foretell.processes.cage import TooMuchError
from foretell.testing import tiny_onnx
from foretell.workflows.workload import load_graph

READER = "foretell.frontends.onnx.file:read_model"


@pytest.fixture
def model(tmp_path: Path) -> Path:
    path = tmp_path / "tiny.onnx"
    path.write_bytes(tiny_onnx().SerializeToString())
    return path


def test_the_graph_is_the_same_in_a_cage_and_outside(model: Path) -> None:
    request = ModelRequest(str(model), parse_inputs(["3x16x16"]), mode="training")
    assert read_caged(READER, request).hash == convert(request, use_cache=False).hash


def test_a_limit_sends_even_a_small_file_into_a_cage(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def record(_: str, request: ModelRequest) -> Graph:
        asked.append(request.limits)
        return load_graph(tiny_onnx())

    monkeypatch.setattr(caged, "read_caged", record)
    load_graph(model, use_cache=False)
    assert not asked
    load_graph(model, use_cache=False, memory_limit_gib=2)
    load_graph(model, use_cache=False, timeout_s=60)
    assert [(limits.memory_gib, limits.timeout_s) for limits in asked] == [(2, 300), (8, 60)]


def test_an_error_of_the_child_is_ours(model: Path, tmp_path: Path) -> None:
    broken = tmp_path / "broken.onnx"
    broken.write_bytes(b"nothing")
    with pytest.raises(ModelError, match=r"broken\.onnx is not an ONNX model"):
        read_caged(READER, ModelRequest(str(broken)))
    with pytest.raises(InputError, match="zz"):
        read_caged(READER, ModelRequest(str(model), parse_inputs(["zz=3x16x16"])))


@pytest.mark.parametrize(
    ("answer", "error", "message"),
    [
        (b"", ModelError, "no answer"),
        (b"[]", ModelError, "no answer"),
        (b"{}", ModelError, "no graph"),
        (b'{"graph": "{}"}', ModelError, "no graph"),
        (b'{"graph": 7}', ModelError, "no graph"),
        (b'{"error": "UntrustedModelError", "message": "why"}', UntrustedModelError, "^why$"),
        (b'{"error": "UnsupportedOperatorError", "message": "why"}', UnsupportedOperatorError, "^why$"),
        (b'{"error": "SystemExit", "message": "why"}', ModelError, "^why$"),
    ],
)
def test_nothing_that_the_child_says_is_believed(
    model: Path, monkeypatch: pytest.MonkeyPatch, answer: bytes, error: type[Exception], message: str
) -> None:
    monkeypatch.setattr(caged, "run_caged", lambda *_: answer)
    with pytest.raises(error, match=message):
        read_caged(READER, ModelRequest(str(model)))


def test_a_confined_process_reads_itself(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(caged, "confined", lambda: frozenset({"limits"}))
    monkeypatch.setattr(caged, "run_caged", lambda *_: pytest.fail("a cage in a cage"))
    assert read_caged(READER, ModelRequest(str(model))).parameter_count == 248


def test_an_answer_is_a_graph_or_an_error(model: Path) -> None:
    request = {"inputs": [], "source": str(model), "mode": "inference"}
    task = {"reader": READER, "name": "tiny.onnx"}
    reply = json.loads(answer_to({**task, "request": dict(request)}))
    assert serde.from_document(reply["graph"]).parameter_count == 248
    missing = {**request, "source": str(model.parent / "gone.onnx")}
    assert json.loads(answer_to({**task, "request": missing}))["error"] == "ModelError"
    strange = json.loads(answer_to({**task, "reader": "foretell.frontends.request:image_shape", "request": request}))
    assert strange["message"].startswith("tiny.onnx cannot be read: TypeError")
    with pytest.raises(AssertionError):
        caged.call_reader("os:system", ModelRequest(str(model)))


def test_too_little_memory_is_one_line(model: Path) -> None:
    with pytest.raises(TooMuchError, match=r"^tiny\.onnx needed more than 0\.001 GiB .*--memory-limit 0\.002"):
        load_graph(model, use_cache=False, memory_limit_gib=0.001)


def test_the_command_line_has_both_limits(model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run(capsys, "inspect", str(model), "--no-cache", "--memory-limit", "4", "--timeout", "300")
    for option in ("--memory-limit", "--timeout"):
        for value in ("0", "-1", "nan", "inf"):
            assert f"Got {option}" in run(capsys, "inspect", str(model), option, value, code=2)
    shown = run(capsys, "predict", str(model), "--no-cache", "--memory-limit", "0.001", code=2)
    assert "--memory-limit 0.002" in shown
