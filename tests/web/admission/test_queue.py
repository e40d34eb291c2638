"""A bounded line, and equal questions answered once."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from foretell.errors import ModelError
from foretell.web.admission.metrics import Metrics
from foretell.web.admission.queue import AnswerCache, RequestQueue
from foretell.web.admission.uploads import Upload, Uploads
from foretell.web.questions import read_question
from foretell.web.refusals import BusyError, RefusedError
from foretell.web.settings import Settings


class Pool:
    """Answers with a number, or refuses."""

    def __init__(self) -> None:
        self.requests: list[dict[str, Any]] = []

    async def ask(self, message: dict[str, Any]) -> dict[str, Any]:
        self.requests.append(message)
        if message["fields"]["device"] == "none":
            return {"error": "no such device", "status": 422}
        return {"text": str(len(self.requests))}


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
    return Upload(ident, Path("/private") / ident / name, digest, 3, 0.0)


def test_equal_questions_are_asked_once(queue: RequestQueue, pool: Pool) -> None:
    assert ask(queue) == ask(queue) == "1"
    assert ask(queue, batch_size=2) == "2"
    assert len(pool.requests) == 2


def test_files_are_equal_by_content_and_name(queue: RequestQueue, pool: Pool) -> None:
    for file in (upload("d"), upload("d"), upload("e"), upload("d", "b.onnx")):
        ask(queue, "upload:1", {"model": file})
    assert len(pool.requests) == 3
    assert pool.requests[0]["files"] == {"model": "/private/1/a.onnx"}


def test_errors_are_passed_on_and_not_kept(queue: RequestQueue, pool: Pool) -> None:
    for _ in range(2):
        with pytest.raises(RefusedError, match="no such device"):
            ask(queue, device="none")
    assert len(pool.requests) == 2


def test_a_kept_file_is_found_and_another_is_not(queue: RequestQueue, pool: Pool) -> None:
    queue.uploads.keep(upload("d", ident="77"))
    ask(queue, "upload:77")
    assert pool.requests[0]["files"]["model"].endswith("77/a.onnx")
    with pytest.raises(ModelError, match="again"):
        ask(queue, "upload:78")


def test_the_queue_is_bounded(queue: RequestQueue) -> None:
    with queue.admit(), queue.admit():
        with pytest.raises(BusyError), queue.admit():
            pass
        assert queue.admitted == 2
    assert queue.admitted == 0


def test_answers_are_kept_up_to_a_size() -> None:
    cache = AnswerCache(10)
    cache.put("a", "x" * 6)
    cache.put("b", "y" * 4)
    assert cache.get("a") == "x" * 6
    cache.put("c", "z" * 3)  # b is the one that nobody asked for
    assert [cache.get(key) is not None for key in "abc"] == [True, False, True]
    cache.put("d", "w" * 11)
    assert cache.get("d") is None
