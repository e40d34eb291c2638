"""Web: the queue of requests. It admits a bounded number, and answers equal questions once."""

import asyncio
import hashlib
import json
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from foretell.web.admission.cache import AnswerCache, SharedCache
from foretell.web.admission.clients import CLIENT, Shares
from foretell.web.admission.metrics import Metrics
from foretell.web.admission.pool import Pool
from foretell.web.admission.uploads import Upload, Uploads
from foretell.web.questions import UPLOAD, AnyQuestion
from foretell.web.refusals import BusyError, RefusedError, TooManyError
from foretell.web.settings import Settings

_NAMED = ("report",)  # answers that are laid out for the name of their model
_JOINING = ("predict", "compare")  # questions that a worker answers together with others
_MOST_KNOWN = 10_000


class StatusError(RefusedError):
    """An error that a worker returned, with its HTTP status."""

    def __init__(self, text: str, status: int) -> None:
        super().__init__(text)
        self.status = status


@dataclass(slots=True, eq=False)
class _Flight:
    """A question on its way to its answer, and how many requests wait for it."""

    task: asyncio.Task[str]
    waiting: int = 0
    started: bool = False


class RequestQueue:
    """One queue that the API and the page share."""

    def __init__(
        self, settings: Settings, pool: Pool, uploads: Uploads, metrics: Metrics, shared: SharedCache | None = None
    ) -> None:
        self._pool = pool
        self._metrics = metrics
        self._cache = AnswerCache()
        self._shared = shared
        self._flights: dict[str, _Flight] = {}
        self._known: OrderedDict[str, None] = OrderedDict()  # models that a worker has answered about
        self.places = Shares(settings.workers + settings.waiting)
        self.uploads = uploads

    @contextmanager
    def admit(self) -> Iterator[None]:
        """Admit a request of the current client, before its body is read; raise BusyError if too many are waiting."""
        client = CLIENT.get()
        if self.places.full:
            raise BusyError(f"{self.places.taken} requests are waiting already. Try again later.", self._pool.wait_s)
        if not self.places.allows(client):
            raise TooManyError(
                f"You have {self.places.of(client)} requests waiting already, and others want answers too. "
                "Try again later.",
                self._pool.wait_s,
            )
        with self.places.hold(client):
            yield

    async def ask(self, kind: str, question: AnyQuestion, uploaded: Mapping[str, Upload] | None = None) -> str:
        """The answer to a question; ``uploaded`` has the files that came with it, by field."""
        files = dict(uploaded or {})
        for name, spec in question.sources().items():
            if name not in files and spec.startswith(UPLOAD):
                files[name] = self.uploads.find(spec)
        fields = question.model_dump()
        names = {name: upload.name for name, upload in files.items()}
        key = _key(kind, fields, files)
        # The cache comes before the pool: repeated questions cost no worker.
        text = self._cache.get(key)
        if text is None:
            message = {"kind": kind, "fields": fields, "names": names if kind in _NAMED else {}}
            try:
                text = await self._share(key, message, files)
            except StatusError as error:
                if files:
                    self._metrics.refuse("content")
                raise StatusError(_with_names(str(error), files), error.status) from error
        else:
            self._metrics.save("memory")
        return _with_names(text, files)

    async def _share(self, key: str, message: dict[str, Any], files: Mapping[str, Upload]) -> str:
        """The answer of the worker; equal questions that come meanwhile wait for the same one."""
        flight = self._flights.get(key)
        if flight is None:
            for upload in files.values():
                upload.hold()  # whoever asked first may leave first
            flight = _Flight(asyncio.get_running_loop().create_task(self._fly(key, message, files)))
            flight.task.add_done_callback(lambda _: self._land(key, flight, files))
            self._flights[key] = flight
        else:
            self._metrics.save("in flight")
        flight.waiting += 1
        try:
            return await asyncio.shield(flight.task)
        finally:
            flight.waiting -= 1
            # Nobody waits any more: the question leaves the line. A worker that has begun may finish, since its answer
            # is kept, and a new worker would cost more.
            if not flight.waiting and not flight.started and self._flights.get(key) is flight:
                del self._flights[key]
                flight.task.cancel()

    async def _fly(self, key: str, message: dict[str, Any], files: Mapping[str, Upload]) -> str:
        text = None if self._shared is None else await asyncio.to_thread(self._shared.get, key)
        if text is None:
            paths = {name: str(upload.path) for name, upload in files.items()}
            named = [name for name in ("model", "other") if name in message["fields"]]
            models = [files[name].path.name if name in files else message["fields"][name] for name in named]
            joins = message["kind"] in _JOINING and all(model in self._known for model in models)
            reply = await self._pool.ask({**message, "files": paths}, lambda: self._start(key), joins=joins)
            if "error" in reply:
                raise StatusError(reply["error"], reply["status"])
            self._remember(models)
            text = str(reply["text"])
            if self._shared is not None:
                await asyncio.to_thread(self._shared.put, key, text)
        else:
            self._metrics.save("folder")
        self._cache.put(key, text)
        return text

    def _remember(self, models: Iterable[str]) -> None:
        """Models that were answered about without harm: questions about them may join others."""
        for model in models:
            self._known[model] = None
            self._known.move_to_end(model)
        while len(self._known) > _MOST_KNOWN:
            self._known.popitem(last=False)

    def _start(self, key: str) -> None:
        if key in self._flights:
            self._flights[key].started = True

    def _land(self, key: str, flight: _Flight, files: Mapping[str, Upload]) -> None:
        if self._flights.get(key) is flight:
            del self._flights[key]
        for upload in files.values():
            upload.delete()
        if not flight.task.cancelled():
            flight.task.exception()  # looked at, so that asyncio does not complain where everyone has left


def _key(kind: str, fields: Mapping[str, object], files: Mapping[str, Upload]) -> str:
    """The key in the cache: by content, whatever a file is called. Reports show the name, so theirs have it."""
    contents = {name: (upload.path.name, upload.name if kind in _NAMED else "") for name, upload in files.items()}
    text = json.dumps([kind, {**fields, **contents}], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()


def _with_names(text: str, files: Mapping[str, Upload]) -> str:
    """An answer with the names that the client gave to its files; workers know them by their content only."""
    if len({upload.path.name for upload in files.values()}) < len({upload.name for upload in files.values()}):
        text = _with_both_names(text, files)  # two equal files with two names
    for upload in files.values():
        text = text.replace(upload.path.name, upload.name)
    return text


def _with_both_names(text: str, files: Mapping[str, Upload]) -> str:
    try:
        answer = json.loads(text)
    except ValueError:  # an error, which is plain text
        return text
    for field, row in zip(("model", "other"), answer["models" if "models" in answer else "jobs"], strict=True):
        row["model"] = files[field].name
    return json.dumps(answer)
