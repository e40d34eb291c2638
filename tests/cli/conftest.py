"""A tiny model for every command."""

from pathlib import Path

import pytest

from foretell.testing import tiny_onnx


@pytest.fixture
def model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("FORETELL_CACHE", str(tmp_path / "cache"))
    path = tmp_path / "tiny.onnx"
    path.write_bytes(tiny_onnx().SerializeToString())
    return str(path)
