"""``foretell mcp``: options are checked before anything starts."""

from pathlib import Path

import pytest

from command_line import run

pytest.importorskip("mcp")


def test_wrong_options_are_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert "There is no folder" in run(capsys, "mcp", "--folder", str(tmp_path / "absent"), code=2)
    assert "workers" in run(capsys, "mcp", "--workers", "0", code=2)
