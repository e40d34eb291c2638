import time

import pytest

from foretell.profiling.campaign.plan import Measuring
from foretell.profiling.replays.captured import (
    CpuReplays,
    NoDeviceLock,
    chunk_of,
    replays_for,
    time_replays,
    wait_until,
)
from foretell.profiling.steps import Step


def test_the_protocol_holds_unless_one_replay_takes_long():
    measuring = Measuring()
    assert replays_for(0.01, measuring) == 100
    assert replays_for(1.0, measuring) == 40
    assert replays_for(20.0, measuring) == 20
    assert replays_for(50.0, measuring) == 8
    assert replays_for(1000.0, measuring) == 5


def test_the_calmest_try_counts_and_a_noisy_one_is_marked():
    tries = iter([[1.0], [1.0, 3.0], [1.0, 1.2], [1.0, 2.0]])
    record = time_replays(lambda count, lead: next(tries), Measuring())
    assert record["latency_ms"] == pytest.approx(1.1)
    assert record["latency_min_ms"] == 1.0
    assert record["noisy"] is True
    assert record["tries"] == 3
    calm = time_replays(lambda count, lead: [2.0] * count, Measuring())
    assert (calm["noisy"], calm["tries"], calm["repeats"]) == (False, 1, 20)


def test_slow_replays_are_led_in_by_fewer_others():
    calls = []
    time_replays(lambda count, lead: calls.append((count, lead)) or [100.0] * count, Measuring())
    assert calls == [(1, 1), (5, 1)]


def test_chunks_keep_looks_at_the_clock_apart():
    assert [chunk_of(replay_ms) for replay_ms in (0.1, 1.0, 30.0)] == [40, 4, 1]


def test_waiting_ends_when_the_moment_has_come():
    moment = time.monotonic() + 0.02
    wait_until(moment)
    assert time.monotonic() >= moment
    wait_until(moment - 10)


def test_runs_back_to_back_leave_a_moment_between_each_two():
    ran = []
    runtime = CpuReplays(Measuring())
    captured = runtime.capture(Step(lambda: ran.append(time.sleep(0.002)), lambda: None))
    start = time.monotonic() + 0.01
    moments = runtime.replay_from(captured, start, 0.05, 2.0)
    assert len(moments) == len(ran) + 1
    assert moments == sorted(moments)
    assert moments[0] >= start
    assert moments[-1] >= start + 0.05


def test_no_device_lock_never_waits():
    one, other = NoDeviceLock(), NoDeviceLock()
    with one.alone(), other.alone(), other.shared():
        assert not one.is_requested()
