"""What a worker says of questions that have no answer."""

import resource
import subprocess
import sys

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
