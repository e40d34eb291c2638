"""Processes that append, for tests that run two of them or kill them.

appender.py STORE FIRST LAST [LIMIT]     append those numbers; LIMIT is the largest file that may be written
appender.py STORE --kill TIMES LOG       start a process that appends for ever and kill it, TIMES times
"""

import itertools
import os
import random
import resource
import signal
import sys
import time
from pathlib import Path
from typing import Any

from foretell.datasets.opening import open_store
from foretell.datasets.parquet_files import arrow_table
from foretell.datasets.schema import TABLES
from foretell.errors import DataError

ROWS = 30


def rows(number: int) -> Any:
    names = [f"w{number}-{i}" for i in range(ROWS)]
    return arrow_table(TABLES["measurements"], {"campaign_id": ["c"] * ROWS, "workload_id": names})


def append(where: str, first: int, last: int, limit: int = 0) -> None:
    store = open_store(where)
    for number in range(first, last):
        data = rows(number)
        if limit:
            resource.setrlimit(resource.RLIMIT_FSIZE, (limit, resource.RLIM_INFINITY))
        try:
            added = store.append("measurements", data)
        except DataError as error:
            sys.stdout.write(f"{error}\n")
            sys.exit(2)
        sys.stdout.write(f"{number} {added}\n")


def append_for_ever(where: str, log: Path) -> None:
    """Begin where the log ends; write a line only when an append has returned."""
    handle = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    store = open_store(where)
    for number in itertools.count(log.read_text().count("\n")):
        store.append("measurements", rows(number))
        os.write(handle, f"{number}\n".encode())


def import_once() -> None:
    """Import what appending needs before the children are forked: a start takes longer than what is tested."""
    import duckdb  # noqa: F401
    import pyarrow.compute
    import pyarrow.parquet  # noqa: F401

    rows(0)  # pyarrow imports pandas with its first array


def kill(where: str, times: int, log: Path) -> None:
    import_once()
    chance = random.Random(3)
    log.touch()
    for turn in range(times):
        before, until = log.stat().st_size, time.monotonic() + 120
        process = os.fork()
        if process == 0:
            append_for_ever(where, log)
        # a third at any moment, a third after an append (a busy machine may get no further otherwise), a third while a
        # file is being written
        while turn % 3 == 1 and log.stat().st_size == before and time.monotonic() < until:
            time.sleep(0.002)
        while turn % 3 == 2 and not any(Path(where).glob(".append-*.part")) and time.monotonic() < until:
            time.sleep(0.0002)
        time.sleep(chance.uniform(0.0, 0.08 if turn % 3 < 2 else 0.01))
        os.kill(process, signal.SIGKILL)
        _, status = os.waitpid(process, 0)
        assert status == signal.SIGKILL
        left = len(list(Path(where).glob(".append-*")))
        sys.stdout.write(f"{log.read_text().count(chr(10))} {left}\n")


STEPS = ("write", "close", "fsync", "replace", "replaced")


def die_at(step: str) -> None:
    """Let this process be killed at one step of its next append."""

    def die(*_: object) -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    from foretell.datasets import parquet_files, parquet_store

    replace = os.replace
    if step == "write":
        parquet_files.TableWriter.write = die  # type: ignore[method-assign,assignment]
    elif step == "close":
        parquet_files.TableWriter.finish = die  # type: ignore[method-assign,assignment]
    elif step == "fsync":
        os.fsync = die  # type: ignore[assignment]
    elif step == "replace":
        parquet_store.rename = die
    else:
        os.replace = lambda old, new: (replace(old, new), die())  # type: ignore[assignment]


def die(where: str) -> None:
    import_once()
    for step in STEPS:
        process = os.fork()
        if process == 0:
            store = open_store(Path(where) / step)
            store.append("measurements", rows(0))
            die_at(step)
            store.append("measurements", rows(1))
        assert os.waitpid(process, 0)[1] == signal.SIGKILL, step


if __name__ == "__main__":
    if sys.argv[2] == "--die":
        die(sys.argv[1])
    elif sys.argv[2] == "--kill":
        kill(sys.argv[1], int(sys.argv[3]), Path(sys.argv[4]))
    else:
        append(sys.argv[1], *map(int, sys.argv[2:]))
