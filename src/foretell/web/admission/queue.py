"""Web: the queue of requests. It admits a bounded number and answers repeated questions from a cache."""

import hashlib
import json
from collections import OrderedDict
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from foretell.units import MIB
from foretell.web.admission.metrics import Metrics
from foretell.web.admission.pool import Pool
from foretell.web.admission.uploads import Upload, Uploads
from foretell.web.questions import UPLOAD, Question
from foretell.web.refusals import BusyError, RefusedError
from foretell.web.settings import Settings

CACHE_BYTES = 32 * MIB


class StatusError(RefusedError):
    """An error that a worker returned, with its HTTP status."""

    def __init__(self, text: str, status: int) -> None:
        super().__init__(text)
        self.status = status


class AnswerCache:
    """The most recently used answers, up to a number of characters."""

    def __init__(self, max_bytes: int = CACHE_BYTES) -> None:
        self._max_bytes = max_bytes
        self._answers: OrderedDict[str, str] = OrderedDict()
        self._bytes = 0

    def get(self, key: str) -> str | None:
        """The cached answer, or None."""
        answer = self._answers.get(key)
        if answer is not None:
            self._answers.move_to_end(key)
        return answer

    def put(self, key: str, text: str) -> None:
        """Store an answer; the least recently used ones are removed."""
        self._bytes += len(text) - len(self._answers.pop(key, ""))
        self._answers[key] = text
        while self._bytes > self._max_bytes:
            self._bytes -= len(self._answers.popitem(last=False)[1])


class RequestQueue:
    """One queue that the API and the page share."""

    def __init__(self, settings: Settings, pool: Pool, uploads: Uploads, metrics: Metrics) -> None:
        self._max_admitted = settings.workers + settings.waiting
        self._pool = pool
        self._metrics = metrics
        self._cache = AnswerCache()
        self.uploads = uploads
        self.admitted = 0

    @contextmanager
    def admit(self) -> Iterator[None]:
        """Admit a request, before its body is read; raise BusyError if too many are waiting."""
        if self.admitted >= self._max_admitted:
            raise BusyError(f"{self.admitted} requests are waiting already. Try again in a few seconds.")
        self.admitted += 1
        try:
            yield
        finally:
            self.admitted -= 1

    async def ask(self, kind: str, question: Question, uploaded: Mapping[str, Upload] | None = None) -> str:
        """The answer to a question; ``uploaded`` has the files that came with it, by field."""
        files = dict(uploaded or {})
        for name, spec in question.sources().items():
            if name not in files and spec.startswith(UPLOAD):
                files[name] = self.uploads.find(spec)
        fields = question.model_dump()
        key = _key(kind, fields, files)
        # The cache comes before the pool: repeated questions cost no worker.
        text = self._cache.get(key)
        if text is None:
            paths = {name: str(upload.path) for name, upload in files.items()}
            reply = await self._pool.ask({"kind": kind, "fields": fields, "files": paths})
            if "error" in reply:
                if files:
                    self._metrics.refuse("content")
                raise StatusError(reply["error"], reply["status"])
            text = str(reply["text"])
            self._cache.put(key, text)
        return text


def _key(kind: str, fields: Mapping[str, object], files: Mapping[str, Upload]) -> str:
    """The key in the cache. The name of a file is part of it, because answers show the name."""
    named = {name: (upload.digest, upload.path.name) for name, upload in files.items()}
    text = json.dumps([kind, {**fields, **named}], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()
