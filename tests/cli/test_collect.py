"""``foretell collect``."""

import importlib
import json
import logging
import sys
from pathlib import Path

import pytest

from command_line import run
from foretell.cli.collect import clock, describe, progress_of
from foretell.profiling.campaign.progress import Progress
from foretell.workflows.measure.collect import NO_LIMIT_S, Collected

workflow = importlib.import_module("foretell.workflows.measure.collect")


@pytest.fixture
def collected(monkeypatch):
    """The workflow answers at once; what it was asked is kept."""
    calls = {}

    def collect(plan, **options):
        calls.update(options, plan=plan)
        return collected.result

    rows = {"campaigns": 1, "measurements": 1200}
    result = Collected(Path("out"), {"ok": 1200}, rows, {"campaigns": 0, "measurements": 700}, False)
    collected = type("Answer", (), {"calls": calls, "result": result})
    monkeypatch.setattr(workflow, "collect", collect)
    return collected


def test_options_reach_the_workflow_and_the_result_is_printed(collected, capsys):
    options = ["--out", "o", "--store", "s", "--seconds", "9", "--device", "cpu", "--skip", "a", "--skip", "b"]
    options += ["--workers", "3", "1", "--limit", "5", "--ray", "local"]
    shown = run(capsys, "collect", "plan.toml", *options)
    arguments = collected.calls
    assert (arguments["plan"], arguments["out"], arguments["store"]) == (Path("plan.toml"), Path("o"), "s")
    assert (arguments["skip"], arguments["workers"], arguments["ray"]) == ((Path("a"), Path("b")), (3, 1), "local")
    assert (arguments["seconds"], arguments["limit"], arguments["device"]) == (9, 5, "cpu")
    assert "1,200 measurements in out" in shown
    assert "new in the store: 700 measurements" in shown
    assert json.loads(run(capsys, "collect", "plan.toml", "--json"))["rows"]["measurements"] == 1200


def test_ctrl_c_and_a_campaign_without_measurements_have_different_exit_codes(collected, capsys):
    collected.result = Collected(Path("out"), {}, {}, {}, True)
    assert "The same command continues" in run(capsys, "collect", "plan.toml", code=130)
    collected.result = Collected(Path("out"), {"crash": 4}, {"measurements": 4}, {}, False)
    assert run(capsys, "collect", "plan.toml", code=2).count("\n") == 1


def test_a_wrong_plan_is_one_line_and_code_2(capsys, tmp_path):
    assert run(capsys, "collect", str(tmp_path / "absent.toml"), code=2).count("\n") == 1
    assert not (tmp_path / "campaigns").exists()


def test_elsewhere_than_on_a_terminal_the_campaign_s_lines_are_shown(capsys):
    with progress_of("plan") as show:
        show(Progress(1, 0, 2, 0, 0, 1.0, 9.0))
        logging.getLogger("foretell.profiling").info("20 s: 3 measured")
    logging.getLogger("foretell.profiling").info("not shown")
    assert capsys.readouterr().err == "20 s: 3 measured\n"


def test_on_a_terminal_a_bar_and_the_time_left(monkeypatch, capsys):
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
    monkeypatch.setenv("COLUMNS", "150")
    with progress_of("plan") as show:
        show(Progress(10, 0, None, 0, 0, 5.0, 30.0))
        show(Progress(10, 1, 30, 0, 4, 20.0, 500.0))
    assert "10/40 measured · 1 failed · 4 traced · 1 min 0 s left" in capsys.readouterr().err


def test_no_remaining_time_is_shown_without_rate_and_budget():
    assert describe(Progress(0, 0, 26, 0, 0, 5.0, NO_LIMIT_S)) == "0/26 measured"
    assert describe(Progress(2, 0, 4, 0, 0, 5.0, NO_LIMIT_S)) == "2/6 measured · 10 s left"


def test_progress_in_words():
    assert describe(Progress(10, 0, None, 0, 0, 5.0, 30.0)) == "10 measured · 25 s left"
    assert [clock(s) for s in (0.4, 59.6, 3600, 90000)] == ["0 s", "1 min 0 s", "1 h 0 min", "1 days 1 h"]
