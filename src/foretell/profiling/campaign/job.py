"""Profiling: what a campaign is sent out to do: which plan, on what, into which folder, and until when."""

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
    """All kinds of campaigns take the same one. ``began`` is a ``time.time()``; a ``limit`` of 0 is none.

    ``again`` workloads of what ``skip`` has are measured once more: that tells how well they repeat. ``errors`` are a
    predictor's, by family. ``on_progress`` is called by campaigns that know how much is left.
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
        """Where finished work is found: what is skipped, and this campaign's own folder."""
        return (*self.skip, self.out)

    @property
    def elapsed_s(self) -> float:
        """How long the campaign has been running."""
        return time.time() - self.began

    def reserve_s(self, share: float, most_s: float) -> float:
        """What is kept of the time to end in: a ``share`` of it, at most ``most_s``."""
        return min(most_s, share * self.seconds)

    def before_end(self, reserve_s: float) -> float:
        """The moment at which ``reserve_s`` are left."""
        return self.began + self.seconds - reserve_s

    def enough(self, finished: int) -> bool:
        """Whether ``finished`` measurements are what was asked for."""
        return 0 < self.limit <= finished
