"""Lab: mixes: a queue of jobs on one GPU, a few at a time, measured from the first start to the last end.

A job is a number of replays of a captured step. Jobs start in the order of the queue: when one ends, the next starts in
its place, not before it arrives. So the rates change whenever a job comes or goes, which is what a simulation of a
schedule must get right. Every job of a mix belongs to another process.
"""

import hashlib
import json
import random
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

from foretell.processes.child import Message
from foretell.units import ms
from lab.campaigns.colocation_groups import Candidate
from lab.campaigns.colocation_stage import Place, Stage

TABLE = "mixes"
_ALONE_S = (0.2, 1.2)  # how long a job of a mix runs alone
_BEGIN_S = 0.05
_MOST_SLOWDOWN = 12.0  # a job that takes longer hangs
_GRACE_S = 8.0


@dataclass(frozen=True)
class MixJob:
    """A workload in its process, the number of its replays, and when it may start."""

    candidate: Candidate
    steps: int
    arrival_s: float

    @property
    def alone_s(self) -> float:
        """How long it takes alone."""
        return self.steps * self.candidate.solo_ms / ms(1.0)


@dataclass(frozen=True)
class Mix:
    """Jobs in the order of their arrival, of which at most ``max_jobs`` run together."""

    jobs: tuple[MixJob, ...]
    max_jobs: int

    def name(self, method: str) -> str:
        """The identity of the mix."""
        jobs = [(job.candidate.name, job.steps, job.arrival_s) for job in self.jobs]
        return hashlib.sha256(json.dumps([method, self.max_jobs, jobs]).encode()).hexdigest()[:16]


def draw_mixes(candidates: Sequence[Candidate], count: int, sizes: Sequence[int], seed: object) -> list[Mix]:
    """``count`` mixes; every second one has all its jobs at once, the others arrive one by one.

    ``sizes`` are the numbers of jobs that run together, in turn.
    """
    rng = random.Random(f"{seed}/mixes")
    by_process: dict[int, list[Candidate]] = {}
    for candidate in candidates:
        by_process.setdefault(candidate.process, []).append(candidate)
    mixes = []
    for number in range(count):
        max_jobs = sizes[number // 2 % len(sizes)]
        processes = rng.sample(sorted(by_process), k=len(by_process))
        jobs, arrival_s = list[MixJob](), 0.0
        for process in processes:
            candidate = rng.choice(by_process[process])
            low, high = _ALONE_S
            alone_s = low * (high / low) ** rng.random()
            job = MixJob(candidate, max(1, round(ms(alone_s) / candidate.solo_ms)), arrival_s)
            jobs.append(job)
            if number % 2:
                # a gap as long as it takes, in the mean, until a place is free
                arrival_s = round(arrival_s + rng.expovariate(max_jobs / job.alone_s), 3)
        mixes.append(Mix(tuple(jobs), max_jobs))
    return mixes


def run_mix(stage: Stage, mix: Mix) -> tuple[dict[int, tuple[float, float]], dict[int, tuple[str, str]]]:
    """Run a mix; return when each job started and ended, in seconds since the mix began, and why jobs failed."""
    waiting, running = deque(range(len(mix.jobs))), dict[Place, int]()
    spans, failed = dict[int, tuple[float, float]](), dict[int, tuple[str, str]]()
    begin = time.monotonic() + _BEGIN_S
    limit_s = _GRACE_S + _MOST_SLOWDOWN * sum(job.alone_s for job in mix.jobs) + mix.jobs[-1].arrival_s
    while waiting or running:
        while waiting and len(running) < mix.max_jobs:
            number = waiting.popleft()
            job = mix.jobs[number]
            start = max(begin + job.arrival_s, time.monotonic())
            command: Message = {"do": "replay", "id": job.candidate.workload_id, "start": start, "seconds": limit_s}
            stage.send(job.candidate.place, command | {"replay_ms": job.candidate.solo_ms, "repeats": job.steps})
            running[job.candidate.place] = number
        for place, answer in stage.next_answers(running, begin + limit_s).items():
            number = running.pop(place)
            moments = answer["moments"]
            if answer["status"] == "ok" and len(moments) == mix.jobs[number].steps + 1:
                spans[number] = moments[0] - begin, moments[-1] - begin
            else:
                failed[number] = str(answer["status"]), str(answer.get("error") or "it did not make all its steps")
    return spans, failed
