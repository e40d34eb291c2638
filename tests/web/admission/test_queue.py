"""A bounded line, and equal questions answered once."""

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from foretell.errors import ModelError
from foretell.web.admission.cache import SharedCache
from foretell.web.admission.clients import CLIENT
from foretell.web.admission.metrics import Metrics
from foretell.web.admission.queue import RequestQueue, StatusError, _with_names
from foretell.web.admission.uploads import Upload, Uploads
from foretell.web.questions import read_question
from foretell.web.refusals import BusyError, RefusedError, TooManyError
from foretell.web.settings import Settings


class Pool:
    """Answers with a number and the names of the files, or refuses; where ``gate`` is set, once that is open."""

    wait_s = 17.0

    def __init__(self) -> None:
        self.requests: list[dict[str, Any]] = []
        self.gate: asyncio.Event | None = None
        self.in_line: asyncio.Event | None = None
        self.joined: list[bool] = []

    async def ask(self, message: dict[str, Any], on_start: Callable[[], None], *, joins: bool) -> dict[str, Any]:
        self.joined.append(joins)
        if self.in_line is not None:
            await self.in_line.wait()
        self.requests.append(message)
        on_start()
        if self.gate is not None:
            await self.gate.wait()
        names = [Path(file).name for file in message["files"].values()]
        if message["fields"]["device"] == "none":
            return {"error": f"no such device {' '.join(names)}".strip(), "status": 422}
        return {"text": " ".join([str(len(self.requests)), *names])}


@pytest.fixture
def pool() -> Pool:
    return Pool()


@pytest.fixture
def queue(pool: Pool) -> Any:
    uploads = Uploads(100, lambda: 0.0)
    yield RequestQueue(Settings(workers=1, waiting=1), pool, uploads, Metrics())  # type: ignore[arg-type]
    uploads.close()


def ask(queue: RequestQueue, model: str = "timm:x", brought: dict[str, Upload] | None = None, **values: Any) -> str:
    return asyncio.run(queue.ask("predict", read_question("predict", {"model": model, **values}), brought))


def upload(digest: str, name: str = "a.onnx", ident: str = "1") -> Upload:
    return Upload(ident, Path("/private") / ident / f"{digest}.onnx", name, 3, 0.0)


def test_equal_questions_are_asked_once(queue: RequestQueue, pool: Pool) -> None:
    assert ask(queue) == ask(queue) == "1"
    assert ask(queue, batch_size=2) == "2"
    assert len(pool.requests) == 2


def test_files_are_equal_by_content_and_shown_by_name(queue: RequestQueue, pool: Pool) -> None:
    files = (upload("d1"), upload("d1"), upload("e1"), upload("d1", "b.onnx"))
    answers = [ask(queue, "upload:1", {"model": file}) for file in files]
    assert answers == ["1 a.onnx", "1 a.onnx", "2 a.onnx", "1 b.onnx"]
    assert pool.requests[0]["files"] == {"model": "/private/1/d1.onnx"}
    with pytest.raises(RefusedError, match=r"^no such device c\.onnx$"):
        ask(queue, "upload:1", {"model": upload("d1", "c.onnx")}, device="none")


def test_a_report_is_laid_out_for_its_name(queue: RequestQueue, pool: Pool) -> None:
    for file in (upload("d1"), upload("d1"), upload("d1", "b.onnx")):
        asyncio.run(queue.ask("report", read_question("report", {"model": "upload:1"}), {"model": file}))
    assert [request["names"] for request in pool.requests] == [{"model": "a.onnx"}, {"model": "b.onnx"}]


def test_two_equal_files_keep_their_two_names() -> None:
    files = {"model": upload("d1"), "other": upload("d1", "b.onnx")}
    text = '{"models": [{"model": "d1.onnx"}, {"model": "d1.onnx"}]}'
    assert json.loads(_with_names(text, files)) == {"models": [{"model": "a.onnx"}, {"model": "b.onnx"}]}
    assert _with_names("d1.onnx is no model", files) == "a.onnx is no model"


async def flying(queue: RequestQueue, brought: dict[str, Upload] | None = None, **values: Any) -> Any:
    """A question that has been asked and is not answered yet."""
    question = read_question("predict", {"model": "upload:1" if brought else "timm:x", **values})
    task = asyncio.ensure_future(queue.ask("predict", question, brought))
    await asyncio.sleep(0)  # the request
    await asyncio.sleep(0)  # its flight
    return task


def test_equal_questions_at_the_same_time_are_computed_once(queue: RequestQueue, pool: Pool) -> None:
    async def work() -> list[str]:
        pool.gate = asyncio.Event()
        tasks = [await flying(queue) for _ in range(50)]
        tasks.append(await flying(queue, batch_size=2))
        pool.gate.set()
        return await asyncio.gather(*tasks)

    answers = asyncio.run(work())
    assert len(pool.requests) == 2
    assert len(set(answers[:50])) == 1


def test_whoever_asked_first_may_leave_first(queue: RequestQueue, pool: Pool, tmp_path: Path) -> None:
    path = tmp_path / "1" / "d1.onnx"
    path.parent.mkdir()
    path.touch()

    async def work() -> None:
        pool.gate = asyncio.Event()
        mine = Upload("1", path, "a.onnx", 3, 0.0)
        first = await flying(queue, {"model": mine})
        second = await flying(queue, {"model": upload("d1", "b.onnx")})
        first.cancel()
        mine.delete()  # as the end of its request does
        await asyncio.sleep(0)
        assert path.exists()  # the worker still reads it
        pool.gate.set()
        assert await second == "1 b.onnx"
        await asyncio.sleep(0)
        assert not path.parent.exists()

    asyncio.run(work())


def test_a_question_that_nobody_waits_for_leaves_the_line_but_not_its_worker(queue: RequestQueue, pool: Pool) -> None:
    async def work() -> None:
        pool.in_line = asyncio.Event()
        waiting = await flying(queue)
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)
        await asyncio.sleep(0)
        pool.in_line.set()
        await asyncio.sleep(0)
        assert pool.requests == []  # it had not begun
        pool.gate = asyncio.Event()
        begun = await flying(queue)
        await asyncio.sleep(0)
        begun.cancel()
        await asyncio.gather(begun, return_exceptions=True)
        pool.gate.set()
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert await (await flying(queue)) == "1"  # kept, although nobody had waited for it

    asyncio.run(work())
    assert len(pool.requests) == 1


def test_two_queues_share_a_folder(pool: Pool, tmp_path: Path) -> None:
    uploads = Uploads(100, lambda: 0.0)
    queues = [
        RequestQueue(Settings(), pool, uploads, Metrics(), SharedCache(tmp_path, "1"))  # type: ignore[arg-type]
        for _ in range(2)
    ]
    assert [
        ask(queue, "upload:1", {"model": upload("d1", name)}) for queue, name in zip(queues, "ab", strict=True)
    ] == [
        "1 a",
        "1 b",
    ]
    assert len(pool.requests) == 1
    uploads.close()


def test_errors_are_passed_on_and_not_kept(queue: RequestQueue, pool: Pool) -> None:
    for _ in range(2):
        with pytest.raises(RefusedError, match="no such device"):
            ask(queue, device="none")
    assert len(pool.requests) == 2


def test_a_kept_file_is_found_and_another_is_not(queue: RequestQueue, pool: Pool) -> None:
    queue.uploads.keep(upload("d", ident="77"))
    ask(queue, "upload:77")
    assert pool.requests[0]["files"]["model"].endswith("77/d.onnx")
    with pytest.raises(ModelError, match="again"):
        ask(queue, "upload:78")


def test_the_queue_is_bounded(queue: RequestQueue) -> None:
    CLIENT.set("one")
    with queue.admit():
        CLIENT.set("two")
        with queue.admit():
            CLIENT.set("three")
            with pytest.raises(BusyError) as caught, queue.admit():
                pass
            assert (caught.value.status, caught.value.retry_s) == (503, 17.0)
            assert queue.places.taken == 2
    assert queue.places.taken == 0


def test_one_client_does_not_fill_the_queue(queue: RequestQueue) -> None:
    CLIENT.set("one")
    with queue.admit():
        with pytest.raises(TooManyError, match="1 requests") as caught, queue.admit():
            pass
        assert (caught.value.status, caught.value.retry_s) == (429, 17.0)
        CLIENT.set("two")
        with queue.admit():
            pass


def test_questions_about_models_that_were_answered_before_may_join_others(queue: RequestQueue, pool: Pool) -> None:
    ask(queue, "timm:a")
    ask(queue, "timm:a", batch_size=2)
    with pytest.raises(StatusError):
        ask(queue, "timm:b", device="none")
    ask(queue, "timm:b", device="h200")  # it was refused before: nobody knows what it does
    ask(queue, "timm:b", batch_size=2)
    assert pool.joined == [False, True, False, False, True]
