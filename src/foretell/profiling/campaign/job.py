"""Profiling: the job of a campaign: its plan, its device, its folder, and its time."""

import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from foretell.profiling.campaign.plan import Plan
from foretell.profiling.campaign.progress import Progress

# the command that starts a worker of a campaign
WORKER = (sys.executable, "-m", "foretell.profiling.campaign.worker")


@dataclass(frozen=True)
class Job:
    """The job, which has the same fields for all kinds of campaigns.

    ``began`` is a ``time.monotonic()``: all processes of a machine share this clock, and nobody can set it. A ``limit``
    of 0 means none. ``again`` workloads that are measured in ``skip`` are measured once more, to see how well they
    repeat. ``errors`` are the errors of a predictor by family. Campaigns that know how much is left call
    ``on_progress``.
    """

    plan: Plan
    out: Path
    device: str
    seconds: float
    began: float
    skip: tuple[Path, ...] = ()
    commit: str = ""
    limit: int = 0
    again: int = 0
    on_progress: Callable[[Progress], None] = lambda _: None
    errors: Mapping[str, float] = field(default_factory=dict)

    @property
    def folders(self) -> tuple[Path, ...]:
        """The folders with finished work: those to skip, and this campaign's own folder."""
        return (*self.skip, self.out)

    @property
    def elapsed_s(self) -> float:
        """How long the campaign has been running."""
        return time.monotonic() - self.began

    def reserve_s(self, share: float, max_s: float) -> float:
        """The seconds reserved for ending the campaign: a ``share`` of its time, at most ``max_s``."""
        return min(max_s, share * self.seconds)

    def before_end(self, reserve_s: float) -> float:
        """The moment at which ``reserve_s`` seconds are left."""
        return self.began + self.seconds - reserve_s

    def enough(self, finished: int) -> bool:
        """Whether ``finished`` measurements reach the requested limit."""
        return 0 < self.limit <= finished
