"""``net.py:build`` in the child process."""

import sys
from pathlib import Path

import pytest

from foretell.frontends.converted.converter_worker import Refusal
from foretell.frontends.converted.python_building import build


@pytest.fixture(autouse=True)
def clean(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setattr(sys, "modules", dict(sys.modules))


def made(folder: Path, text: str, function: str = "build", trust: bool = True) -> tuple[object, object]:
    (folder / "net.py").write_text(text)
    return build({"path": str(folder / "net.py"), "function": function, "trust": trust}, Refusal)


def test_a_model_alone_or_with_examples(tmp_path: Path) -> None:
    (tmp_path / "neighbour.py").write_text("value = 7")
    assert made(tmp_path, "from neighbour import value\ndef build(): return value") == (7, None)
    assert made(tmp_path, "def build(): return 'model', (1, 2)") == ("model", (1, 2))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("def build(): raise SystemExit(3)", "raised SystemExit: 3"),
        ("def build(): return undefined", "raised NameError"),
        ("import nothing_of_this_name", "raised ModuleNotFoundError"),
        ("def other(): pass", "has no function 'build'"),
        ("def build(:", "raised SyntaxError"),
    ],
)
def test_errors_of_the_file_are_reported(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(Refusal, match=message):
        made(tmp_path, text)


def test_nothing_runs_without_trust(tmp_path: Path) -> None:
    with pytest.raises(Refusal, match="--trust") as raised:
        made(tmp_path, f"open({str(tmp_path / 'ran')!r}, 'w')", trust=False)
    assert raised.value.kind == "untrusted"
    assert not (tmp_path / "ran").exists()
