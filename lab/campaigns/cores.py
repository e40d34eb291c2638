"""Lab: sets of two cores of a CPU, on which processes share nothing with those of other sets but memory and L3."""

import os
from collections.abc import Iterable
from pathlib import Path

from foretell.errors import MeasurementError

CORES = "cores"  # the method of a group on a CPU
A_SET = 2
_TOPOLOGY = Path("/sys/devices/system/cpu")


def core_sets(count: int, allowed: Iterable[int] | None = None, topology: Path = _TOPOLOGY) -> list[tuple[int, ...]]:
    """Up to ``count`` sets of two cores that this process may use (``taskset`` chooses them).

    Of threads that share a core only the first is taken: two processes there would wait for each other's arithmetic.
    """
    if count < 1:
        raise MeasurementError("Groups on cores of a CPU need core_sets = 1 or more in [colocation].")
    cores = dict[str, int]()
    for core in sorted(os.sched_getaffinity(0) if allowed is None else allowed):
        file = topology / f"cpu{core}" / "topology" / "thread_siblings_list"
        # a virtual machine may not say: then each is taken for a core
        cores.setdefault(file.read_text(encoding="ascii").strip() if file.exists() else str(core), core)
    found = list(cores.values())
    if len(found) < A_SET:
        raise MeasurementError(f"This process may use {len(found)} core; a group shares {A_SET}.")
    return [tuple(found[start : start + A_SET]) for start in range(0, len(found) - 1, A_SET)][:count]
