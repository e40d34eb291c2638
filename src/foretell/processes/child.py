"""Processes: what every child process does as it starts: die with its parent, speak in lines, and settle."""

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

from foretell.errors import MeasurementError

Message = dict[str, Any]  # what a parent and its child say to each other: one JSON object a line

POISONED = 3  # the exit code of a process whose device context is broken
_PR_SET_PDEATHSIG = 1
_MAX_ERROR_CHARACTERS = 300


class PoisonedError(MeasurementError):
    """The device context of this process is broken."""


def die_with_parent() -> None:
    """Have the kernel end this process when its parent ends, however that happens."""
    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def take_output() -> Callable[[Message], None]:
    """A function that says messages on standard output; what models print goes to standard error from now on."""
    out = os.fdopen(os.dup(1), "w", buffering=1, encoding="utf-8")
    os.dup2(2, 1)

    def say(message: Message) -> None:
        out.write(json.dumps(message, separators=(",", ":")) + "\n")
        out.flush()

    return say


def work_alone(folder: Path) -> None:
    """One thread, and a folder for whatever libraries and compilers write: many such processes share a machine."""
    for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "TORCHINDUCTOR_COMPILE_THREADS"):
        os.environ[name] = "1"
    tempfile.tempdir = str(folder)
    os.environ["TORCHINDUCTOR_CACHE_DIR"] = str(folder / "inductor")
    logging.disable(logging.WARNING)


def settle() -> None:
    """Never look through what was imported for garbage; from now on garbage is collected when asked for."""
    gc.collect()
    gc.freeze()
    gc.disable()


def short(error: BaseException) -> str:
    """An error in one line.

    >>> short(ValueError("no\\nnumber"))
    'ValueError: no number'
    """
    return f"{type(error).__name__}: {error}".replace("\n", " ")[:_MAX_ERROR_CHARACTERS]
