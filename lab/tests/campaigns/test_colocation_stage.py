import time

import pytest

from foretell.errors import MeasurementError
from foretell.profiling.campaign.plan import Plan
from foretell.profiling.campaign.selection import Chosen
from foretell.profiling.replays.workers import Death
from foretell.profiling.workload import Workload
from lab.campaigns.colocation_stage import Stage
from small.measured import PART

CHOSEN = [Chosen(Workload(f"synthetic:m{number}", 1 + number, (4,), "fp32"), "tiny") for number in range(6)]
NAMES = [selected.workload.id for selected in CHOSEN]


class FakeReplayWorkers:
    """Processes without processes: what they are sent decides what is heard."""

    def __init__(self, count=3, dies=()):
        self.alive = list(range(count))
        self.sent = {}
        self.log = []
        self.dies = set(dies)
        self.restarted = []

    def send(self, index, message):
        self.sent[index] = message
        self.log.append((index, message))

    def restart(self, index):
        self.restarted.append(index)
        self.alive.append(index)

    def wait(self, indices, until, silence_s, hear):
        deaths = {}
        for index in indices:
            message = self.sent.pop(index)
            names = [Workload(**{**fields, "input_shape": (4,)}).id for fields in message.get("workloads", ())]
            for name in names or [message["id"]]:
                if name in self.dies:
                    deaths[index] = Death("crash", "exit code 9", name)
                    self.alive.remove(index)
                    break
                if names:
                    values = {"macs": 1.0, "outputs": 1.0, "parameters": 1.0}
                    hear(index, {"event": "prepared", "id": name, "status": "ok", "values": values})
                else:
                    start = message.get("start") or 100.0
                    moments = [start + 0.001 * (1 + index) * number for number in range(200)]
                    hear(index, {"event": "replayed", "id": name, "status": "ok", "moments": moments, "clock_mhz": 5})
        return deaths


def stage_of(replay_workers):
    return Stage(replay_workers, CHOSEN, time.monotonic() + 60, Plan(1, (PART,)))


def test_every_process_prepares_its_share_and_is_measured_alone():
    stage = stage_of(FakeReplayWorkers())
    stage.prepare([])
    stage.measure_alone()
    assert [member.workload_id for member in stage.candidates] == NAMES
    assert sorted(member.process for member in stage.candidates) == [0, 0, 1, 1, 2, 2]
    for candidate in stage.candidates:
        assert candidate.solo_ms == pytest.approx(1.0 + candidate.process)


def test_only_the_members_of_requested_groups_are_prepared():
    stage = stage_of(FakeReplayWorkers())
    stage.prepare([frozenset(NAMES[:2]), frozenset(NAMES[1:3])])
    stage.measure_alone()
    assert {member.workload_id for member in stage.candidates} == {*NAMES[:3]}


def test_a_process_that_dies_while_it_prepares_begins_again_without_what_it_died_of():
    replay_workers = FakeReplayWorkers(dies=[NAMES[0]])
    stage = stage_of(replay_workers)
    stage.prepare([])
    stage.measure_alone()
    assert len(replay_workers.restarted) == 1
    assert {member.workload_id for member in stage.candidates} == {*NAMES[1:]}


def test_members_are_called_up_for_the_same_moment():
    replay_workers = FakeReplayWorkers()
    stage = stage_of(replay_workers)
    stage.prepare([])
    stage.measure_alone()
    group = sorted(
        {member.process: member for member in stage.candidates}.values(), key=lambda candidate: candidate.process
    )
    replay_workers.log.clear()
    timings, failed = stage.replay(group, 0.3)
    assert failed == {}
    assert [timing.mean_ms for timing in timings.values()] == pytest.approx([1.0, 2.0, 3.0])
    assert len({message["start"] for _, message in replay_workers.log}) == 1
    assert [message["replay_ms"] for _, message in replay_workers.log] == pytest.approx([1.0, 2.0, 3.0])
    assert {pace["clock_mhz"] for pace in stage.paces.values()} == {5}


def test_a_member_that_dies_takes_its_workloads_along_and_the_group_has_no_times():
    replay_workers = FakeReplayWorkers()
    stage = stage_of(replay_workers)
    stage.prepare([])
    stage.measure_alone()
    first, second = sorted(
        {member.process: member for member in stage.candidates}.values(), key=lambda candidate: candidate.process
    )[:2]
    assert stage.has([first, second])
    replay_workers.dies = {first.workload_id}
    assert stage.replay([first, second], 0.3) == ({}, {0: ("crash", "exit code 9")})
    assert not stage.has([first, second])
    assert first.process not in {member.process for member in stage.candidates}


def test_one_process_is_no_group():
    with pytest.raises(MeasurementError, match="Fewer than two"):
        stage_of(FakeReplayWorkers(count=1)).prepare([])
