"""Processes: work in a forked copy of this process, so that its effects on the device end with the copy.

Once kernels have run on a second stream of a process, every later replay in this process is slower; libraries use
second streams on their own. A copy that is forked before the first use of the device starts in a clean state, with all
imports done and the model built.
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
    """A copy ended without an answer; ``code`` is its exit code, negative for a signal."""

    def __init__(self, code: int) -> None:
        super().__init__(f"exit code {code}")
        self.code = code


def run_forked(work: Callable[[], Any], while_exiting: Callable[[], AbstractContextManager[None]]) -> Any:
    """Call ``work`` in a copy of this process and return its result, which must be JSON.

    The copy exits inside the context ``while_exiting``, because releasing a device context disturbs other workers'
    timings.
    """
    # Two pipes: the copy writes its answer into the first, then blocks on the second until we close it.
    answer_reader, answer_writer = os.pipe()
    end_reader, end_writer = os.pipe()
    sys.stderr.flush()
    parent = os.getpid()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # a fork is safe here: the other threads only wait for work
        child = os.fork()
    if child == 0:
        os.close(answer_reader)
        os.close(end_writer)
        _work(work, parent, answer_writer, end_reader)
    os.close(answer_writer)
    os.close(end_reader)
    with os.fdopen(answer_reader, encoding="utf-8") as file:
        text = file.read()
    with while_exiting():
        os.close(end_writer)
        _, status = os.waitpid(child, 0)
    if not text:
        raise EndedError(os.waitstatus_to_exitcode(status))
    return json.loads(text)


def _work(work: Callable[[], Any], parent: int, answer_writer: int, end_reader: int) -> None:
    """Run in the copy. It never returns: ``os._exit`` skips the clean-up of what the copy inherited."""
    code = 1
    try:
        die_with_parent()
        if os.getppid() != parent:  # the parent ended before die_with_parent took effect
            os._exit(code)
        text = json.dumps(work())
        with os.fdopen(answer_writer, "w", encoding="utf-8") as file:
            file.write(text)
        os.read(end_reader, 1)
        code = 0
    except PoisonedError:
        code = POISONED
    except BaseException:  # noqa: BLE001 no exception may return into the parent's code
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(code)
