"""Processes: how much memory and time reading somebody's file may take."""

from foretell.frozen import dataclass

DEFAULT_MEMORY_GIB = 8.0
DEFAULT_TIMEOUT_S = 300.0


@dataclass(frozen=True)
class Limits:
    """What reading a file may take."""

    memory_gib: float = DEFAULT_MEMORY_GIB
    timeout_s: float = DEFAULT_TIMEOUT_S
