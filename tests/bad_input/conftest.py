"""Fixtures of the tests of bad input."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from bad_models import Refuse, files_below
from foretell.cli.main import main


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder to work in; cache and temporary files go below it as well."""
    (tmp_path / "tmp").mkdir()
    monkeypatch.setenv("FORETELL_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("TMPDIR", str(tmp_path / "tmp"))
    monkeypatch.setattr("tempfile.tempdir", None)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def refuse(place: Path, capsys: pytest.CaptureFixture[str]) -> Iterator[Refuse]:
    """Run the command line and check that it refuses; returns its one line."""

    def run(*argv: object) -> str:
        before = files_below(place)
        with pytest.raises(SystemExit) as ended:
            main([str(a) for a in argv])
        shown = capsys.readouterr()
        # on a busy machine a line of progress may come first
        said = "".join(line for line in shown.err.splitlines(True) if not line.startswith("foretell: still "))
        assert ended.value.code == 2, shown.err
        assert shown.out == ""
        assert said.startswith("foretell: ")
        assert said.endswith("\n")
        assert said.count("\n") == 1
        assert "Traceback" not in said
        assert "Internal error" not in said
        assert files_below(place) == before
        return said

    yield run
    assert not (place / "PWNED").exists()
