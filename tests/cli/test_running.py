"""A command line that is run: every error is one line, every end a code."""

import importlib

import pytest

from command_line import run
from foretell.cli.main import main
from foretell.cli.running import MAX_MESSAGE, fail, run_application


def test_debug_shows_a_traceback_wherever_it_stands(model: str, capsys: pytest.CaptureFixture[str]) -> None:
    for argv in (
        ["--debug", "predict", model, "--device", "h2000"],
        ["predict", model, "--device", "h2000", "--debug"],
    ):
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


def test_an_interrupt_is_no_error_of_ours(capsys: pytest.CaptureFixture[str]) -> None:
    def interrupted(**_: object) -> None:
        raise KeyboardInterrupt

    with pytest.raises(SystemExit) as ended:
        run_application(interrupted, "foretell", [])
    assert ended.value.code == 130
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize(("returned", "code"), [(None, 0), (0, 0), (3, 3), ("text", 0)])
def test_a_command_says_its_exit_code(returned: object, code: int) -> None:
    with pytest.raises(SystemExit) as ended:
        run_application(lambda **_: returned, "foretell", [])
    assert ended.value.code == code


def test_a_message_is_one_line_of_bounded_length(capsys: pytest.CaptureFixture[str]) -> None:
    assert fail("two\nlines " + "x" * 5000, debug=False, code=2) == 2
    shown = capsys.readouterr().err
    assert shown.startswith("foretell: two lines xxx")
    assert shown.endswith("…\n")
    assert len(shown) <= MAX_MESSAGE + len("foretell: \n")
