"""The ``foretell`` command: what its sub-commands share."""

import os
import re
from pathlib import Path

import pytest

from command_line import run
from foretell.cli.main import main


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


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ("predict MODEL --store nowhere", "no folder nowhere"),
        ("predict MODEL --trace FILE/trace.json", "is not a folder"),
        ("predict MODEL --trace FOLDER", "is a folder"),
        ("advise MODEL --market free", "Unknown market 'free'"),
        ("advise MODEL --clouds nowhere", "no prices for the cloud 'nowhere'"),
        ("advise MODEL --region nowhere", "no prices in the region 'nowhere'"),
        ("advise MODEL --country Nowhere", "Nowhere"),
        ("advise MODEL --pue 0.5", "PUE is 0.5"),
        ("advise MODEL --dtype fp17", "'fp17'"),
        ("advise MODEL --train --country Nowhere", "Nowhere"),
        ("report MODEL -o FILE/report.html", "is not a folder"),
        ("report MODEL --dtype fp17", "'fp17'"),
        ("report MODEL --optimizer adamw", "needs --mode training"),
        ("report MODEL --market free", "Unknown market 'free'"),
        ("roofline MODEL -o picture.gif", r"must end in .svg, .png or .html"),
        ("sweep MODEL -o table.xls", r"must end in .csv or .parquet"),
        ("fuse MODEL --svg FILE/picture.svg", "is not a folder"),
        ("fuse MODEL --runtime nothing", "Unknown runtime 'nothing'"),
        ("fuse MODEL --svg picture.svg --device nothing", "Unknown device 'nothing'"),
        ("share MODEL MODEL --report page.gif", r"must end in .html or .svg"),
    ],
)
def test_what_is_cheap_to_check_is_checked_before_a_model_is_read(tmp_path, capsys, arguments, expected):
    """The model does not exist: whoever reads it first says so, and not what else is wrong."""
    (tmp_path / "file").write_text("")
    places = {"MODEL": str(tmp_path / "absent.onnx"), "FILE": str(tmp_path / "file"), "FOLDER": str(tmp_path)}
    words = []
    for word in arguments.split():
        for name, place in places.items():
            word = word.replace(name, place)
        words.append(word)
    with pytest.raises(SystemExit) as ended:
        main(words)
    message = capsys.readouterr().err
    assert ended.value.code == 2
    assert "absent.onnx" not in message
    assert re.search(expected, message)


@pytest.mark.parametrize(
    ("arguments", "own", "expected"),
    [
        (["advise", "--help"], {}, "1"),
        (["--debug", "predict", "--help"], {}, "1"),
        (["predict", "--help"], {"OPENBLAS_NUM_THREADS": "3"}, "3"),
        (["predict", "--help"], {"OMP_NUM_THREADS": "4"}, None),
        (["train", "--help"], {}, None),  # a fit uses all cores
        (["--help"], {}, None),
    ],
)
def test_predictions_use_one_thread_unless_the_user_says_otherwise(
    arguments: list[str], own: dict[str, str], expected: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS"):
        monkeypatch.setenv(name, "")  # so that it is put back, whatever the command does
        monkeypatch.delenv(name)
    for name, value in own.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(SystemExit):
        main(arguments)
    assert os.environ.get("OPENBLAS_NUM_THREADS") == expected
