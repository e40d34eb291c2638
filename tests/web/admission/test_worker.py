"""What a worker says of questions that have no answer."""

import resource
import subprocess
import sys
from pathlib import Path

import pytest

from foretell.web.admission import worker
from foretell.web.questions import read_question

LIMITED = """
import resource
from foretell.web.admission.worker import limit
limit(512)
try:
    bytearray(1 << 30)
except MemoryError:
    print("refused", resource.getrlimit(resource.RLIMIT_AS)[0] >> 20, resource.getrlimit(resource.RLIMIT_CORE)[0])
"""


def test_errors_are_one_line_with_a_status(monkeypatch: pytest.MonkeyPatch) -> None:
    fields = read_question("predict", {"model": "timm:x", "device": "h2000"}).model_dump()
    reply = worker.reply({"kind": "predict", "fields": fields, "files": {}})
    assert reply["status"] == 422
    assert "h2000" in reply["error"]

    def fail(*_: object) -> str:
        raise RuntimeError("a\nbug")

    monkeypatch.setattr(worker, "answer", fail)
    reply = worker.reply({"kind": "predict", "fields": fields, "files": {}})
    assert reply == {"error": "Internal error (RuntimeError: a bug). Please report it.", "status": 500}


def test_a_process_that_ran_out_of_memory_is_not_used_again(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> str:
        raise MemoryError

    monkeypatch.setattr(worker, "answer", fail)
    reply = worker.reply({"kind": "predict", "fields": {}, "files": {}})
    assert reply["status"] == 422
    assert reply["tainted"] is True


def test_the_kernel_refuses_too_much_memory() -> None:
    before = resource.getrlimit(resource.RLIMIT_AS)
    done = subprocess.run([sys.executable, "-c", LIMITED], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["refused", "512", "0"]
    assert resource.getrlimit(resource.RLIMIT_AS) == before


def test_warming_loads_what_a_question_needs() -> None:
    worker.warm()
    assert "onnx" in sys.modules


CONFINED = """
import os, socket, subprocess, sys
from pathlib import Path
from foretell.web.admission.worker import limit
limit(8192)
victim = Path(sys.argv[1])
Path("mine").write_text("x")
attacks = {
    "write": lambda: victim.write_text("x"), "read": Path("/etc/passwd").read_text, "remove": victim.unlink,
    "run": lambda: subprocess.run(["true"]), "fork": os.fork, "socket": socket.socket,
}
for name, attack in attacks.items():
    try:
        attack()
        print(name)
    except OSError:
        pass
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="the layers are those of Linux")
def test_a_worker_writes_only_its_folder_and_starts_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "uploads" / "empty").mkdir(parents=True)
    monkeypatch.setenv("FORETELL_CACHE", str(tmp_path / "cache"))
    victim = tmp_path / "victim"
    victim.write_text("the server's")
    command = [sys.executable, "-c", CONFINED, str(victim)]
    folder = tmp_path / "uploads" / "empty"
    done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=folder, timeout=300)
    assert done.stdout == ""
    assert victim.read_text() == "the server's"
    assert (folder / "mine").exists()
