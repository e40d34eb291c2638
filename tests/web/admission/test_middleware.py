"""Tokens, sizes and slow clients, in front of an application that only reads."""

import asyncio
import json
from typing import Any

import pytest

from foretell.errors import ForetellError
from foretell.web.admission.clients import CLIENT
from foretell.web.admission.metrics import Metrics
from foretell.web.admission.middleware import (
    COOKIE,
    CROWDED,
    HEAD_TIMEOUT_S,
    MAX_ERROR_CHARACTERS,
    SLOWEST_BYTES_PER_S,
    AdmissionMiddleware,
    problem,
    problem_headers,
)
from foretell.web.refusals import BusyError
from foretell.web.settings import Settings

TOKEN = "a-long-token"
METRICS = Metrics()


async def reader(scope: Any, receive: Any, send: Any) -> None:
    """Reads all of the body, and says how much it was."""
    size = 0
    while True:
        message = await receive()
        size += len(message.get("body", b""))
        if not message.get("more_body", False):
            break
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": str(size).encode()})


def ask(
    admission: AdmissionMiddleware,
    path: str = "/api/predict",
    chunks: tuple[bytes, ...] = (b"",),
    headers: dict[str, str] | None = None,
    query: str = "",
    method: str = "POST",
    pause_s: float = 0.0,
    client: str = "127.0.0.1",
    state: dict[str, Any] | None = None,
) -> tuple[int, dict[str, str], bytes]:
    waiting = list(chunks)
    sent: list[Any] = []

    async def receive() -> Any:
        await asyncio.sleep(pause_s)
        body = waiting.pop(0)
        return {"type": "http.request", "body": body, "more_body": bool(waiting)}

    async def send(message: Any) -> None:
        sent.append(message)

    pairs = [(name.encode(), value.encode("latin-1")) for name, value in (headers or {}).items()]
    scope = {
        "type": "http", "path": path, "method": method, "headers": pairs, "query_string": query.encode("latin-1"),
        "client": (client, 5), "state": state or {},
    }  # fmt: skip
    asyncio.run(admission(scope, receive, send))
    headers_sent = {name.decode(): value.decode() for name, value in sent[0]["headers"]}
    return sent[0]["status"], headers_sent, sent[1]["body"]


def open_gate(**settings: Any) -> AdmissionMiddleware:
    return AdmissionMiddleware(reader, Settings(**settings), METRICS)


def test_what_is_small_passes_with_our_headers() -> None:
    status, headers, body = ask(open_gate(), chunks=(b"abc", b"de"))
    assert (status, body) == (200, b"5")
    assert "default-src 'self'" in headers["content-security-policy"]


def test_size_is_counted_on_arrival_whatever_the_header_says() -> None:
    admission = open_gate(max_upload_mib=0.5)
    much = (b"x" * 400_000,) * 8
    for headers in ({}, {"content-length": "3"}):
        status, _, body = ask(admission, chunks=much, headers=headers)
        assert status == 413
        assert "0.5 MiB" in json.loads(body)["error"]
    status, _, _ = ask(admission, chunks=(b"never read",), headers={"content-length": "3200000"})
    assert status == 413
    assert ask(admission, "/api/compare", much[:4])[0] == 200  # two files
    assert ask(admission, "/api/share", much[:4])[0] == 200


def test_bodies_for_the_page_are_limited() -> None:
    assert ask(open_gate(), "/gradio_api/queue/join", (b"x" * 600_000,) * 2)[0] == 413


def test_a_body_that_does_not_end_is_given_up() -> None:
    status, _, body = ask(open_gate(timeout_s=0.05), chunks=(b"x",) * 100, pause_s=0.02)
    assert status == 408
    assert "0.05 s" in json.loads(body)["error"]


def test_all_uploads_together_are_limited_and_forgotten_afterwards() -> None:
    admission = open_gate(max_upload_mib=0.1)
    admission.count_in_flight("others", 10**6)
    status, headers, _ = ask(admission, chunks=(b"x" * 900_000,))
    assert status == 503
    assert int(headers["retry-after"]) > 0
    admission.in_flight.take("others", -(10**6))
    assert ask(admission, chunks=(b"x" * 900_000,))[0] == 200


@pytest.mark.parametrize(
    "headers", [{"authorization": f"Bearer {TOKEN}"}, {"authorization": f"bearer {TOKEN} "}],
)  # fmt: skip
def test_the_right_token_is_accepted(headers: dict[str, str]) -> None:
    assert ask(open_gate(token=TOKEN), headers=headers)[0] == 200


@pytest.mark.parametrize(
    "headers",
    [{}, {"authorization": "Bearer wrong-token"}, {"authorization": f"Basic {TOKEN}"}, {"authorization": TOKEN},
     {"cookie": f"{COOKIE}={TOKEN}"}, {"cookie": f"{COOKIE}="}, {"cookie": ";;=\x7f"},
     {"authorization": "Bearer \xff"}],
)  # fmt: skip
def test_any_other_token_is_refused(headers: dict[str, str]) -> None:
    admission = open_gate(token=TOKEN)
    status, headers_sent, body = ask(admission, headers=headers)
    assert status == 401
    assert headers_sent["www-authenticate"] == "Bearer"
    assert TOKEN not in body.decode()
    assert ask(admission, "/", headers=headers, method="GET", query="token=wrong")[0] == 401
    assert ask(admission, "/metrics", headers=headers, method="GET")[0] == 401


def test_the_health_check_needs_no_token() -> None:
    assert ask(open_gate(token=TOKEN), "/healthz", method="GET")[0] == 200


def test_a_token_in_the_address_becomes_a_cookie_and_leaves_the_address() -> None:
    admission = open_gate(token=TOKEN)
    status, headers, _ = ask(admission, "//example.org/", method="GET", query=f"a=1&token={TOKEN}&b=")
    assert status == 303
    assert headers["location"] == "/example.org/?a=1&b="
    cookie = headers["set-cookie"]
    assert "HttpOnly" in cookie
    assert TOKEN not in cookie
    value = cookie.partition(";")[0]
    assert ask(admission, headers={"cookie": f"other=1; {value}"})[0] == 200
    assert ask(open_gate(token=TOKEN), headers={"cookie": value})[0] == 401  # another server
    assert ask(admission, query=f"token={TOKEN}")[0] == 401  # not with a POST


@pytest.mark.parametrize(
    ("headers", "status"),
    [({"host": "evil.example"}, 421), ({"host": "localhost", "origin": "http://evil.example"}, 403),
     ({"host": "localhost", "sec-fetch-site": "cross-site"}, 403), ({"host": "localhost"}, 200)],
)  # fmt: skip
@pytest.mark.parametrize("path", ["/api/predict", "/api/uploads", "/gradio_api/queue/join"])
def test_other_hosts_and_other_sites_are_refused_before_the_body_is_read(
    path: str, headers: dict[str, str], status: int
) -> None:
    read: list[bytes] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        read.append((await receive())["body"])
        await reader(scope, receive, send)

    admission = AdmissionMiddleware(app, Settings(), METRICS)
    found, _, body = ask(admission, path, (b"a", b"b"), headers)
    assert (found, len(read)) == (status, status == 200)
    assert status == 200 or json.loads(body)["error"].endswith(".")


def test_a_rebound_name_reads_nothing() -> None:
    for path in ("/", "/api/devices", "/metrics", "/healthz", "/gradio_api/queue/data"):
        assert ask(open_gate(), path, headers={"host": "evil.example:7860"}, method="GET")[0] == 421


def test_a_body_that_trickles_is_given_up_early() -> None:
    admission = open_gate(timeout_s=600.0)
    assert admission.patience_s(0) == HEAD_TIMEOUT_S
    assert admission.patience_s(10**6) == pytest.approx(HEAD_TIMEOUT_S + 10**6 / SLOWEST_BYTES_PER_S)
    assert admission.patience_s(10**9) == 600.0


def test_one_client_does_not_take_the_room_for_all_uploads() -> None:
    admission = open_gate(max_upload_mib=0.5)  # room for 5 MiB in all
    admission.count_in_flight("127.0.0.9", 2_300_000)
    assert ask(admission, chunks=(b"x" * 1_000_000,), client="127.0.0.9")[0] == 429
    assert ask(admission, chunks=(b"x" * 1_000_000,), client="127.0.0.8")[0] == 200
    assert admission.in_flight.of("127.0.0.8") == 0


def test_one_upload_of_a_client_is_not_refused_for_others() -> None:
    admission = open_gate(max_upload_mib=0.5)
    for number in range(3):
        admission.count_in_flight(str(number), 1_200_000, 1_500_000)
    assert ask(admission, chunks=(b"x" * 1_400_000,))[0] == 200


def test_a_crowded_connection_gets_its_health_and_nothing_else() -> None:
    crowded = {CROWDED: True}
    assert ask(open_gate(), "/healthz", method="GET", state=crowded)[0] == 200
    status, headers, _ = ask(open_gate(), "/api/devices", method="GET", state=crowded)
    assert status == 429
    assert int(headers["retry-after"]) > 0


@pytest.mark.parametrize(("behind_proxy", "client"), [(True, "9.9.9.9"), (False, "127.0.0.1")])
def test_the_application_knows_its_client(behind_proxy: bool, client: str) -> None:
    seen: list[Any] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        seen.append((scope["client"][0], CLIENT.get()))
        await reader(scope, receive, send)

    admission = AdmissionMiddleware(app, Settings(behind_proxy=behind_proxy), METRICS)
    ask(admission, headers={"x-forwarded-for": "1.1.1.1, 9.9.9.9"}, client="127.0.0.1")
    assert seen == [(client, client)]


def test_websockets_are_closed() -> None:
    sent: list[Any] = []

    async def send(message: Any) -> None:
        sent.append(message)

    asyncio.run(open_gate()({"type": "websocket", "path": "/"}, None, send))  # type: ignore[arg-type]
    assert sent[0]["type"] == "websocket.close"


def test_problems_are_one_short_line_of_any_text() -> None:
    error = json.loads(problem("a\n b\ud800" + "x" * 2000))["error"]
    assert error.startswith("a b\ud800x")
    assert len(error) == MAX_ERROR_CHARACTERS
    assert problem_headers(BusyError("x", 12.2))["retry-after"] == "13"
    assert problem_headers(BusyError("x", 0.0))["retry-after"] == "1"
    assert problem_headers(BusyError("x", 1e9))["retry-after"] == "60"
    assert "retry-after" not in problem_headers(ForetellError("x"))
