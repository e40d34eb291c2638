"""Frameworks: which are there, and installing one."""

from pathlib import Path

import pytest

from foretell.errors import UnknownNameError
from foretell.frontends.converted import environments
from foretell.frontends.converted.environments import FRAMEWORKS, Environment
from foretell.workflows.measure import converters as frontends
from foretell.workflows.measure.converters import find_framework, install_framework, list_frameworks, remove_framework


@pytest.fixture(autouse=True)
def nothing_installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FORETELL_FRONTENDS", str(tmp_path))
    monkeypatch.setattr(environments, "available", lambda module: False)


def test_all_are_listed_installed_or_not() -> None:
    assert [(state.name, state.python) for state in list_frameworks()] == [(name, None) for name in FRAMEWORKS]


def test_names_as_people_write_them() -> None:
    assert [find_framework(n) for n in ("TensorFlow", " paddlepaddle", "flax")] == ["keras", "paddle", "jax"]
    with pytest.raises(UnknownNameError, match="Did you mean 'paddle'"):
        find_framework("padle")


def test_installing_gives_the_state_after_it(monkeypatch: pytest.MonkeyPatch) -> None:
    made = Environment(FRAMEWORKS["keras"], Path("/p"), True, "keras 3")
    monkeypatch.setattr(frontends, "install", lambda name, say: made)
    state = install_framework("tf")
    assert (state.name, state.python, state.own_environment, state.versions) == ("keras", "/p", True, "keras 3")
    assert not remove_framework("tf")
