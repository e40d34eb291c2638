"""A copy of this process does the work, and takes everything with it."""

import os
import signal
from contextlib import contextmanager, nullcontext

import pytest

from foretell.processes.child import POISONED, PoisonedError
from foretell.processes.forked import EndedError, run_forked


def _raise(error):
    raise error


def test_the_answer_comes_back_and_nothing_else_does():
    here = []

    def work():
        here.append("touched")
        return {"pid": os.getpid(), "parent": os.getppid()}

    answer = run_forked(work, nullcontext)
    assert answer["pid"] != os.getpid() == answer["parent"]
    assert here == []


@pytest.mark.parametrize(
    ("work", "code"),
    [
        (lambda: os._exit(7), 7),
        (lambda: os.kill(os.getpid(), signal.SIGKILL), -signal.SIGKILL),
        (lambda: _raise(ValueError("wrong")), 1),
        (lambda: _raise(PoisonedError("broken")), POISONED),
        (lambda: {"not", "json"}, 1),
    ],
)
def test_a_child_without_an_answer_leaves_its_exit_code(work, code):
    with pytest.raises(EndedError, match=f"exit code {code}") as caught:
        run_forked(work, nullcontext)
    assert caught.value.code == code


def test_it_ends_only_while_we_are_leaving():
    alive = []

    @contextmanager
    def leaving():
        os.kill(pids[0], 0)
        alive.append(os.path.exists(f"/proc/{pids[0]}"))
        yield
        with pytest.raises(ProcessLookupError):
            os.kill(pids[0], 0)

    pids = []
    reader, writer = os.pipe()

    def work():
        os.write(writer, str(os.getpid()).encode())
        return True

    @contextmanager
    def learn_then_leave():
        pids.append(int(os.read(reader, 20)))
        with leaving():
            yield

    assert run_forked(work, learn_then_leave) is True
    assert alive == [True]
