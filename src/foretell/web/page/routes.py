"""Web: the routes of Gradio that clients may use: the page, its assets and its queue.

Gradio also has routes that read files of the server or fetch addresses. This is a list of what is allowed, not of what
is forbidden, so that routes of a new version stay closed.
"""

import json
from typing import Any

from foretell.errors import InputError
from foretell.units import KIB
from foretell.web.admission.middleware import App, Message, Receive, Scope, Send, problem
from foretell.web.refusals import TooLargeError

OWN_PATHS = ("/api/", "/healthz", "/metrics", "/openapi.json")
GRADIO_PATHS = (
    "/", "/config", "/theme.css", "/manifest.json", "/favicon.ico", "/robots.txt", "/gradio_api/info",
    "/gradio_api/app_id", "/gradio_api/startup-events", "/gradio_api/queue/data",
)  # fmt: skip
GRADIO_FOLDERS = ("/assets/", "/static/", "/gradio_api/heartbeat/")
QUEUE = "/gradio_api/queue/join"
_SMALL_PATHS = ("/gradio_api/cancel", "/gradio_api/reset")
_MAX_BODY_BYTES = 64 * KIB
_FIELDS = ("data", "fn_index", "trigger_id", "session_hash")


class GradioRoutes:
    """Passes on what the page itself requests, and answers 404 to the rest."""

    def __init__(self, app: App) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on, or answer 404."""
        if scope["type"] != "http" or scope["path"].startswith(OWN_PATHS):
            await self._app(scope, receive, send)
        elif scope["method"] == "POST" and scope["path"] in (QUEUE, *_SMALL_PATHS):
            body = await _read(receive)
            body = clean(body) if scope["path"] == QUEUE else body
            await self._app(_with_length(scope, len(body)), _replay(body, receive), send)
        elif scope["method"] in ("GET", "HEAD") and is_open(scope["path"]):
            await self._app(scope, receive, send)
        else:
            headers = [(b"content-type", b"application/json")]
            await send({"type": "http.response.start", "status": 404, "headers": headers})
            await send({"type": "http.response.body", "body": problem("There is nothing here.")})


def is_open(path: str) -> bool:
    """Whether a path may be read.

    >>> is_open("/assets/index.js"), is_open("/gradio_api/file=/etc/passwd"), is_open("/static/../../x")
    (True, False, False)
    """
    return path in GRADIO_PATHS or (path.startswith(GRADIO_FOLDERS) and ".." not in path)


def clean(body: bytes) -> bytes:
    """The body of a request to the queue with only the fields that the page sends.

    Objects in its data are refused: Gradio takes them for files, by a path of the server or an address to fetch.
    """
    try:
        request: Any = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise InputError("The body is not JSON.") from error
    if not isinstance(request, dict) or not isinstance(request.get("data"), list) or not _plain(request["data"]):
        raise InputError("The data of a request may only have texts, numbers and lists of texts.")
    return json.dumps({name: request[name] for name in _FIELDS if name in request}).encode()


def _plain(values: list[Any]) -> bool:
    """Whether all values are texts, numbers or lists of texts."""
    return all(
        not isinstance(value, dict) and (not isinstance(value, list) or all(isinstance(item, str) for item in value))
        for value in values
    )


async def _read(receive: Receive) -> bytes:
    body = b""
    while True:
        message = await receive()
        body += bytes(message.get("body", b""))
        if len(body) > _MAX_BODY_BYTES:
            raise TooLargeError("The request is too large: the page sends only a few words.")
        if message["type"] != "http.request" or not message.get("more_body", False):
            return body


def _replay(body: bytes, receive: Receive) -> Receive:
    """A receive function that returns a body that was already read."""
    remaining = [body]

    async def read() -> Message:
        return {"type": "http.request", "body": remaining.pop(), "more_body": False} if remaining else await receive()

    return read


def _with_length(scope: Scope, length: int) -> Scope:
    headers = [(name, value) for name, value in scope["headers"] if name != b"content-length"]
    return {**scope, "headers": [*headers, (b"content-length", str(length).encode())]}
