"""Profiling: the progress of a campaign, and when it will end."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Progress:
    """Numbers of workloads: ``finished`` in this run, ``left`` to measure, ``known`` from earlier runs."""

    finished: int
    failed: int
    left: int | None
    known: int
    traced: int
    elapsed_s: float
    budget_s: float

    @property
    def total(self) -> int | None:
        """All workloads of this run, as far as they are known."""
        return None if self.left is None else self.finished + self.left

    @property
    def left_s(self) -> float:
        """Seconds until the work is finished at the present rate, or until the time is over, whichever is sooner.

        >>> Progress(10, 0, 30, 0, 0, elapsed_s=20.0, budget_s=500.0).left_s
        60.0
        >>> Progress(10, 0, 30, 0, 0, elapsed_s=20.0, budget_s=50.0).left_s
        30.0
        """
        budget_s = max(self.budget_s - self.elapsed_s, 0.0)
        if self.left is None or not self.finished:
            return budget_s
        return min(budget_s, self.left * self.elapsed_s / self.finished)
