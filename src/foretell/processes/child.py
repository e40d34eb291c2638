"""Processes: the set-up of a child process: it ends with its parent and sends messages as lines of JSON."""

import ctypes
import gc
import json
import logging
import os
import signal
import tempfile
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from foretell.errors import ForetellError, MeasurementError

Message = dict[str, Any]  # what a parent and its child exchange: one JSON object on a line

POISONED = 3  # the exit code of a process whose device context is broken
_PR_SET_PDEATHSIG = 1
_MAX_ERROR_CHARACTERS = 300


class PoisonedError(MeasurementError):
    """The device context of this process is broken."""


def die_with_parent() -> None:
    """Have the kernel kill this process when its parent ends, for whatever reason."""
    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def redirect_output() -> Callable[[Message], None]:
    """Return a function that sends messages on standard output; everything else goes to standard error from now on."""
    # Models and libraries print to file descriptor 1. Duplicate it for our messages, then point 1 at standard error.
    out = os.fdopen(os.dup(1), "w", buffering=1, encoding="utf-8")
    os.dup2(2, 1)

    def send(message: Message) -> None:
        out.write(json.dumps(message, separators=(",", ":")) + "\n")
        out.flush()

    return send


def configure_libraries(folder: Path) -> None:
    """Limit libraries to one thread and one folder for temporary files, because many such processes share a machine."""
    for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "TORCHINDUCTOR_COMPILE_THREADS"):
        os.environ[name] = "1"
    tempfile.tempdir = str(folder)
    os.environ["TORCHINDUCTOR_CACHE_DIR"] = str(folder / "inductor")
    logging.disable(logging.WARNING)


def stop_garbage_collection() -> None:
    """Stop automatic garbage collection; from now on only an explicit ``gc.collect()`` runs, and it skips imports."""
    # A collection in the middle of a timing would be measured, and a scan of all imported modules takes long.
    gc.collect()
    gc.freeze()
    gc.disable()


def short(error: BaseException) -> str:
    """An error in one line; ours say enough without the name of their class.

    >>> short(ValueError("no\\nnumber")), short(ForetellError("Too large."))
    ('ValueError: no number', 'Too large.')
    """
    text = str(error) if isinstance(error, ForetellError) else f"{type(error).__name__}: {error}"
    return " ".join(text.split())[:_MAX_ERROR_CHARACTERS]
