"""Processes: many processes prepare on one device, one at a time measures.

A readers-writer lock on two files. Preparing (building, warming up, capturing) holds it shared; timing holds it alone.
Stopping everybody's preparations costs more than a short timing, so those who wait to time go through together: a
convoy sets off when it is long enough, when nobody prepares, or when someone has waited long. Newcomers who want to
prepare let it pass. ``flock`` is released by the kernel when its holder dies, so that a crashed worker never blocks the
campaign. A third file has one byte per worker: what each is doing now.
"""

import fcntl
import mmap
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

FREE, WAITING_ALONE, WAITING_SHARED, HOLDING, IN_CONVOY = range(5)
MAX_WORKERS = 64
_CONVOY = 6
_PATIENCE_S = 1.5
_COURTESY_S = 15.0  # a worker that died in a convoy would be let pass for ever
_LOOK_S = 0.002


class DeviceLock:
    """One worker's view of the lock."""

    def __init__(self, folder: Path, worker: int) -> None:
        self._folder = folder
        self._worker = worker
        self._admission = -1
        self._device = -1
        self._state: mmap.mmap | None = None
        self.waited_s = 0.0

    def open(self) -> None:
        """Open the lock's files; they are created where absent."""
        flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC
        self._admission = os.open(self._folder / "gate", flags, 0o600)
        self._device = os.open(self._folder / "device", flags, 0o600)
        self._state = open_state(self._folder)
        self._set(FREE)

    def _count(self, state: int) -> int:
        return 0 if self._state is None else self._state[:].count(state)

    def _set(self, state: int) -> None:
        if self._state is not None:
            self._state[self._worker] = state

    def _join_convoy(self) -> None:
        self._set(WAITING_ALONE)
        late = time.perf_counter() + _PATIENCE_S
        while self._count(WAITING_ALONE) < _CONVOY and self._count(HOLDING) and time.perf_counter() < late:
            if self._count(IN_CONVOY):
                break
            time.sleep(_LOOK_S)
        self._set(IN_CONVOY)

    def _let_pass(self) -> None:
        self._set(WAITING_SHARED)
        late = time.perf_counter() + _COURTESY_S
        while self._count(IN_CONVOY) and time.perf_counter() < late:
            time.sleep(_LOOK_S)

    def _enter(self, kind: int) -> None:
        started = time.perf_counter()
        if kind == fcntl.LOCK_EX:
            self._join_convoy()
        else:
            self._let_pass()
        fcntl.flock(self._admission, fcntl.LOCK_EX)
        try:
            fcntl.flock(self._device, kind)
        finally:
            fcntl.flock(self._admission, fcntl.LOCK_UN)
        self._set(HOLDING)
        self.waited_s += time.perf_counter() - started

    def _leave(self) -> None:
        fcntl.flock(self._device, fcntl.LOCK_UN)
        self._set(FREE)

    @contextmanager
    def shared(self) -> Iterator[None]:
        """Use the device beside others: nothing here may be timed."""
        self._enter(fcntl.LOCK_SH)
        try:
            yield
        finally:
            self._leave()

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Have the device alone: the only place where anything is timed."""
        self._enter(fcntl.LOCK_EX)
        try:
            yield
        finally:
            self._leave()

    def rest(self) -> None:
        """Say that this worker does nothing: a copy of it that has ended can no longer say so."""
        self._set(FREE)

    def wanted(self) -> bool:
        """Whether others are about to have the device alone."""
        return self._count(IN_CONVOY) > 0

    def step_aside(self) -> None:
        """Inside :meth:`shared`: let those pass who wait to time. The caller has finished its device work."""
        self._leave()
        self._enter(fcntl.LOCK_SH)


def open_state(folder: Path) -> mmap.mmap:
    """The bytes that say what each worker is doing."""
    handle = os.open(folder / "state", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        if os.fstat(handle).st_size < MAX_WORKERS:
            os.ftruncate(handle, MAX_WORKERS)
        return mmap.mmap(handle, MAX_WORKERS)
    finally:
        os.close(handle)
