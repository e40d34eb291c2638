"""The ``foretell`` command: what its sub-commands share."""

from pathlib import Path

import pytest

from command_line import run


def test_the_second_call_reads_the_cache(
    model: str, capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = run(capsys, "inspect", model, "--json")
    assert len(list((tmp_path / "cache").rglob("*.fgraph"))) == 1
    monkeypatch.setattr(
        "foretell.frontends.onnx.file.graph_from_proto", lambda *_: pytest.fail("it was converted again")
    )
    assert run(capsys, "inspect", model, "--json") == first


def test_no_cache_keeps_nothing(model: str, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    run(capsys, "inspect", model, "--no-cache")
    assert not (tmp_path / "cache").exists()
