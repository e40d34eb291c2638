"""Processes: a lock with which many processes prepare work on one device, while only one at a time measures.

This is a readers-writer lock on two files. Preparing (building, warming up, capturing) takes the lock shared; timing
takes it exclusively.

Interrupting all preparations costs more than one short timing. So workers that wait to time go one after the other, as
a convoy. The convoy starts when enough workers wait, when nobody prepares, or when one worker has waited long.
Workers that want to prepare wait until the convoy has passed.

The kernel releases ``flock`` when the holder dies, so a crashed worker never blocks the campaign. A third file has one
byte for each worker, which holds the worker's current state.
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
_CONVOY_SIZE = 6
_MAX_WAIT_S = 1.5
_MAX_YIELD_S = 15.0  # limited, because the state of a worker that died in a convoy stays IN_CONVOY
_POLL_S = 0.002


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
        deadline = time.perf_counter() + _MAX_WAIT_S
        while self._count(WAITING_ALONE) < _CONVOY_SIZE and self._count(HOLDING) and time.perf_counter() < deadline:
            if self._count(IN_CONVOY):
                break
            time.sleep(_POLL_S)
        self._set(IN_CONVOY)

    def _wait_for_convoy(self) -> None:
        self._set(WAITING_SHARED)
        deadline = time.perf_counter() + _MAX_YIELD_S
        while self._count(IN_CONVOY) and time.perf_counter() < deadline:
            time.sleep(_POLL_S)

    def _enter(self, kind: int) -> None:
        started = time.perf_counter()
        if kind == fcntl.LOCK_EX:
            self._join_convoy()
        else:
            self._wait_for_convoy()
        # Whoever waits for the device holds the admission lock. Otherwise new shared holders could overtake an
        # exclusive waiter for ever.
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
        """Use the device beside others; nothing may be timed here."""
        self._enter(fcntl.LOCK_SH)
        try:
            yield
        finally:
            self._leave()

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Use the device alone; only here may anything be timed."""
        self._enter(fcntl.LOCK_EX)
        try:
            yield
        finally:
            self._leave()

    def mark_free(self) -> None:
        """Mark this worker as free, in place of a forked copy that has ended and cannot do so itself."""
        self._set(FREE)

    def is_requested(self) -> bool:
        """Whether other workers wait to use the device alone."""
        return self._count(IN_CONVOY) > 0

    def step_aside(self) -> None:
        """Inside :meth:`shared`: let waiting workers time first. The caller must have no work left on the device."""
        self._leave()
        self._enter(fcntl.LOCK_SH)


def open_state(folder: Path) -> mmap.mmap:
    """The shared memory with one byte for the state of each worker."""
    handle = os.open(folder / "state", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        if os.fstat(handle).st_size < MAX_WORKERS:
            os.ftruncate(handle, MAX_WORKERS)
        return mmap.mmap(handle, MAX_WORKERS)
    finally:
        os.close(handle)
