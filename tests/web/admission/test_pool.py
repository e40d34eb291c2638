"""Workers that take too long, too much or die are replaced, and the next question is answered."""

import asyncio
import os
import signal
import sys
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from foretell.processes.parent import resident_bytes
from foretell.units import bytes_from_mib
from foretell.web.admission import pool as pools
from foretell.web.admission.pool import Pool, resident_mib
from foretell.web.refusals import BusyError, RefusedError, TooSlowError, WorkerKilledError
from foretell.web.settings import Settings

# a worker that does as it is told
CHILD = """
import json, os, sys, time
print('{"event": "ready"}', flush=True)
for line in sys.stdin:
    asked = json.loads(line)
    if "together" in asked:
        if any(each["kind"] == "alone" for each in asked["together"]): os.kill(os.getpid(), 9)
        if any(each["kind"] == "large" for each in asked["together"]):
            eaten = bytearray(b"x" * (300 << 20)); time.sleep(600)
        said = [{"text": f"{each['kind']} of {len(asked['together'])}"} for each in asked["together"]]
        print(json.dumps({"replies": said, "read": 0}), flush=True)
        continue
    if asked["kind"] == "sleep": time.sleep(600)
    if asked["kind"] == "die": os._exit(3)
    if asked["kind"] == "killed": os.kill(os.getpid(), 9)
    if asked["kind"] == "killed once":
        if not os.path.exists("was killed"): open("was killed", "x").close(); os.kill(os.getpid(), 9)
    if asked["kind"] == "wait":
        while not os.path.exists("go on"): time.sleep(0.01)
    if asked["kind"] == "eat": eaten = bytearray(b"x" * (300 << 20)); time.sleep(600)
    print(json.dumps({"text": f"{os.getpid()} {os.getcwd()}", "tainted": asked["kind"] == "taint"}), flush=True)
"""


def with_pool(work: Callable[[Pool], Awaitable[Any]], folder: Path, **settings: Any) -> Any:
    async def main() -> Any:
        pool = Pool(Settings(workers=1, **settings), folder, (sys.executable, "-I", "-S", "-c", CHILD))
        pool.start()
        try:
            return await work(pool)
        finally:
            await pool.stop()

    return asyncio.run(asyncio.wait_for(main(), 300))


async def echo(pool: Pool, kind: str = "echo") -> tuple[int, str]:
    pid, folder = (await pool.ask({"kind": kind}))["text"].split()
    return int(pid), folder


def test_one_process_answers_again_and_again_from_an_empty_folder(tmp_path: Path) -> None:
    async def work(pool: Pool) -> None:
        first, folder = await echo(pool)
        assert (await echo(pool))[0] == first
        assert Path(folder) == tmp_path
        assert pool.pids == [first]
        assert pool.restarts == 0

    with_pool(work, tmp_path)


@pytest.mark.parametrize(
    ("kind", "error", "settings", "restarts"),
    [("sleep", TooSlowError, {"timeout_s": 3.0}, 1), ("die", RefusedError, {}, 2),
     ("killed", WorkerKilledError, {}, 2), ("eat", RefusedError, {"memory_mib": 100.0}, 1)],
)  # fmt: skip
def test_a_worker_that_misbehaves_is_replaced(
    tmp_path: Path, kind: str, error: type[Exception], settings: dict[str, float], restarts: int
) -> None:
    async def work(pool: Pool) -> None:
        first, _ = await echo(pool)
        with pytest.raises(error):
            await pool.ask({"kind": kind})
        assert pool.busy == 0
        second, _ = await echo(pool)
        assert second != first
        assert resident_bytes(first) == 0
        assert pool.restarts == restarts

    with_pool(work, tmp_path, **settings)


def test_a_question_whose_worker_was_killed_is_asked_once_more(tmp_path: Path) -> None:
    async def work(pool: Pool) -> None:
        first, _ = await echo(pool)
        second, _ = await echo(pool, "killed once")
        assert second != first
        assert (pool.deaths, pool.restarts) == (1, 1)

    with_pool(work, tmp_path)


def test_the_second_try_is_on_a_fresh_worker(tmp_path: Path) -> None:
    async def work() -> None:
        pool = Pool(Settings(workers=2), tmp_path, (sys.executable, "-I", "-S", "-c", CHILD))
        pool.start()
        while len(pool._idle) < 2:
            await asyncio.sleep(0.01)
        old = pool.pids
        assert (await echo(pool, "killed once"))[0] not in old
        await pool.stop()

    asyncio.run(asyncio.wait_for(work(), 300))


def test_a_worker_that_died_while_it_was_idle_costs_no_try(tmp_path: Path) -> None:
    async def work(pool: Pool) -> None:
        await echo(pool)
        (pid,) = pool.pids
        os.kill(pid, signal.SIGKILL)
        with suppress(ChildProcessError):  # asyncio may have noticed already
            os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
        assert (await echo(pool))[0] != pid
        assert pool.deaths == 0

    with_pool(work, tmp_path)


@pytest.mark.parametrize(
    ("kind", "status", "words"),
    [("killed", 503, "SIGKILL.*nothing about the model"), ("die", 422, "exited with code 3")],
)
def test_a_dead_worker_is_named_and_not_the_model(tmp_path: Path, kind: str, status: int, words: str) -> None:
    async def work(pool: Pool) -> None:
        with pytest.raises(RefusedError, match=f"The worker process .*{words}") as caught:
            await pool.ask({"kind": kind})
        assert caught.value.status == status
        assert "damaged" not in str(caught.value)
        assert pool.deaths == 2

    with_pool(work, tmp_path)


def test_questions_are_answered_in_the_order_of_their_arrival(tmp_path: Path) -> None:
    async def work(pool: Pool) -> None:
        order: list[int] = []

        async def ask(number: int, kind: str) -> None:
            await pool.ask({"kind": kind}, lambda: order.append(number))

        asking = [asyncio.ensure_future(ask(0, "wait"))]
        while not order:
            await asyncio.sleep(0.01)
        asking += [asyncio.ensure_future(ask(number, "echo")) for number in range(1, 6)]
        await asyncio.sleep(0)
        assert pool.waiting == 5
        asking.pop(3).cancel()  # who leaves the line holds nobody up
        (tmp_path / "go on").touch()
        await asyncio.gather(*asking)
        assert order == [0, 1, 2, 4, 5]

    with_pool(work, tmp_path)


def test_a_question_whose_worker_died_keeps_its_place(tmp_path: Path) -> None:
    async def work(pool: Pool) -> None:
        order: list[str] = []

        async def ask(kind: str) -> None:
            await pool.ask({"kind": kind})
            order.append(kind)

        await asyncio.gather(ask("killed once"), ask("echo"), ask("taint"))
        assert order == ["killed once", "echo", "taint"]

    with_pool(work, tmp_path)


def test_the_expected_wait_grows_with_the_line(tmp_path: Path) -> None:
    async def work(pool: Pool) -> None:
        await echo(pool)
        assert pool.wait_s == 0
        waiting = asyncio.ensure_future(pool.ask({"kind": "wait"}))
        while not pool.busy:
            await asyncio.sleep(0.01)
        one = pool.wait_s
        others = [asyncio.ensure_future(pool.ask({"kind": "echo"})) for _ in range(3)]
        await asyncio.sleep(0)
        assert pool.wait_s == pytest.approx(4 * one)
        (tmp_path / "go on").touch()
        await asyncio.gather(waiting, *others)

    with_pool(work, tmp_path)


def test_a_worker_that_cannot_be_started_is_tried_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    spawn, failures = Pool._spawn, [OSError(24, "Too many open files")]
    monkeypatch.setattr(pools, "_RETRY_PAUSE_S", 0.01)

    async def fail_once(pool: Pool) -> Any:
        if failures:
            raise failures.pop()
        return await spawn(pool)

    monkeypatch.setattr(Pool, "_spawn", fail_once)
    with_pool(echo, tmp_path)
    assert not failures


def test_it_is_replaced_where_it_says_so_and_after_many_models(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pools, "MOST_READ", 2)

    async def work(pool: Pool) -> None:
        pids = [(await echo(pool, kind))[0] for kind in ("taint", "echo", "echo", "echo")]
        assert len(set(pids)) == 3
        assert pids[1] == pids[2]

    with_pool(work, tmp_path)


def test_a_request_that_waits_too_long_is_refused_as_busy(tmp_path: Path) -> None:
    async def work() -> None:
        with pytest.raises(BusyError):
            await Pool(Settings(timeout_s=0.01), tmp_path).ask({"kind": "echo"})  # not started: nobody is free

    asyncio.run(work())


def test_nothing_is_left_when_it_stops(tmp_path: Path) -> None:
    async def work(pool: Pool) -> list[int]:
        await echo(pool)
        return pool.pids

    for pid in with_pool(work, tmp_path):
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)


def test_memory_of_a_process() -> None:
    assert bytes_from_mib(5) < resident_bytes(os.getpid()) < bytes_from_mib(100_000)
    assert resident_mib([os.getpid(), 2**22 + 1]) > 5


async def ask_at_once(pool: Pool, folder: Path, kinds: list[str], joins: bool = True) -> list[str]:
    """The first question holds the only worker until all others wait in the line."""
    first = asyncio.ensure_future(pool.ask({"kind": "wait"}))
    others = [asyncio.ensure_future(pool.ask({"kind": kind}, joins=joins)) for kind in kinds]
    while pool.waiting < len(kinds) or not pool.busy:
        await asyncio.sleep(0.01)
    (folder / "go on").touch()
    await first
    return [(await other)["text"] for other in others]


def test_questions_that_wait_and_may_join_are_answered_together(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pools, "MOST_TOGETHER", 3)

    async def work(pool: Pool) -> None:
        assert await ask_at_once(pool, tmp_path, ["a", "b", "c", "d", "e"]) == [
            "a of 3", "b of 3", "c of 3", "d of 2", "e of 2",
        ]  # fmt: skip
        assert (pool.joined, pool.restarts, pool.busy, pool.waiting) == (3, 0, 0, 0)

    with_pool(work, tmp_path)


def test_those_that_may_not_join_are_asked_alone(tmp_path: Path) -> None:
    async def work(pool: Pool) -> None:
        answers = await ask_at_once(pool, tmp_path, ["a", "b"], joins=False)
        assert all(answer.endswith(str(tmp_path)) for answer in answers)

    with_pool(work, tmp_path)


@pytest.mark.parametrize(("kind", "deaths"), [("alone", 1), ("large", 0)])
def test_what_goes_wrong_with_a_group_is_asked_again_each_alone(tmp_path: Path, kind: str, deaths: int) -> None:
    async def work(pool: Pool) -> None:
        answers = await ask_at_once(pool, tmp_path, ["a", kind, "c"])
        assert all(answer.endswith(str(tmp_path)) for answer in answers)
        assert (pool.deaths, pool.restarts, pool.busy) == (deaths, 1, 0)

    with_pool(work, tmp_path, memory_mib=100.0)


def test_one_that_leaves_a_group_does_not_take_the_others_with_it(tmp_path: Path) -> None:
    async def work(pool: Pool) -> None:
        first = asyncio.ensure_future(pool.ask({"kind": "wait"}))
        others = [asyncio.ensure_future(pool.ask({"kind": kind}, joins=True)) for kind in ("a", "b", "c")]
        while pool.waiting < 3 or not pool.busy:
            await asyncio.sleep(0.01)
        others[1].cancel()
        (tmp_path / "go on").touch()
        await first
        assert [(await other)["text"] for other in (others[0], others[2])] == ["a of 2", "c of 2"]

    with_pool(work, tmp_path)
