"""Profiling: how far a campaign is, and when it will end."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Progress:
    """``finished`` workloads have a record of this call, ``left`` wait; ``known`` were done before it began."""

    finished: int
    failed: int
    left: int | None
    known: int
    traced: int
    elapsed_s: float
    budget_s: float

    @property
    def total(self) -> int | None:
        """What there was to do in this call, as far as it is known."""
        return None if self.left is None else self.finished + self.left

    @property
    def left_s(self) -> float:
        """Seconds until the end: of the work at its rate so far, or of the time budget, whichever comes first.

        >>> Progress(10, 0, 30, 0, 0, elapsed_s=20.0, budget_s=500.0).left_s
        60.0
        >>> Progress(10, 0, 30, 0, 0, elapsed_s=20.0, budget_s=50.0).left_s
        30.0
        """
        budget_s = max(self.budget_s - self.elapsed_s, 0.0)
        if self.left is None or not self.finished:
            return budget_s
        return min(budget_s, self.left * self.elapsed_s / self.finished)
