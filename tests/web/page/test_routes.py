"""What of Gradio can be reached."""

import asyncio
import json
from typing import Any

import pytest

from foretell.errors import InputError
from foretell.web.page.routes import QUEUE, GradioRoutes, clean, is_open
from foretell.web.refusals import TooLargeError


def ask(path: str, method: str = "GET", body: bytes = b"") -> tuple[int, bytes]:
    """The status, and what reached the application."""
    sent: list[Any] = []
    reached: list[Any] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        reached.append((await receive())["body"] if method == "POST" else b"")
        assert dict(scope["headers"]).get(b"content-length", b"0") == str(len(reached[0])).encode()
        await send({"type": "http.response.start", "status": 200, "headers": []})

    async def receive() -> Any:
        return {"type": "http.request", "body": body, "more_body": False}

    async def send(message: Any) -> None:
        sent.append(message)

    scope = {"type": "http", "path": path, "method": method, "headers": []}
    if body:
        scope["headers"] = [(b"content-length", str(len(body)).encode())]
    asyncio.run(GradioRoutes(app)(scope, receive, send))
    return sent[0]["status"], reached[0] if reached else b""


@pytest.mark.parametrize(
    "path", ["/", "/theme.css", "/assets/a.js", "/static/x.js", "/gradio_api/heartbeat/abc", "/metrics"]
)
def test_routes_of_the_page_are_allowed(path: str) -> None:
    assert ask(path)[0] == 200


@pytest.mark.parametrize(
    "path",
    ["/gradio_api/file=/etc/passwd", "/gradio_api/file=http://example.org", "/gradio_api/proxy=http://example.org",
     "/gradio_api/stream/x", "/monitoring", "/gradio_api/vibe-code", "/static/../x", "/gradio_api/runs", "/login",
     "/gradio_api/dev/reload", "/svelte/x", "/pwa_icon", "/gradio_api/openapi.json", "/config/../x"],
)  # fmt: skip
def test_other_routes_are_refused(path: str) -> None:
    assert ask(path)[0] == 404
    assert not is_open(path)


@pytest.mark.parametrize(
    "path", ["/gradio_api/upload", "/gradio_api/run/predict", "/gradio_api/call/predict", "/gradio_api/api/predict",
             "/gradio_api/component_server", "/login", "/"],
)  # fmt: skip
def test_nothing_is_sent_elsewhere_than_to_the_queue(path: str) -> None:
    assert ask(path, "POST", b"{}")[0] == 404


def test_only_known_fields_reach_the_queue() -> None:
    payload = {"data": ["timm:x", 1, None, True, ["h200"]], "fn_index": 0, "session_hash": "a", "event_data": {"x": 1}}
    status, body = ask(QUEUE, "POST", json.dumps(payload).encode())
    assert status == 200
    assert json.loads(body) == {"data": payload["data"], "fn_index": 0, "session_hash": "a"}


@pytest.mark.parametrize(
    "data", [[{"path": "http://example.org", "meta": {"_type": "gradio.FileData"}}], [[{"path": "/etc/passwd"}]],
             [["a", ["b"]]], {}, "text", None],
)  # fmt: skip
def test_objects_do_not_reach_the_queue(data: Any) -> None:
    with pytest.raises(InputError, match="lists of texts"):
        clean(json.dumps({"data": data}).encode())


def test_invalid_or_oversized_json_does_not_reach_the_queue() -> None:
    for body in (b"{", b"[" * 50_000, b"\xff"):
        with pytest.raises(InputError, match="not JSON"):
            clean(body)
    with pytest.raises(TooLargeError):
        ask(QUEUE, "POST", b"x" * 70_000)
