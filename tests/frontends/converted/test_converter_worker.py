"""The child's frame: what it reads and writes, whatever a framework does."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from onnx import TensorProto, helper

from foretell.frontends.converted import converter_worker
from foretell.frontends.converted.converter import WORKER
from foretell.frontends.converted.converter_worker import LARGEST_KEPT, Refusal, one_line, strip_weights
from foretell.frontends.onnx.file import graph_from_proto
from foretell.frontends.request import ModelRequest
from foretell.testing import tiny_onnx


def work(folder: Path, **task: object) -> dict[str, object]:
    (folder / "task.json").write_text(json.dumps(task))
    command = [sys.executable, "-I", str(WORKER), str(folder)]
    subprocess.run(command, check=True, timeout=300, capture_output=True)
    return dict(json.loads((folder / "result.json").read_text()))


def test_it_needs_nothing_but_the_standard_library(tmp_path: Path) -> None:
    code = f"import runpy, sys; runpy.run_path({str(WORKER)!r}); sys.exit('onnx' in sys.modules)"
    assert subprocess.run([sys.executable, "-I", "-S", "-c", code], check=False, timeout=300).returncode == 0


def test_a_refusal_and_a_crash_are_results(tmp_path: Path) -> None:
    (tmp_path / "net.py").write_text("def build(): raise ValueError('two\\nlines')")
    request = {"worker": "jax", "format": "python", "path": str(tmp_path / "net.py"), "function": "build", "inputs": []}
    assert work(tmp_path, **request, trust=False)["kind"] == "untrusted"
    result = work(tmp_path, **request, trust=True)
    assert result == {"kind": "model", "error": "net.py raised ValueError: two lines"}
    crashed = work(tmp_path, worker="paddle", format="program", trust=False)  # no path
    assert crashed["error"] == "the converter failed: KeyError: 'path'"


def test_large_weights_go_and_shapes_stay() -> None:
    model = tiny_onnx()
    large = helper.make_tensor("large", TensorProto.FLOAT, [LARGEST_KEPT + 1], [0.0] * (LARGEST_KEPT + 1))
    model.graph.initializer.append(large)
    body = helper.make_graph([], "body", [], [], [large])
    model.graph.node.append(helper.make_node("If", ["c"], [], then_branch=body, else_branch=body))
    constant = helper.make_node("Constant", [], ["held"], value=large)
    model.graph.node.append(constant)
    before = len(model.SerializeToString())
    small = {t.name: t.SerializeToString() for t in model.graph.initializer if t.name != "large"}
    strip_weights(model.graph)
    assert len(model.SerializeToString()) < before - 4 * 4 * LARGEST_KEPT + 2000
    assert {t.name: t.SerializeToString() for t in model.graph.initializer if t.name != "large"} == small
    stripped = model.graph.initializer[-1]
    assert (list(stripped.dims), stripped.data_location) == ([LARGEST_KEPT + 1], TensorProto.EXTERNAL)


def test_a_stripped_model_is_read_as_the_whole_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(converter_worker, "LARGEST_KEPT", 3)
    model = tiny_onnx()
    original = graph_from_proto(model, ModelRequest(None), "m")
    strip_weights(model.graph)
    assert any(t.data_location == TensorProto.EXTERNAL for t in model.graph.initializer)
    assert graph_from_proto(model, ModelRequest(None), "m").hash == original.hash


def test_errors_are_one_line() -> None:
    assert one_line(ValueError("a\n\n b ")) == "a b"
    assert one_line(ValueError()) == "no reason given"
    assert Refusal("input", "why").kind == "input"


CONFINED = """
import runpy, sys, os, socket, subprocess
from pathlib import Path
folder, victim = map(Path, sys.argv[2:])
worker = runpy.run_path(sys.argv[1])
worker["_confine"](folder, "keras", folder / "model.keras")
(folder / "model.onnx").write_bytes(b"x")
attacks = {
    "write": lambda: victim.write_text("x"), "read": victim.read_text, "remove": victim.unlink,
    "run": lambda: subprocess.run(["true"]), "fork": os.fork, "socket": socket.socket,
}
for name, attack in attacks.items():
    try:
        attack()
        print(name)
    except OSError:
        pass
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="the layers are those of Linux")
def test_a_worker_reaches_only_its_folder(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    victim = tmp_path / "victim"
    victim.write_text("the user's")
    command = [sys.executable, "-c", CONFINED, str(WORKER), str(tmp_path / "folder"), str(victim)]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=300)
    assert done.stdout == ""
    assert victim.read_text() == "the user's"
    assert (tmp_path / "folder" / "model.onnx").exists()
