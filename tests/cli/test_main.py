"""What all commands share: errors, --debug, the cache."""

import importlib
from pathlib import Path

import pytest

from command_line import run
from foretell.cli.main import main


def test_debug_shows_a_traceback_wherever_it_stands(model: str, capsys: pytest.CaptureFixture[str]) -> None:
    for argv in (["--debug", "predict", model, "--device", "h20"], ["predict", model, "--device", "h20", "--debug"]):
        shown = run(capsys, *argv, code=2)
        assert "Traceback" in shown
        assert shown.splitlines()[-1].startswith("foretell: Unknown device")


@pytest.mark.parametrize("argv", [(), ("data",)])
def test_without_a_command_the_help_is_shown_as_it_is(
    argv: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        main(list(argv))
    shown = capsys.readouterr()
    lines = (shown.out + shown.err).splitlines()
    assert len(lines) > 8
    assert not any(line.startswith("foretell:") for line in lines)


def test_a_bug_of_ours_is_one_line_too(
    model: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object, **__: object) -> None:
        raise ZeroDivisionError("oops")

    workflow = importlib.import_module("foretell.workflows.predict")
    monkeypatch.setattr(workflow, "predict", broken)
    assert run(capsys, "predict", model, code=1).count("\n") == 1
    monkeypatch.setattr(workflow, "predict", lambda *_, **__: (_ for _ in ()).throw(MemoryError))
    assert "memory" in run(capsys, "predict", model, code=2)


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
