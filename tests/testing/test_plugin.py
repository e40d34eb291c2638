"""The pytest plugin, in a pytest of its own."""

import subprocess
import sys
from pathlib import Path

import onnx

from foretell.testing import tiny_onnx

TESTS = """
def test_kept(model_budget):
    model_budget("net.onnx", device="l4", batch_size=8, latency_ms=50, memory_mib=4000, runtime="eager")

def test_outgrown(model_budget):
    model_budget("net.onnx", device="l4", batch_size=8, latency_ms=0.001)
"""


def test_the_fixture_keeps_and_fails(tmp_path: Path) -> None:
    onnx.save(tiny_onnx(), tmp_path / "net.onnx")
    (tmp_path / "test_model.py").write_text(TESTS)
    # by its module: the entry point is there only where foretell was installed after it was added
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:foretell", "-p", "foretell.testing.plugin"]
    ended = subprocess.run(
        [*command, "-p", "no:cacheprovider"], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert "1 failed, 1 passed" in ended.stdout, ended.stdout + ended.stderr
    assert "the budget is 0.001 ms" in ended.stdout
