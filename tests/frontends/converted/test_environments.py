"""Environments of frameworks: made whole or not at all, found by a note, never made unasked."""

import json
import sys
from pathlib import Path

import pytest

from converted_models import fake_environment
from foretell.errors import MissingExtraError
from foretell.frontends.converted import environments
from foretell.frontends.converted.environments import FRAMEWORKS, find_environment, install, need_environment, remove


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("FORETELL_FRONTENDS", str(tmp_path / "made"))
    monkeypatch.setattr(environments, "available", lambda module: False)
    return tmp_path / "made"


def test_by_default_they_lie_in_the_cache(monkeypatch: pytest.MonkeyPatch, own_cache: Path) -> None:
    monkeypatch.delenv("FORETELL_FRONTENDS")
    assert environments.environments_folder() == own_cache / "frontends"


def test_only_a_finished_environment_is_used(folder: Path) -> None:
    assert find_environment("paddle") is None
    fake_environment(folder, "", "paddle")
    environment = find_environment("paddle")
    assert environment is not None
    assert environment.own
    assert environment.command == (str(folder / "paddle/bin/python"), "-I")
    (folder / "paddle/foretell.json").write_text("cut sho")
    assert find_environment("paddle") is None


def test_the_running_python_is_used_if_it_has_all_packages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(environments, "available", lambda module: module != "tf2onnx")
    assert find_environment("keras") is None
    monkeypatch.setattr(environments, "available", lambda module: True)
    environment = find_environment("keras")
    assert environment is not None
    assert not environment.own
    assert environment.command == (sys.executable, "-P")


def test_the_running_python_may_come_first(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake_environment(folder, "", "jax")
    assert find_environment("jax", running_first=True) == find_environment("jax")
    monkeypatch.setattr(environments, "available", lambda module: True)
    first = find_environment("jax", running_first=True)
    assert first is not None
    assert not first.own
    assert find_environment("jax") != first


@pytest.mark.parametrize("name", FRAMEWORKS)
def test_a_missing_environment_says_how_to_install_it(name: str) -> None:
    with pytest.raises(MissingExtraError, match=f"Reading these needs .*: foretell frontends install {name}$"):
        need_environment(name, "Reading these")
    assert all("==" in package for package in FRAMEWORKS[name].packages)


def test_installing_makes_an_environment_and_names_its_versions(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[tuple[str, ...]] = []

    def pretend(command: tuple[str, ...], variables: dict[str, str], name: str) -> None:
        calls.append(command)
        assert "PIP_CONSTRAINT" not in variables
        if "venv" in command:
            python = Path(command[-1]) / "bin" / "python"
            python.parent.mkdir(parents=True)
            python.write_text("")

    monkeypatch.setenv("PIP_CONSTRAINT", "/elsewhere")
    monkeypatch.setattr(environments, "_run", pretend)
    lines: list[str] = []
    made = install("paddle", lines.append)
    assert made == find_environment("paddle")
    assert "paddlepaddle 3.3.1" in made.versions
    assert set(FRAMEWORKS["paddle"].packages) <= set(calls[1])
    assert len(lines) == 2
    assert install("paddle") == made  # once more, over the old one
    assert sorted(p.name for p in folder.iterdir()) == ["paddle"]
    assert remove("paddle")
    assert not remove("paddle")
    assert find_environment("paddle") is None


def test_a_failed_installation_keeps_the_old_environment(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake_environment(folder, "", "jax")
    before = find_environment("jax")
    broken = (sys.executable, "-c", "print('ERROR: no matching distribution'); raise SystemExit(1)")
    real = environments._run
    monkeypatch.setattr(environments, "_run", lambda command, variables, name: real(broken, variables, name))
    with pytest.raises(MissingExtraError, match="Installing jax failed: ERROR: no matching distribution"):
        install("jax")
    assert sorted(p.name for p in folder.iterdir()) == ["jax"]
    assert find_environment("jax") == before


def test_a_folder_that_cannot_be_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("FORETELL_FRONTENDS", str(tmp_path / "file" / "below"))
    with pytest.raises(MissingExtraError, match="Cannot make"):
        install("jax")


def test_versions_of_the_running_python_are_read_without_importing() -> None:
    assert environments._versions(("pytest", "no_such_thing")) == f"pytest {pytest.__version__}, no_such_thing"
    assert json.dumps(environments.user_base())
