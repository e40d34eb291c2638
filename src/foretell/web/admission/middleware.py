"""Web: the middleware of every request: it checks host, origin and token, limits size and duration, and counts."""

import asyncio
import hashlib
import hmac
import json
import math
import secrets
import time
from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from http.cookies import CookieError, SimpleCookie
from typing import Any
from urllib.parse import parse_qsl, urlencode

from foretell.errors import ForetellError
from foretell.units import KIB, MIB, bytes_from_mib
from foretell.web.admission.clients import CLIENT, Shares, client_of
from foretell.web.admission.metrics import Metrics
from foretell.web.admission.origin import check_host, check_origin
from foretell.web.admission.uploads import too_large
from foretell.web.refusals import BusyError, SlowClientError, TooLargeError, TooManyError, status_of
from foretell.web.settings import Settings

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

COOKIE = "foretell"
PUBLIC_PATHS = ("/healthz",)  # health checks need no token
CROWDED = "crowded"  # set by the server for a connection of a client that has too many
HEAD_TIMEOUT_S = 10.0  # how long the head of a request may take to arrive, or the first bytes of its body
SLOWEST_BYTES_PER_S = 32 * KIB  # of a body, after that
LONGEST_RETRY_S = 60
MAX_FORM_FIELDS_BYTES = MIB  # the fields of a form, without its file
MAX_SMALL_BODY_BYTES = MIB  # requests of the page, and JSON
MAX_ERROR_CHARACTERS = 1000
_MAX_UPLOADS_IN_FLIGHT = 8  # of the largest size, which may arrive at the same time
_UPLOADING = ("/api/",)
_TWO_MODELS = ("/api/compare", "/api/share")

HEADERS = {
    # Browsers load nothing from other hosts, even if a library of the page asks for it.
    "content-security-policy": "default-src 'self' 'unsafe-inline' 'unsafe-eval' data: blob:; object-src 'none'; "
    "frame-ancestors 'self'; base-uri 'self'; form-action 'self'",
    "referrer-policy": "no-referrer",
    "x-content-type-options": "nosniff",
}
_HEADERS = [(name.encode(), value.encode()) for name, value in HEADERS.items()]


class AdmissionMiddleware:
    """Wraps the application: pure ASGI, because uploads must be counted while they arrive."""

    def __init__(self, app: App, settings: Settings, metrics: Metrics) -> None:
        self._app = app
        self._settings = settings
        self._metrics = metrics
        self._key = secrets.token_bytes(32)  # new at every start, so that old cookies become invalid
        self.in_flight = Shares(
            _MAX_UPLOADS_IN_FLIGHT * bytes_from_mib(settings.max_upload_mib) + MAX_SMALL_BODY_BYTES
        )  # bytes that are being uploaded

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on to the application, or refuse it here."""
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
        elif scope["type"] == "http":
            await self._handle(scope, receive, send)
        else:
            await send({"type": "websocket.close", "code": 1008})

    async def _handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        started, response = time.perf_counter(), _Response(send, self._settings.timeout_s)
        headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}
        peer = (scope.get("client") or (None,))[0]
        client = client_of(peer, headers, behind_proxy=self._settings.behind_proxy)
        CLIENT.set(client)
        scope = {**scope, "client": (client, 0)}
        body = _Body(receive, self, scope, client)
        try:
            check_host(headers, self._settings)
            check_origin(scope["method"], headers)
            self._check_crowd(scope)
            refusal = self._check_token(scope, headers)
            if refusal is not None:
                await response.respond(*refusal)
                return
            body.check_length()
            await self._app(scope, body.receive, response.send)
        except ForetellError as error:
            if response.status is not None:  # the response has started: it is too late for an error page
                raise
            await response.respond_error(error)
        finally:
            self.in_flight.take(client, -body.counted)
            self._metrics.count(scope["path"], response.status or 0, time.perf_counter() - started)

    def count_in_flight(self, client: str, size: int, allowed: int = 0) -> None:
        """Count bytes that are being uploaded; refuse them if all requests, or those of one client, have too many.

        ``allowed`` is what one request may have: that much no client is refused for the sake of others.
        """
        if self.in_flight.taken + size > self.in_flight.places:
            self._metrics.refuse("busy")
            raise BusyError("Too much is being uploaded at the moment. Try again later.")
        if self.in_flight.of(client) + size > allowed and not self.in_flight.allows(client, size):
            self._metrics.refuse("share")
            raise TooManyError("You are uploading too much at the same time. Try again later.")
        self.in_flight.take(client, size)

    def _check_crowd(self, scope: Scope) -> None:
        if scope.get("state", {}).get(CROWDED) and scope["path"] not in PUBLIC_PATHS:
            raise TooManyError("You have too many connections. Close some, or try again later.")

    def refuse_size(self) -> TooLargeError:
        """Count an upload that is too large."""
        self._metrics.refuse("size")
        return TooLargeError(too_large(bytes_from_mib(self._settings.max_upload_mib)))

    def refuse_slow(self, waited_s: float) -> SlowClientError:
        """Count an upload that takes too long."""
        self._metrics.refuse("pace")
        return SlowClientError(f"The request did not arrive within {waited_s:.3g} s.")

    def largest_body(self, path: str) -> int:
        """How many bytes the body of a request may have."""
        if path.startswith(_UPLOADING):
            return (
                bytes_from_mib(self._settings.max_upload_mib) * (2 if path in _TWO_MODELS else 1)
                + MAX_FORM_FIELDS_BYTES
            )
        return MAX_SMALL_BODY_BYTES

    def patience_s(self, received: int) -> float:
        """How long a request may take of which so many bytes have arrived: a body must not trickle."""
        return min(self._settings.timeout_s, HEAD_TIMEOUT_S + received / SLOWEST_BYTES_PER_S)

    def _check_token(self, scope: Scope, headers: Mapping[str, str]) -> tuple[int, Mapping[str, str], bytes] | None:
        """None if the request may pass; else status, headers and body of the response.

        A browser sends the token once, as ``?token=``. It gets a cookie and is redirected to the same page without
        the token, so that the token does not stay in the address bar or in the history.
        """
        token = self._settings.token
        if token is None or scope["path"] in PUBLIC_PATHS:
            return None
        kind, _, credentials = headers.get("authorization", "").partition(" ")
        if (kind.lower() == "bearer" and _same(credentials.strip(), token)) or _same(
            _cookie(headers), self._cookie_value(token)
        ):
            return None
        query = parse_qsl(scope["query_string"].decode("latin-1"), keep_blank_values=True)
        if scope["method"] == "GET" and any(name == "token" and _same(value, token) for name, value in query):
            rest = urlencode([(name, value) for name, value in query if name != "token"])
            cookie = f"{COOKIE}={self._cookie_value(token)}; HttpOnly; SameSite=Lax; Path=/"
            location = "/" + scope["path"].lstrip("/")  # one slash only: //host would redirect to another host
            return 303, {"location": location + (f"?{rest}" if rest else ""), "set-cookie": cookie}, b""
        message = "This server needs its token: Authorization: Bearer TOKEN, or ?token=TOKEN once in a browser."
        return 401, {"www-authenticate": "Bearer", "content-type": "application/json"}, problem(message)

    def _cookie_value(self, token: str) -> str:
        return hmac.new(self._key, token.encode(), hashlib.sha256).hexdigest()


class _Body:
    """The body of a request, counted and timed while it arrives."""

    def __init__(self, receive: Receive, admission: AdmissionMiddleware, scope: Scope, client: str) -> None:
        self._receive = receive
        self._admission = admission
        self._scope = scope
        self._client = client
        self._max_bytes = admission.largest_body(scope["path"])
        self._started = time.monotonic()
        self._complete = False
        self._received = 0
        self.counted = 0  # bytes that the admission has counted as in flight

    def check_length(self) -> None:
        """Refuse a request early if its Content-Length is too large."""
        length = dict(self._scope["headers"]).get(b"content-length", b"0")
        if length.isdigit() and int(length) > self._max_bytes:
            raise self._admission.refuse_size()

    async def receive(self) -> Message:
        """The next message of the body, for the application."""
        if self._complete:
            return await self._receive()  # the application waits here for a disconnect, which may take any time
        try:
            patience_s = self._admission.patience_s(self._received)
            # a timeout, not `wait_for`, which makes a task each time
            async with asyncio.timeout(max(0.0, self._started + patience_s - time.monotonic())):
                message = await self._receive()
        except TimeoutError as error:
            raise self._admission.refuse_slow(patience_s) from error
        if message["type"] == "http.request":
            size = len(message.get("body", b""))
            self._received += size
            self._complete = not message.get("more_body", False)
            if self._received > self._max_bytes:
                raise self._admission.refuse_size()
            self._admission.count_in_flight(self._client, size, self._max_bytes)
            self.counted += size
        return message


class _Response:
    """The response: with our headers, and with a timeout for clients that do not read it."""

    def __init__(self, send: Send, timeout_s: float) -> None:
        self._send = send
        self._timeout_s = timeout_s
        self.status: int | None = None

    async def send(self, message: Message) -> None:
        """Send a message of the application."""
        if message["type"] == "http.response.start":
            self.status = message["status"]
            own = {name.lower() for name, _ in message.get("headers", [])}
            more = [(name, value) for name, value in _HEADERS if name not in own]
            message = {**message, "headers": [*message.get("headers", []), *more]}
        async with asyncio.timeout(self._timeout_s):
            await self._send(message)

    async def respond(self, status: int, headers: Mapping[str, str], body: bytes) -> None:
        """Send a complete response."""
        pairs = [(name.encode(), value.encode("latin-1", "replace")) for name, value in headers.items()]
        pairs.append((b"content-length", str(len(body)).encode()))
        await self.send({"type": "http.response.start", "status": status, "headers": pairs})
        await self.send({"type": "http.response.body", "body": body})

    async def respond_error(self, error: ForetellError) -> None:
        """Send an error."""
        await self.respond(status_of(error), problem_headers(error), problem(str(error)))


def problem(text: str) -> bytes:
    """An error message as JSON: one line of limited length."""
    line = " ".join(text.split())
    return json.dumps(
        {"error": line if len(line) <= MAX_ERROR_CHARACTERS else line[: MAX_ERROR_CHARACTERS - 1] + "…"}
    ).encode()


def problem_headers(error: ForetellError) -> dict[str, str]:
    """The headers of an error."""
    retry = {}
    if isinstance(error, BusyError):
        retry = {"retry-after": str(min(LONGEST_RETRY_S, max(1, math.ceil(error.retry_s))))}
    return {"content-type": "application/json", **retry}


def _same(received: str, expected: str) -> bool:
    """Whether two texts are equal, compared in constant time: the duration reveals nothing about the token."""
    return hmac.compare_digest(received.encode("utf-8", "surrogateescape"), expected.encode())


def _cookie(headers: Mapping[str, str]) -> str:
    try:
        morsel = SimpleCookie(headers.get("cookie", "")).get(COOKIE)
    except CookieError:
        return ""
    return morsel.value if morsel is not None else ""
