"""``foretell report``: a page, where it is and how large; what is wrong ends in one line."""

import shlex
from html import unescape
from pathlib import Path

import pytest

from command_line import run
from foretell.testing import tiny_onnx


@pytest.fixture
def model(tmp_path: Path) -> str:
    file = tmp_path / "tiny.onnx"
    file.write_bytes(tiny_onnx().SerializeToString())
    return str(file)


def test_the_page_is_written_and_its_size_is_printed(
    model: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "new" / "page.html"
    shown = run(capsys, "report", model, "-d", "l4", "--devices", "l4,t4", "--slo-ms", "5", "-o", str(out))
    page = out.read_text(encoding="utf-8")
    assert f"written: {out}" in shown.replace("\n", "")
    assert "KiB" in shown
    assert "<h1>tiny.onnx</h1>" in page
    assert [file.name for file in out.parent.iterdir()] == ["page.html"]


def test_its_command_makes_it_again(model: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    first, second = tmp_path / "1.html", tmp_path / "2.html"
    arguments = ("-d", "l4", "--devices", "t4,l4", "-b", "4", "--dtype", "fp16", "--rate", "10", "--clouds", "aws")
    run(capsys, "report", model, *arguments, "-o", str(first))
    page = first.read_text(encoding="utf-8")
    command = shlex.split(unescape(page.partition("<pre>")[2].partition("</pre>")[0]))
    assert command[:2] == ["foretell", "report"]
    run(capsys, *command[1:-1], str(second))
    assert second.read_text(encoding="utf-8") == page


def test_missing_parts_are_listed_on_stderr(model: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from foretell.cli.main import main

    with pytest.raises(SystemExit) as ended:
        main(["report", model, "-d", "l4", "--devices", "l4", "-o", str(tmp_path / "page.html")])
    assert ended.value.code == 0
    assert "lacks kernels: No classes of kernels are known for l4" in capsys.readouterr().err


def test_a_language_model_has_a_page_of_its_own_that_its_command_makes_again(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    first, second = tmp_path / "1.html", tmp_path / "2.html"
    arguments = ("--llm", "--input-tokens", "64", "--output-tokens", "8", "--tpot-ms", "30", "--devices", "l40s")
    run(capsys, "report", "meta-llama/Llama-3.1-8B", *arguments, "--weights", "fp8", "-o", str(first))
    page = first.read_text(encoding="utf-8")
    assert "1 × l40s, fp8" in page
    assert "30 ms a token at most" in page
    command = shlex.split(unescape(page.partition("<pre>")[2].partition("</pre>")[0]))
    run(capsys, *command[1:-1], str(second))
    assert second.read_text(encoding="utf-8") == page
    shown = run(capsys, "report", "meta-llama/Llama-3.1-8B", "--llm", "--slo-ms", "5", "-o", str(first), code=2)
    assert "--slo-ms does not go with --llm" in shown


@pytest.mark.parametrize("wrong", [["--market", "flea"], ["--devices", "abacus"], ["--rate", "-1"]])
def test_errors_are_one_line(wrong: list[str], model: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "page.html"
    shown = run(capsys, "report", model, "-d", "l4", "--devices", "l4", *wrong, "-o", str(out), code=2)
    assert len(shown.splitlines()) == 1
    assert not out.exists()


def test_a_page_that_cannot_be_written(model: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "file").write_text("in the way", encoding="utf-8")
    shown = run(capsys, "report", model, "-d", "l4", "--devices", "l4", "-o", str(tmp_path / "file" / "x"), code=2)
    assert "Choose another --out" in shown
