"""Web: what of Gradio can be reached: the page, its assets and its queue; no files, no proxies."""

import json
from typing import Any

from foretell.errors import InputError
from foretell.units import KIB
from foretell.web.admission.middleware import App, Message, Receive, Scope, Send, problem
from foretell.web.refusals import TooLargeError

OWN = ("/api/", "/healthz", "/metrics", "/openapi.json")
PAGES = (
    "/", "/config", "/theme.css", "/manifest.json", "/favicon.ico", "/robots.txt", "/gradio_api/info",
    "/gradio_api/app_id", "/gradio_api/startup-events", "/gradio_api/queue/data",
)  # fmt: skip
FOLDERS = ("/assets/", "/static/", "/gradio_api/heartbeat/")
QUEUE = "/gradio_api/queue/join"
_SMALL = ("/gradio_api/cancel", "/gradio_api/reset")
_LARGEST = 64 * KIB
_FIELDS = ("data", "fn_index", "trigger_id", "session_hash")


class GradioRoutes:
    """Lets the page's own requests through, and 404 for the rest."""

    def __init__(self, app: App) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Let a request pass, or not."""
        if scope["type"] != "http" or scope["path"].startswith(OWN):
            await self._app(scope, receive, send)
        elif scope["method"] == "POST" and scope["path"] in (QUEUE, *_SMALL):
            body = await _read(receive)
            body = clean(body) if scope["path"] == QUEUE else body
            await self._app(_with_length(scope, len(body)), _again(body, receive), send)
        elif scope["method"] in ("GET", "HEAD") and is_open(scope["path"]):
            await self._app(scope, receive, send)
        else:
            headers = [(b"content-type", b"application/json")]
            await send({"type": "http.response.start", "status": 404, "headers": headers})
            await send({"type": "http.response.body", "body": problem("There is nothing here.")})


def is_open(path: str) -> bool:
    """Whether the page may be asked for a path.

    >>> is_open("/assets/index.js"), is_open("/gradio_api/file=/etc/passwd"), is_open("/static/../../x")
    (True, False, False)
    """
    return path in PAGES or (path.startswith(FOLDERS) and ".." not in path)


def clean(body: bytes) -> bytes:
    """The fields of a question to the queue; an object in its data could name a file or an address to fetch."""
    try:
        asked: Any = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise InputError("The body is not JSON.") from error
    if not isinstance(asked, dict) or not isinstance(asked.get("data"), list) or not _plain(asked["data"]):
        raise InputError("The page asks with texts, numbers and lists of them alone.")
    return json.dumps({name: asked[name] for name in _FIELDS if name in asked}).encode()


def _plain(values: list[Any]) -> bool:
    """Whether there are only texts, numbers and lists of texts."""
    return all(
        not isinstance(each, dict) and (not isinstance(each, list) or all(isinstance(one, str) for one in each))
        for each in values
    )


async def _read(receive: Receive) -> bytes:
    body = b""
    while True:
        message = await receive()
        body += bytes(message.get("body", b""))
        if len(body) > _LARGEST:
            raise TooLargeError("The page asks with a few words, not with this much.")
        if message["type"] != "http.request" or not message.get("more_body", False):
            return body


def _again(body: bytes, receive: Receive) -> Receive:
    """A body that was read, for whoever reads it next."""
    left = [body]

    async def read() -> Message:
        return {"type": "http.request", "body": left.pop(), "more_body": False} if left else await receive()

    return read


def _with_length(scope: Scope, length: int) -> Scope:
    headers = [(name, value) for name, value in scope["headers"] if name != b"content-length"]
    return {**scope, "headers": [*headers, (b"content-length", str(length).encode())]}
