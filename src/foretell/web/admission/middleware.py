"""Web: what every request passes: the token, a limit on its bytes, a limit on how long it takes to come, a count."""

import asyncio
import hashlib
import hmac
import json
import secrets
import time
from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from http.cookies import CookieError, SimpleCookie
from typing import Any
from urllib.parse import parse_qsl, urlencode

from foretell.errors import ForetellError
from foretell.units import MIB, bytes_from_mib
from foretell.web.admission.metrics import Metrics
from foretell.web.admission.uploads import too_large
from foretell.web.refusals import BusyError, SlowClientError, TooLargeError, status_of
from foretell.web.settings import Settings

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

COOKIE = "foretell"
OPEN = ("/healthz",)  # whoever watches the server needs no token
RETRY_S = 5
LARGEST_FORM = MIB  # what a form has beside its file
LARGEST_ASIDE = MIB  # what is sent to the page, or as JSON
MAX_LINE = 1000
_HELD_UPLOADS = 8  # of the largest size, on their way at the same time
_UPLOADING = ("/api/",)

HEADERS = {
    # nothing is fetched from elsewhere, whatever a library of the page would like
    "content-security-policy": "default-src 'self' 'unsafe-inline' 'unsafe-eval' data: blob:; object-src 'none'; "
    "frame-ancestors 'self'; base-uri 'self'; form-action 'self'",
    "referrer-policy": "no-referrer",
    "x-content-type-options": "nosniff",
}


class AdmissionMiddleware:
    """Wraps the application."""

    def __init__(self, app: App, settings: Settings, metrics: Metrics) -> None:
        self._app = app
        self._settings = settings
        self._metrics = metrics
        self._key = secrets.token_bytes(32)  # cookies end with the server
        self._held = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Let a request pass, or answer it here."""
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
        elif scope["type"] == "http":
            await self._pass(scope, receive, send)
        else:
            await send({"type": "websocket.close", "code": 1008})

    async def _pass(self, scope: Scope, receive: Receive, send: Send) -> None:
        started, answered = time.perf_counter(), _Answer(send, self._settings.timeout_s)
        body = _Body(receive, self, scope)
        try:
            refusal = self._check_token(scope)
            if refusal is not None:
                await answered.give(*refusal)
                return
            body.check_length()
            await self._app(scope, body.receive, answered.send)
        except ForetellError as error:
            if answered.status is not None:  # it has begun to answer: nothing to add
                raise
            await answered.problem(error)
        finally:
            self._held -= body.received
            self._metrics.count(scope["path"], answered.status or 0, time.perf_counter() - started)

    def hold(self, size: int) -> None:
        """Count bytes that are on their way; refuse where all requests together bring too many."""
        self._held += size
        if self._held > _HELD_UPLOADS * bytes_from_mib(self._settings.max_upload_mib) + LARGEST_ASIDE:
            self._metrics.refuse("busy")
            raise BusyError("Too much is being uploaded; come back in a moment.")

    def refuse_size(self) -> TooLargeError:
        """Count an upload that is too large."""
        self._metrics.refuse("size")
        return TooLargeError(too_large(bytes_from_mib(self._settings.max_upload_mib)))

    def refuse_pace(self) -> SlowClientError:
        """Count an upload that does not come to its end."""
        self._metrics.refuse("pace")
        return SlowClientError(f"The request did not arrive within {self._settings.timeout_s:g} s.")

    def largest_body(self, path: str) -> int:
        """How many bytes a request may bring."""
        if path.startswith(_UPLOADING):
            return bytes_from_mib(self._settings.max_upload_mib) * (2 if path == "/api/compare" else 1) + LARGEST_FORM
        return LARGEST_ASIDE

    @property
    def patience_s(self) -> float:
        """How long a request may take to arrive."""
        return self._settings.timeout_s

    def _check_token(self, scope: Scope) -> tuple[int, Mapping[str, str], bytes] | None:
        """None where the request may pass; else status, headers and body of the answer."""
        token = self._settings.token
        if token is None or scope["path"] in OPEN:
            return None
        headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}
        kind, _, given = headers.get("authorization", "").partition(" ")
        if (kind.lower() == "bearer" and _same(given.strip(), token)) or _same(_cookie(headers), self._pass_of(token)):
            return None
        query = parse_qsl(scope["query_string"].decode("latin-1"), keep_blank_values=True)
        if scope["method"] == "GET" and any(name == "token" and _same(value, token) for name, value in query):
            rest = urlencode([(name, value) for name, value in query if name != "token"])
            cookie = f"{COOKIE}={self._pass_of(token)}; HttpOnly; SameSite=Lax; Path=/"
            place = "/" + scope["path"].lstrip("/")  # never //host, which would lead elsewhere
            return 303, {"location": place + (f"?{rest}" if rest else ""), "set-cookie": cookie}, b""
        said = "This server needs its token: Authorization: Bearer TOKEN, or ?token=TOKEN once in a browser."
        return 401, {"www-authenticate": "Bearer", "content-type": "application/json"}, problem(said)

    def _pass_of(self, token: str) -> str:
        return hmac.new(self._key, token.encode(), hashlib.sha256).hexdigest()


class _Body:
    """The bytes of a request as they come, counted and timed."""

    def __init__(self, receive: Receive, admission: AdmissionMiddleware, scope: Scope) -> None:
        self._receive = receive
        self._admission = admission
        self._scope = scope
        self._most = admission.largest_body(scope["path"])
        self._until = time.monotonic() + admission.patience_s
        self._complete = False
        self.received = 0

    def check_length(self) -> None:
        """Refuse at once what says itself that it is too large."""
        said = dict(self._scope["headers"]).get(b"content-length", b"0")
        if said.isdigit() and int(said) > self._most:
            raise self._admission.refuse_size()

    async def receive(self) -> Message:
        """The next message, as an application asks for it."""
        if self._complete:
            return await self._receive()  # waits for the client to leave
        try:
            message = await asyncio.wait_for(self._receive(), max(0.0, self._until - time.monotonic()))
        except TimeoutError as error:
            raise self._admission.refuse_pace() from error
        if message["type"] == "http.request":
            size = len(message.get("body", b""))
            self.received += size
            self._complete = not message.get("more_body", False)
            if self.received > self._most:
                raise self._admission.refuse_size()
            self._admission.hold(size)
        return message


class _Answer:
    """What goes back: with our headers, and not to someone who does not take it."""

    def __init__(self, send: Send, patience_s: float) -> None:
        self._send = send
        self._patience_s = patience_s
        self.status: int | None = None

    async def send(self, message: Message) -> None:
        """Pass a message on."""
        if message["type"] == "http.response.start":
            self.status = message["status"]
            own = {name.lower() for name, _ in message.get("headers", [])}
            more = [(name.encode(), value.encode()) for name, value in HEADERS.items() if name.encode() not in own]
            message = {**message, "headers": [*message.get("headers", []), *more]}
        await asyncio.wait_for(self._send(message), self._patience_s)

    async def give(self, status: int, headers: Mapping[str, str], body: bytes) -> None:
        """A whole answer."""
        pairs = [(name.encode(), value.encode("latin-1", "replace")) for name, value in headers.items()]
        pairs.append((b"content-length", str(len(body)).encode()))
        await self.send({"type": "http.response.start", "status": status, "headers": pairs})
        await self.send({"type": "http.response.body", "body": body})

    async def problem(self, error: ForetellError) -> None:
        """An error."""
        await self.give(status_of(error), problem_headers(error), problem(str(error)))


def problem(text: str) -> bytes:
    """One line that says what is wrong, as JSON; what is no character is written as an escape."""
    line = " ".join(text.split())
    return json.dumps({"error": line if len(line) <= MAX_LINE else line[: MAX_LINE - 1] + "…"}).encode()


def problem_headers(error: ForetellError) -> dict[str, str]:
    """The headers of an error."""
    later = {"retry-after": str(RETRY_S)} if isinstance(error, BusyError) else {}
    return {"content-type": "application/json", **later}


def _same(given: str, wanted: str) -> bool:
    """Whether two texts are equal, in a time that does not tell where they differ."""
    return hmac.compare_digest(given.encode("utf-8", "surrogateescape"), wanted.encode())


def _cookie(headers: Mapping[str, str]) -> str:
    try:
        found = SimpleCookie(headers.get("cookie", "")).get(COOKIE)
    except CookieError:
        return ""
    return found.value if found is not None else ""
