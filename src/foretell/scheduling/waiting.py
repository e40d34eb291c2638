"""Scheduling: the jobs that wait, one line for each profile, so that equal jobs are looked at once."""

from collections import deque
from collections.abc import Sequence

from foretell.scheduling.jobs import Job, Profile

Head = tuple[int, Profile]
"""The number of the oldest job of a line, in the order of arrival, and its profile."""


class Waiting:
    """Lines of jobs. Later jobs may overtake the oldest one, but only ``patience`` of them."""

    def __init__(self, patience: int) -> None:
        self._lines: dict[int, deque[tuple[int, Job]]] = {}
        self._patience = patience
        self._arrived = 0
        self._overtaken = 0
        self.jobs = 0
        self.gangs = 0  # those of several GPUs

    def __contains__(self, profile: Profile) -> bool:
        return profile.number in self._lines

    def add(self, job: Job) -> None:
        """Put a job at the end of the line of its profile."""
        self._lines.setdefault(job.profile.number, deque()).append((self._arrived, job))
        self._arrived += 1
        self.jobs += 1
        self.gangs += job.profile.gpus > 1

    @property
    def is_patient(self) -> bool:
        """Whether the oldest job may still be overtaken."""
        return not self.jobs or self._overtaken < self._patience

    def overtake(self) -> None:
        """A job that just arrived has started before all that wait."""
        self._overtaken += bool(self.jobs)

    def heads(self) -> Sequence[Head]:
        """The head of every line; only the oldest one if it was overtaken often enough."""
        found = [(line[0][0], line[0][1].profile) for line in self._lines.values()]
        return found if self._overtaken < self._patience else [min(found, key=_number)]

    def take(self, profile: Profile) -> Job:
        """Remove and return the oldest job of a profile."""
        line = self._lines[profile.number]
        oldest = min(entries[0][0] for entries in self._lines.values())
        number, job = line.popleft()
        self._overtaken = 0 if number == oldest else self._overtaken + 1
        self.jobs -= 1
        self.gangs -= profile.gpus > 1
        if not line:
            del self._lines[profile.number]
        return job


def _number(head: Head) -> int:
    return head[0]
