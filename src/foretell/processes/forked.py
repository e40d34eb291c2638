"""Processes: work done in a forked copy of this process: whatever it does to the device ends with it.

Kernels on a second stream, by a library's own choice too, slow every later replay of their process. A copy that is
forked before the device is touched starts clean, with everything imported and the model built.
"""

import json
import os
import sys
import traceback
import warnings
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

from foretell.errors import MeasurementError
from foretell.processes.child import POISONED, PoisonedError, die_with_parent


class EndedError(MeasurementError):
    """A copy that ended without an answer; ``code`` is its exit code, negative for a signal."""

    def __init__(self, code: int) -> None:
        super().__init__(f"exit code {code}")
        self.code = code


def run_forked(work: Callable[[], Any], leaving: Callable[[], AbstractContextManager[None]]) -> Any:
    """What ``work`` answers in a copy of this process, as JSON carries it.

    The copy ends while this process is ``leaving``: giving a device context back disturbs those who time.
    """
    answers, answer = os.pipe()
    ends, end = os.pipe()
    sys.stderr.flush()
    parent = os.getpid()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # threads that wait for work do not mind a fork
        child = os.fork()
    if child == 0:
        os.close(answers)
        os.close(end)
        _work(work, parent, answer, ends)
    os.close(answer)
    os.close(ends)
    with os.fdopen(answers, encoding="utf-8") as file:
        text = file.read()
    with leaving():
        os.close(end)
        _, status = os.waitpid(child, 0)
    if not text:
        raise EndedError(os.waitstatus_to_exitcode(status))
    return json.loads(text)


def _work(work: Callable[[], Any], parent: int, answer: int, ends: int) -> None:
    """The copy's life; it never returns, and leaves what it inherited as it is."""
    code = 1
    try:
        die_with_parent()
        if os.getppid() != parent:  # it ended before it was asked to take us along
            os._exit(code)
        text = json.dumps(work())
        with os.fdopen(answer, "w", encoding="utf-8") as file:
            file.write(text)
        os.read(ends, 1)
        code = 0
    except PoisonedError:
        code = POISONED
    except BaseException:  # noqa: BLE001 whatever it is, it must not go on in the copy
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(code)
