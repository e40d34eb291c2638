"""The worker behind the tools: one call a line, one answer a line."""

import json
import subprocess
import sys
from pathlib import Path

import onnx
import pytest

pytest.importorskip("mcp")

from foretell.testing import tiny_onnx
from foretell.web.mcp import answers, worker


def test_an_answer_and_an_error_are_one_line_each() -> None:
    assert "h200" in worker.reply({"tool": "devices", "fields": {"name": None, "maker": None}})["text"]
    error = worker.reply({"tool": "devices", "fields": {"name": "h201", "maker": None}})["error"]
    assert error.startswith("Unknown device 'h201'")


def test_a_bug_and_a_lack_of_memory_are_told_too(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(_tool: str, fields: dict[str, bool]) -> str:
        raise MemoryError if fields["much"] else ZeroDivisionError("division by zero")

    monkeypatch.setattr(answers, "answer", fail)
    assert "division by zero" in worker.reply({"tool": "devices", "fields": {"much": False}})["error"]
    assert worker.reply({"tool": "devices", "fields": {"much": True}})["tainted"] is True


def test_a_worker_opens_no_file_outside_the_folder_even_if_it_is_told_to(tmp_path: Path) -> None:
    offered = "import ctypes; print(ctypes.CDLL(None).syscall(444, None, 0, 1) > 0)"
    if subprocess.run([sys.executable, "-c", offered], capture_output=True, text=True, check=True).stdout != "True\n":
        pytest.skip("this system has no landlock")
    calls = b""
    for name in ("inside", "outside", "here"):
        (tmp_path / name).mkdir()
        onnx.save(tiny_onnx(), tmp_path / name / "net.onnx")
        fields = {"model": str(tmp_path / name / "net.onnx"), "input_shape": None, "use_cache": False}
        calls += json.dumps({"tool": "inspect", "fields": fields}).encode() + b"\n"
    command = [sys.executable, "-P", "-m", "foretell.web.mcp.worker", str(tmp_path / "inside"), "4096"]
    ended = subprocess.run(command, input=calls, capture_output=True, cwd=tmp_path / "here", check=True)
    ready, inside, outside, _ = map(json.loads, ended.stdout.splitlines())
    assert ready == {"event": "ready"}
    assert "net.onnx" in inside["text"]
    assert "Permission denied" in outside["error"]
