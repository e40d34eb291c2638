"""Web: where questions are taken in: a bounded number at a time, equal ones answered once, the others by the pool."""

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

KEPT_BYTES = 32 * MIB


class StatusError(RefusedError):
    """What a worker said instead of an answer."""

    def __init__(self, text: str, status: int) -> None:
        super().__init__(text)
        self.status = status


class KeptAnswers:
    """The latest answers, up to a number of bytes."""

    def __init__(self, max_bytes: int = KEPT_BYTES) -> None:
        self._most_bytes = max_bytes
        self._answers: OrderedDict[str, str] = OrderedDict()
        self._bytes = 0

    def get(self, key: str) -> str | None:
        """An answer that was given before."""
        found = self._answers.get(key)
        if found is not None:
            self._answers.move_to_end(key)
        return found

    def put(self, key: str, text: str) -> None:
        """Keep an answer; the oldest go."""
        self._bytes += len(text) - len(self._answers.pop(key, ""))
        self._answers[key] = text
        while self._bytes > self._most_bytes:
            self._bytes -= len(self._answers.popitem(last=False)[1])


class RequestQueue:
    """One for the API and the page."""

    def __init__(self, settings: Settings, pool: Pool, uploads: Uploads, metrics: Metrics) -> None:
        self._most = settings.workers + settings.waiting
        self._pool = pool
        self._metrics = metrics
        self._kept = KeptAnswers()
        self.uploads = uploads
        self.inside = 0

    @contextmanager
    def place(self) -> Iterator[None]:
        """A place in the line, taken before anything is read."""
        if self.inside >= self._most:
            raise BusyError(f"{self.inside} requests are waiting already; come back in a moment.")
        self.inside += 1
        try:
            yield
        finally:
            self.inside -= 1

    async def ask(self, kind: str, question: Question, brought: Mapping[str, Upload] | None = None) -> str:
        """The answer to a question; ``brought`` are files that came with it, by field."""
        files = dict(brought or {})
        for name, spec in question.sources().items():
            if name not in files and spec.startswith(UPLOAD):
                files[name] = self.uploads.find(spec)
        fields = question.model_dump()
        key = _key(kind, fields, files)
        text = self._kept.get(key)
        if text is None:
            paths = {name: str(upload.path) for name, upload in files.items()}
            reply = await self._pool.ask({"kind": kind, "fields": fields, "files": paths})
            if "error" in reply:
                if files:
                    self._metrics.refuse("content")
                raise StatusError(reply["error"], reply["status"])
            text = str(reply["text"])
            self._kept.put(key, text)
        return text


def _key(kind: str, fields: Mapping[str, object], files: Mapping[str, Upload]) -> str:
    """Equal for equal questions about equal files of one name."""
    named = {name: (upload.digest, upload.path.name) for name, upload in files.items()}
    text = json.dumps([kind, {**fields, **named}], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()
