import subprocess
import sys
from importlib.metadata import version

import pytest


def _run(module: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-m", module, *arguments], capture_output=True, text=True, check=False)


def test_both_modules_print_the_same_version():
    shown = {module: _run(module, "--version") for module in ("foretell", "foretell.cli")}
    assert {done.returncode for done in shown.values()} == {0}
    assert {done.stdout.split()[1] for done in shown.values()} == {version("foretell")}


def test_the_room_of_commands_is_a_program_that_names_its_commands():
    done = _run("foretell.cli", "--help")
    assert done.returncode == 0, done.stderr
    assert all(command in done.stdout for command in ("predict", "inspect", "devices"))


def test_an_unknown_command_ends_with_an_error_and_no_traceback():
    done = _run("foretell.cli", "predikt")
    assert done.returncode == 2
    assert "predikt" in done.stderr
    assert "Traceback" not in done.stderr


def test_nothing_is_said_after_the_answer(tmp_path):
    """DuckDB looks for leaks when its process ends; foretell leaves none to be found."""
    pytest.importorskip("duckdb")
    pytest.importorskip("pyarrow")
    done = _run("foretell", "data", "query", "SELECT 7", "--store", str(tmp_path))
    assert (done.returncode, done.stderr) == (0, "")
    assert "7" in done.stdout
