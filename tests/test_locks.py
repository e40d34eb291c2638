"""What is installed for tests has the versions of constraints.txt and hashes that pip checks."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PINS = set((ROOT / "constraints.txt").read_text(encoding="utf-8").split())


def _locked(name: str) -> dict[str, list[str]]:
    text = (ROOT / "locks" / f"{name}.txt").read_text(encoding="utf-8").replace(" \\\n", "")
    lines = [line.split() for line in text.splitlines() if not line.startswith("#")]
    return {line[0]: line[1:] for line in lines}


def test_the_lock_has_all_pinned_versions_and_no_others() -> None:
    assert set(_locked("test")) == PINS
    assert set(_locked("core")) < PINS
    # a special build (2.13.0+cpu) is one of a pinned version, and its files are accepted by the other lock, too
    for package, hashes in _locked("builds").items():
        pinned = package.partition("+")[0]
        assert set(hashes) <= set(_locked("test")[pinned])


@pytest.mark.parametrize("name", ["builds", "core", "test"])
def test_every_package_has_hashes(name: str) -> None:
    for package, hashes in _locked(name).items():
        assert hashes, package
        assert all(re.fullmatch(r"--hash=sha256:[0-9a-f]{64}", value) for value in hashes), package


def test_what_builds_foretell_is_locked() -> None:
    assert any(package.startswith("setuptools==") for package in _locked("core"))


def test_the_environment_checks_hashes_and_installs_nothing_else() -> None:
    script = (ROOT / "scripts" / "environment").read_text(encoding="utf-8")
    installs = [line for line in script.splitlines() if "pip install" in line]
    assert len(installs) == 2
    assert all("--no-deps" in line and "--no-build-isolation" in line for line in installs)
    assert ["--require-hashes" in line for line in installs] == [True, False]
    assert installs[1].endswith("-e .")
