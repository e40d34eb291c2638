"""A child that is taken over reads, writes, starts and reaches nothing; too much memory or time is one line."""

import ast
import os
import signal
import subprocess
import sys
import tempfile
import time
from functools import cache
from pathlib import Path

import pytest

from foretell.errors import ModelError
from foretell.processes import cage
from foretell.processes.cage import TooMuchError, run_caged
from foretell.processes.limits import Limits

FAKES = Path(__file__).parents[1] / "fakes"
pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="the layers are those of Linux")


@pytest.fixture(autouse=True)
def rooms(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Temporary files of the test's own, and a child that finds the attacker."""
    (tmp_path / "temporary").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "temporary"))
    monkeypatch.setenv("PYTHONPATH", str(FAKES))
    return tmp_path


@pytest.fixture
def victim(tmp_path: Path) -> Path:
    path = tmp_path / "victim"
    path.write_text("the user's", encoding="utf-8")
    return path


USUAL = Limits()


def attack(name: str, argument: object = "", limits: Limits = USUAL, readable: tuple[Path, ...] = ()) -> str:
    task = {"attack": name, "argument": str(argument)}
    return run_caged("caged_attacker", task, "net.pt", limits, readable).decode()


# what the system offers, asked without our code: a layer that it has must hold
OFFERED = {
    "landlock": "libc.syscall(444, None, 0, 1) > 0",
    "seccomp": "platform.machine() in ('x86_64', 'aarch64') and 'Seccomp_filters' in open('/proc/self/status').read()",
    "namespace": "libc.unshare(0x40000000) == 0 or libc.unshare(0x50000000) == 0",
}


@cache
def is_offered(layer: str) -> bool:
    code = f"import ctypes, platform; libc = ctypes.CDLL(None); print({OFFERED[layer]})"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return done.stdout == "True\n"


@cache
def layers() -> list[str]:
    """The layers that a child has; it finds the attacker only within a test."""
    return attack("layers").split()


def need(layer: str) -> None:
    if not is_offered(layer):
        pytest.skip(f"this system has no {layer}")
    assert layer in layers()


def test_an_answer_comes_back_and_nothing_stays(rooms: Path) -> None:
    assert attack("nothing") == "unharmed"
    assert not list((rooms / "temporary").iterdir())


def test_the_resource_limits_hold() -> None:
    held = ast.literal_eval(attack("limits", limits=Limits(3.0, 100.0)))
    assert held["RLIMIT_FSIZE"] == held["RLIMIT_CORE"] == (0, 0)
    assert held["RLIMIT_DATA"] == (3 << 30, 3 << 30)
    assert 100 <= held["RLIMIT_CPU"][1] <= 110  # -1 would be no limit
    assert 0 < held["RLIMIT_NOFILE"][1] <= 256
    assert {"limits", "privileges"} <= set(attack("layers").split())


def test_only_named_files_are_read(victim: Path) -> None:
    need("landlock")
    for name in ("read", "read in a thread"):
        assert attack(name, victim) == "refused: PermissionError"
        assert attack(name, victim, readable=(victim,)) == "the user's"
    for path in ("/etc/passwd", f"/proc/{os.getpid()}/environ"):
        assert attack("read", path) == "refused: PermissionError"
    for path in ("/", "/home", "/etc", "/proc", "."):
        assert attack("list", path).startswith("refused")


@pytest.mark.parametrize(
    "name",
    ["write", "truncate", "open to truncate", "remove", "rename", "make a folder", "link", "change the mode"],
)
def test_nothing_is_written(name: str, victim: Path) -> None:
    before = victim.stat()
    assert attack(name, victim, readable=(victim.parent,)) == "refused: PermissionError"
    assert victim.read_text(encoding="utf-8") == "the user's"
    assert victim.stat().st_mode == before.st_mode
    assert {path.name for path in victim.parent.iterdir()} == {"victim", "temporary"}


@pytest.mark.parametrize("name", ["fork", "run", "spawn", "exec"])
def test_nothing_is_started(name: str) -> None:
    need("seccomp")
    assert attack(name, "/bin/true").startswith("refused")


def test_nobody_is_reached() -> None:
    need("seccomp")
    assert attack("socket") == attack("signal") == "refused: PermissionError"


def test_there_is_no_network() -> None:
    need("namespace")
    lines = attack("network").splitlines()[2:]  # two lines of headings
    assert [line.split(":")[0].strip() for line in lines] == ["lo"]


def test_nothing_is_inherited(victim: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CLOUD_SECRET", "hunter2")
    assert "hunter2" not in attack("environment")
    with victim.open("rb") as file:
        os.set_inheritable(file.fileno(), True)
        copy = os.dup2(file.fileno(), 150)
        try:
            found = {int(number) for number in attack("descriptors").split()}
        finally:
            os.close(copy)
    assert {0, 1, 2} <= found
    assert len(found) == 4  # and the one for the answer
    folder = Path(attack("folder"))
    assert folder.name.startswith("foretell-cage-")
    assert not folder.exists()


def test_too_much_time_is_one_line(rooms: Path) -> None:
    with pytest.raises(TooMuchError, match=r"^Reading net\.pt took longer than 3 s .*--timeout 6"):
        attack("forever", limits=Limits(timeout_s=3))
    assert not list((rooms / "temporary").iterdir())


def test_a_child_that_closes_its_pipes_and_goes_on_has_no_more_time() -> None:
    code = "import os, time; os.closerange(0, 3); time.sleep(200)"
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.read() == b""  # until it has closed them
        with pytest.raises(TooMuchError, match=r"^Reading net\.pt took longer than 0\.1 s"):
            cage._watch(process, "net.pt", Limits(timeout_s=0.1))
        process.kill()


def test_too_much_memory_is_one_line() -> None:
    assert attack("allocate", 1 << 20) == str(1 << 20)
    with pytest.raises(TooMuchError, match=r"^net\.pt needed more than 1 GiB .*--memory-limit 2 "):
        attack("allocate", 3 << 30, limits=Limits(memory_gib=1))


def test_the_parent_watches_the_memory_itself() -> None:
    with pytest.raises(TooMuchError, match=r"more than 0\.2 GiB"):
        attack("share", 300 << 20, limits=Limits(memory_gib=0.2))


def test_an_answer_has_a_largest_size(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cage, "MAX_ANSWER_BYTES", 1000)
    assert len(attack("long", 1000)) == 1000
    with pytest.raises(ModelError, match="more than 1000 bytes"):
        attack("long", 5_000_000)


def test_a_child_that_dies_is_one_line() -> None:
    with pytest.raises(ModelError, match="was killed by SIGABRT: the file is damaged"):
        attack("die")
    with pytest.raises(ModelError, match="exited with code 5"):
        attack("exit", 5)


def test_what_a_library_prints_is_not_the_answer() -> None:
    assert attack("print", "noise") == "None"


def test_a_child_ends_with_its_parent() -> None:
    need("seccomp")
    code = "from foretell.processes.cage import run_caged; from foretell.processes.limits import Limits\n"
    code += "run_caged('caged_attacker', {'attack': 'forever', 'argument': ''}, 'net.pt', Limits())"
    path = os.pathsep.join((str(FAKES), str(Path(cage.__file__).parents[2])))
    with subprocess.Popen([sys.executable, "-c", code], env={**os.environ, "PYTHONPATH": path}) as parent:
        child = _until(lambda: _children(parent.pid))[0]
        # once it is sealed, it has also asked to end with its parent
        _until(lambda: "Seccomp:\t2" in Path(f"/proc/{child}/status").read_text(encoding="utf-8"))
        parent.send_signal(signal.SIGKILL)
        parent.wait()
    _until(lambda: not _runs(child))


def _children(pid: int) -> list[int]:
    return [int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text(encoding="ascii").split()]


def _runs(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text(encoding="ascii").rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def _until(happens, budget_s: float = 120):  # type: ignore[no-untyped-def]
    """What a function returns once it is true; only a hung process exceeds the budget."""
    deadline = time.monotonic() + budget_s
    while not (found := happens()):
        assert time.monotonic() < deadline
        time.sleep(0.02)
    return found
