"""Workers that take too long, too much or die are replaced, and the next question is answered."""

import asyncio
import os
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from foretell.processes.parent import resident_bytes
from foretell.units import bytes_from_mib
from foretell.web.admission import pool as pools
from foretell.web.admission.pool import Pool, resident_mib
from foretell.web.refusals import BusyError, RefusedError, TooSlowError
from foretell.web.settings import Settings

# a worker that does as it is told
CHILD = """
import json, os, sys, time
print('{"event": "ready"}', flush=True)
for line in sys.stdin:
    asked = json.loads(line)
    if asked["kind"] == "sleep": time.sleep(600)
    if asked["kind"] == "die": os._exit(3)
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
    ("kind", "error", "settings"),
    [("sleep", TooSlowError, {"timeout_s": 3.0}), ("die", RefusedError, {}),
     ("eat", RefusedError, {"memory_mib": 100.0})],
)  # fmt: skip
def test_a_worker_that_misbehaves_is_replaced(
    tmp_path: Path, kind: str, error: type[Exception], settings: dict[str, float]
) -> None:
    async def work(pool: Pool) -> None:
        first, _ = await echo(pool)
        with pytest.raises(error):
            await pool.ask({"kind": kind})
        assert pool.busy == 0
        second, _ = await echo(pool)
        assert second != first
        assert resident_bytes(first) == 0
        assert pool.restarts == 1

    with_pool(work, tmp_path, **settings)


def test_it_is_replaced_where_it_says_so_and_after_many_answers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pools, "MOST_ANSWERS", 2)

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
