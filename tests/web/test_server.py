"""A real server on a free port: it says where it is, hangs up on clients that do not finish, and ends clean."""

import asyncio
import http.client
import json
import socket
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest
import uvicorn

from foretell.errors import InputError
from foretell.web import server as servers
from foretell.web.api import make_app
from foretell.web.server import listen
from foretell.web.settings import Settings


@pytest.fixture(scope="module")
def address(monkeypatch_module: pytest.MonkeyPatch) -> Iterator[tuple[str, int]]:
    """``serve`` without its page, in a thread; its end is asked for as a signal would."""
    made: list[uvicorn.Server] = []

    class Server(servers._Server):
        def run(self, sockets: Any = None) -> None:
            made.append(self)
            asyncio.run(self.serve(sockets))

    monkeypatch_module.setattr(servers, "_Server", Server)
    monkeypatch_module.setattr(servers, "make_app", lambda settings: make_app(settings, page=False))
    monkeypatch_module.setattr(servers, "_GRACE_S", 0.1)
    lines: list[str] = []
    settings = Settings(port=0, workers=1, timeout_s=0.15)
    thread = threading.Thread(target=servers.serve, args=(settings, lines.append))
    thread.start()
    while not lines:
        time.sleep(0.01)
    host, port = lines[0].removeprefix("http://").split(":")
    yield host, int(port)
    made[0].should_exit = True
    thread.join(120)
    assert not thread.is_alive()


@pytest.fixture(scope="module")
def monkeypatch_module() -> Iterator[pytest.MonkeyPatch]:
    with pytest.MonkeyPatch.context() as patch:
        yield patch


def test_the_server_answers_at_its_printed_address(address: tuple[str, int]) -> None:
    assert address[0] == "127.0.0.1"
    connection = http.client.HTTPConnection(*address, timeout=120)
    connection.request("GET", "/healthz")
    answer = connection.getresponse()
    assert json.loads(answer.read())["status"] == "ok"
    assert answer.getheader("server") is None
    connection.close()


@pytest.mark.parametrize(
    "head", [b"", b"GET / HTTP/1.1\r\nHo", b"POST /api/predict HTTP/1.1\r\nhost: localhost\r\ncontent-"]
)
def test_an_unfinished_request_head_closes_the_connection(address: tuple[str, int], head: bytes) -> None:
    with socket.create_connection(address, timeout=120) as line:
        line.sendall(head)
        assert line.recv(100) == b""


def test_an_unfinished_body_gets_status_408(address: tuple[str, int]) -> None:
    with socket.create_connection(address, timeout=120) as line:
        line.sendall(b"POST /api/predict HTTP/1.1\r\nhost: localhost\r\ncontent-length: 100\r\n\r\n{")
        received = b""
        while part := line.recv(1000):
            received += part
    assert received.startswith(b"HTTP/1.1 408")
    assert b"did not arrive" in received


def test_the_timer_rests_when_a_request_is_complete(address: tuple[str, int]) -> None:
    connection = http.client.HTTPConnection(*address, timeout=120)
    for _ in range(2):  # longer together than the patience with one request
        connection.request("GET", "/healthz")
        assert connection.getresponse().read()
        time.sleep(0.2)
    connection.close()


def test_an_address_that_is_taken_is_one_line() -> None:
    with listen("127.0.0.1", 0) as occupied:
        port = occupied.getsockname()[1]
        with pytest.raises(InputError, match=f"127.0.0.1:{port}.*--port"):
            listen("127.0.0.1", port)
    with pytest.raises(InputError, match="no-such-host"):
        listen("no-such-host.invalid", 0)
