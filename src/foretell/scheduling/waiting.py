"""Scheduling: the jobs that wait, one line for each profile, so that equal jobs are looked at once.

A line is in the order of arrival, or has its longest job first. The longest first leaves short jobs for the end of a
queue, when GPUs run idle one after the other (R. Graham, Bounds on Multiprocessing Timing Anomalies, 1969): the last
job ends sooner, and short jobs wait longer. In both orders the oldest job starts after it was overtaken often enough.
"""

from collections import deque
from collections.abc import Sequence
from heapq import heapify, heappop, heappush

from foretell.scheduling.jobs import Job, Profile

Head = tuple[float, Profile]
"""The rank of the first job of a line, the least goes first, and its profile."""
_Entry = tuple[float, int, Job]  # rank, number in the order of arrival


class Waiting:
    """Lines of jobs. Later jobs may overtake the oldest one, but only ``patience`` of them."""

    def __init__(self, patience: int, *, longest_first: bool = False) -> None:
        self._lines: dict[int, list[_Entry]] = {}
        self._arrivals: deque[tuple[int, Profile]] = deque()
        self._started: set[int] = set()  # of the arrivals behind the oldest that waits
        self._patience = patience
        self._longest_first = longest_first
        self._arrived = 0
        self._overtaken = 0
        self.jobs = 0
        self.gangs = 0  # those of several GPUs

    def __contains__(self, profile: Profile) -> bool:
        return profile.number in self._lines

    def add(self, job: Job) -> None:
        """Put a job into the line of its profile."""
        rank = -job.steps * job.profile.best_ms if self._longest_first else float(self._arrived)
        heappush(self._lines.setdefault(job.profile.number, []), (rank, self._arrived, job))
        self._arrivals.append((self._arrived, job.profile))
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
        """The head of every line; only the oldest job if it was overtaken often enough."""
        if self._overtaken < self._patience:
            return [(line[0][0], line[0][2].profile) for line in self._lines.values()]
        number, profile = self._arrivals[0]
        return [(float(number), profile)]

    def take(self, profile: Profile) -> Job:
        """Remove and return the first job of a line, or the oldest one once it was overtaken often enough."""
        line, oldest = self._lines[profile.number], self._arrivals[0][0]
        if self._overtaken < self._patience:
            _, number, job = heappop(line)
        else:
            entry = next(entry for entry in line if entry[1] == oldest)
            _, number, job = entry
            line.remove(entry)
            heapify(line)
        self._overtaken = 0 if number == oldest else self._overtaken + 1
        self._started.add(number)
        while self._arrivals and self._arrivals[0][0] in self._started:
            self._started.remove(self._arrivals.popleft()[0])
        self.jobs -= 1
        self.gangs -= profile.gpus > 1
        if not line:
            del self._lines[profile.number]
        return job
