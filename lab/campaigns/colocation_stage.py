"""Lab: the co-location stage: processes that prepare workloads once, and replay them alone and in groups."""

import logging
import time
from collections.abc import Iterable, Mapping, Sequence

from foretell.errors import MeasurementError
from foretell.processes.child import Message
from foretell.profiling.campaign.plan import Plan
from foretell.profiling.campaign.selection import Chosen
from foretell.profiling.replays.workers import Death, ReplayWorkers
from lab.campaigns.colocation_groups import COPIES, WHOLE, Candidate, Together, intensity, overlap, share_out, window_s

log = logging.getLogger("foretell.profiling")

_PREPARE_SHARE = 0.45
_SILENCE_S = 40.0
_BARRIER_S = 0.05
_GRACE_S = 8.0
_MAX_RESTARTS = 6
PACES = ("clock_mhz", "reference_ms")  # how fast the device was


Place = tuple[str, int]  # a workload and the process that has it ready


class Stage:
    """The processes of one method, and the workloads that they have ready.

    ``percentages`` are the processes' limits under MPS, in turn.
    """

    def __init__(
        self,
        replay_workers: ReplayWorkers,
        chosen: Sequence[Chosen],
        until: float,
        plan: Plan,
        percentages: Sequence[float] = (WHOLE,),
    ) -> None:
        self._replay_workers = replay_workers
        self._until = until
        self._plan = plan
        self._percentages = percentages
        self._ready: dict[Place, Message] = {}
        self._answers: dict[Place, Message] = {}
        self.chosen = {one.workload.id: one for one in chosen}
        self.solo: dict[Place, Message] = {}
        self.paces: dict[Place, Message] = {}

    def _handle(self, index: int, message: Message) -> None:
        place = message["id"], index
        if message["event"] == "replayed":
            self._answers[place] = message
        elif message["event"] == "prepared" and message["status"] == "ok":
            self._ready[place] = message["values"]
        elif message["event"] == "prepared":
            failure = f"{message['status']}: {message['values']['error']}"
            log.info("%s: %s", self.chosen[message["id"]].workload.spec, failure[:160])

    def prepare(self, only: Sequence[Iterable[str]]) -> None:
        """Let every process capture its share of all workloads, or of the members of the groups ``only``."""
        started = time.monotonic()
        names_to_prepare = set[str]().union(*only)
        shares = share_out(len(self.chosen), len(self._replay_workers.alive), self._plan.seed)
        names = list(self.chosen)
        work = [[names[position] for position in share] for share in shares]
        copied = names[: self._plan.colocation.copies]
        for index, share in enumerate(list(map(tuple, work))):
            for name in (name for name in share if name in copied):
                for distance in range(1, min(COPIES, len(work))):
                    work[(index + distance) % len(work)].insert(0, name)
        if names_to_prepare:
            work = [[name for name in share if name in names_to_prepare] for share in work]
        stop_at = started + _PREPARE_SHARE * (self._until - started)
        waiting, restarts = [index for index in self._replay_workers.alive if work[index]], 0
        while waiting:
            for index in waiting:
                workloads = [self.chosen[name].workload.to_json() for name in work[index]]
                self._replay_workers.send(index, {"do": "prepare", "workloads": workloads, "stop_at": stop_at})
            deaths = self._replay_workers.wait(waiting, self._until, _SILENCE_S, self._handle)
            waiting = []
            for index, death in deaths.items():
                self._forget(index, death)
                work[index] = [name for name in work[index] if name != death.workload_id]
                # the workload that killed the process is left out of its next try
                if restarts < _MAX_RESTARTS and time.monotonic() < stop_at:
                    restarts += 1
                    self._replay_workers.restart(index)
                    waiting.append(index)
        log.info("%d workloads ready after %.1f s", len(self._ready), time.monotonic() - started)
        if len({process for _, process in self._ready}) < 2:
            raise MeasurementError("Fewer than two processes got ready.")

    def _forget(self, index: int, death: Death) -> None:
        log.warning("process %d: %s, %s, at %s", index, death.status, death.error, death.workload_id)
        for place in [place for place in self._ready if place[1] == index]:
            del self._ready[place]

    def measure_alone(self) -> None:
        """Replay every workload alone."""
        started = time.monotonic()
        for place in list(self._ready):
            if place[1] not in self._replay_workers.alive or time.monotonic() > self._until:
                continue
            replays = self._alone(place)
            if replays is not None:
                self.solo[place] = {
                    "solo_ms": replays.mean_ms,
                    "solo_median_ms": replays.median_ms,
                    "solo_cv": replays.cv,
                    "solo_reference_ms": self._answers[place].get("reference_ms"),
                }
        log.info("%d workloads alone in %.1f s", len(self.solo), time.monotonic() - started)

    def _alone(self, place: Place) -> Together | None:
        """The try with the least variation."""
        best: Together | None = None
        for _ in range(self._plan.measuring.tries):
            answer = self._call({place[1]: {"do": "replay", "id": place[0]}}, 0.0).get(place)
            replays = overlap({0: answer["moments"]})[0] if answer and answer["status"] == "ok" else None
            if replays is None:
                break
            best = replays if best is None or replays.cv < best.cv else best
            if best.cv < self._plan.measuring.max_cv:
                break
        return best

    @property
    def candidates(self) -> list[Candidate]:
        """The workloads that can be replayed now, in the order of the plan."""
        order = {name: position for position, name in enumerate(self.chosen)}
        return [
            Candidate(
                name,
                process,
                float(self.solo[name, process]["solo_ms"]),
                intensity(self._ready[name, process], self.chosen[name].workload.dtype),
                self._percentages[process % len(self._percentages)],
            )
            for name, process in sorted(self._ready, key=lambda place: (order[place[0]], place[1]))
            if (name, process) in self.solo
        ]

    def has(self, group: Sequence[Candidate]) -> bool:
        """Whether all members are still ready."""
        return all(member.place in self._ready for member in group)

    def _call(self, commands: Mapping[int, Message], seconds: float) -> dict[Place, Message]:
        self._answers.clear()
        for index, command in commands.items():
            self._replay_workers.send(index, command)
        deaths = self._replay_workers.wait(
            commands, time.monotonic() + seconds + 2 * _GRACE_S, _GRACE_S + seconds, self._handle
        )
        for index, death in deaths.items():
            self._forget(index, death)
            if death.workload_id is not None:
                self._answers[death.workload_id, index] = {"status": death.status, "error": death.error, "moments": []}
        return dict(self._answers)

    def send(self, place: Place, command: Message) -> None:
        """Send a command to the process of a workload."""
        self._answers.pop(place, None)
        self._replay_workers.send(place[1], command)

    def next_answers(self, places: Iterable[Place], deadline: float) -> dict[Place, Message]:
        """Wait until one of the ``places`` or more have finished; return what they answered."""
        by_process = {process: (name, process) for name, process in places}
        deaths = self._replay_workers.wait(
            by_process, deadline, max(_GRACE_S, deadline - time.monotonic()), self._handle, until_one=True
        )
        for index, death in deaths.items():
            self._forget(index, death)
            self._answers[by_process[index]] = {"status": death.status, "error": death.error, "moments": []}
        idle = set(self._replay_workers.idle)
        return {
            place: self._answers.get(place, {"status": "crash", "error": "no answer", "moments": []})
            for place in by_process.values()
            if place[1] in deaths or place[1] in idle
        }

    def replay(
        self, group: Sequence[Candidate], usual_s: float
    ) -> tuple[dict[int, Together | None], dict[int, tuple[str, str]]]:
        """Replay all members at the same time; return the replays that count for each, and why members failed."""
        seconds = window_s([candidate.solo_ms for candidate in group], usual_s)
        # a moment ahead, so that all processes have read their command and start together
        start = time.monotonic() + _BARRIER_S
        commands: dict[int, Message] = {}
        for candidate in group:
            command: Message = {"do": "replay", "id": candidate.workload_id, "start": start, "seconds": seconds}
            commands[candidate.process] = command | {"replay_ms": candidate.solo_ms}
        answers = self._call(commands, seconds)
        moments: dict[int, list[float]] = {}
        failed: dict[int, tuple[str, str]] = {}
        for member, candidate in enumerate(group):
            answer = answers.get(candidate.place, {"status": "crash", "error": "no answer", "moments": []})
            self.paces[candidate.place] = {name: answer.get(name) for name in PACES}
            if answer["status"] == "ok" and answer["moments"]:
                moments[member] = answer["moments"]
            else:
                failed[member] = str(answer["status"]), str(answer.get("error"))
        # without one member the others did not run together as planned
        return ({} if failed else overlap(moments)), failed
