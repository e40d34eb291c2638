"""A real server on a free port: it says where it is, hangs up on clients that do not finish, and ends clean."""

import asyncio
import http.client
import json
import resource
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import pytest
import uvicorn

from foretell.errors import InputError
from foretell.web import server as servers
from foretell.web.admission.clients import CLIENT
from foretell.web.api import make_app
from foretell.web.server import allow_open_files, listen
from foretell.web.settings import Settings


@contextmanager
def serving(
    settings: Settings, changed: dict[str, float], on_app: Callable[[Any], None] = lambda _: None
) -> Iterator[Any]:
    """``serve`` without its page, in a thread; its end is asked for as a signal would."""
    made: list[uvicorn.Server] = []

    class Server(servers._Server):
        def run(self, sockets: Any = None) -> None:
            made.append(self)
            asyncio.run(self.serve(sockets))

    def make(settings: Settings) -> Any:
        app = make_app(settings, page=False)
        on_app(app)
        return app

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(servers, "_Server", Server)
        patch.setattr(servers, "make_app", make)
        patch.setattr(servers, "_GRACE_S", 0.1)
        for name, value in changed.items():
            patch.setattr(servers, name, value)
        lines: list[str] = []
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
def address() -> Iterator[tuple[str, int]]:
    with serving(Settings(port=0, workers=1, timeout_s=0.15), {}) as at:
        yield at


def get(address: tuple[str, int], path: str) -> tuple[int, bytes]:
    connection = http.client.HTTPConnection(*address, timeout=120)
    connection.request("GET", path)
    answer = connection.getresponse()
    found = answer.status, answer.read()
    connection.close()
    return found


FEW = {"_MAX_CONNECTIONS": 16, "_RESERVED_CONNECTIONS": 4}


def test_half_open_connections_silence_nobody() -> None:
    with serving(Settings(port=0, workers=1), FEW) as address, ExitStack() as stack:
        for number in range(100):
            line = stack.enter_context(socket.create_connection(address, timeout=120))
            line.sendall(b"GET / HTTP/1.1\r\nhost: localhost\r\n"[: number % 30])
        for _ in range(3):
            assert get(address, "/healthz")[0] == 200
            assert get(address, "/api/devices")[0] == 200


def test_health_is_answered_while_all_connections_are_busy() -> None:
    release = threading.Event()

    async def wait(*_: Any, **__: Any) -> dict[str, Any]:
        while not release.is_set():
            await asyncio.sleep(0.01)
        return {"text": "{}"}

    apps: list[Any] = []

    def on_app(app: Any) -> None:
        apps.append(app)
        app.state.pool.ask = wait

    body = b'{"model": "timm:x"}'
    head = b"POST /api/predict HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\ncontent-length: %d\r\n\r\n"
    with serving(Settings(port=0, workers=1), FEW, on_app) as address, ExitStack() as stack:
        lines = [stack.enter_context(socket.create_connection(address, timeout=120)) for _ in range(8)]
        for line in lines:
            line.sendall(head % len(body) + body)
        while apps[0].state.queue.places.taken < 8:
            time.sleep(0.01)
        status, said = get(address, "/api/devices")
        assert status == 429
        assert b"too many connections" in said
        assert get(address, "/healthz")[0] == 200
        release.set()
        for line in lines:
            assert line.recv(20).startswith(b"HTTP/1.1 200")


def test_a_client_that_leaves_frees_its_place() -> None:
    apps: list[Any] = []
    cancelled = threading.Event()

    async def wait(*_: Any, **__: Any) -> dict[str, Any]:
        try:
            await asyncio.sleep(3600)
        finally:
            cancelled.set()
        return {}

    def on_app(app: Any) -> None:
        apps.append(app)
        app.state.pool.ask = wait

    with serving(Settings(port=0, workers=1), {}, on_app) as address:
        places = apps[0].state.queue.places
        with socket.create_connection(address, timeout=120) as line:
            line.sendall(
                b'POST /api/predict HTTP/1.1\r\nhost: localhost\r\ncontent-length: 19\r\n\r\n{"model": "timm:x"}'
            )
            while not places.taken:
                time.sleep(0.01)
        assert cancelled.wait(120)
        while places.taken:
            time.sleep(0.01)


def test_a_client_that_leaves_in_its_body_is_no_error(caplog: pytest.LogCaptureFixture) -> None:
    apps: list[Any] = []
    head = b"POST /api/predict HTTP/1.1\r\nhost: localhost\r\ncontent-type: %s\r\ncontent-length: 99\r\n\r\n--b\r\n"
    with serving(Settings(port=0, workers=1), {}, apps.append) as address:
        places = apps[0].state.queue.places
        for kind in (b"application/json", b"multipart/form-data; boundary=b"):
            with socket.create_connection(address, timeout=120) as line:
                line.sendall(head % kind)
                while not places.taken:
                    time.sleep(0.01)
            while places.taken:
                time.sleep(0.01)
        while b'route="/api/predict",status="499"} 2.0' not in get(address, "/metrics")[1]:
            time.sleep(0.01)
    assert "Traceback" not in caplog.text


def test_a_head_has_less_time_than_an_answer() -> None:
    settings = Settings(port=0, workers=1, timeout_s=3600.0)
    with serving(settings, {"HEAD_TIMEOUT_S": 0.1}) as at, socket.create_connection(at, timeout=120) as line:
        line.sendall(b"GET / HTTP/1.1\r\nHo")
        assert line.recv(100) == b""


@pytest.mark.parametrize(("behind_proxy", "client"), [(False, "127.0.0.1"), (True, "9.9.9.9")])
def test_nobody_says_who_he_is_unless_a_proxy_does(behind_proxy: bool, client: str) -> None:
    seen: list[str] = []

    async def ask(*_: Any, **__: Any) -> dict[str, Any]:
        seen.append(CLIENT.get())
        return {"text": "{}"}

    def on_app(app: Any) -> None:
        app.state.pool.ask = ask

    with serving(Settings(port=0, workers=1, behind_proxy=behind_proxy), {}, on_app) as address:
        connection = http.client.HTTPConnection(*address, timeout=120)
        headers = {"x-forwarded-for": "1.1.1.1, 9.9.9.9", "content-type": "application/json"}
        connection.request("POST", "/api/predict", b'{"model": "timm:x"}', headers)
        assert connection.getresponse().status == 200
        connection.close()
    assert seen == [client]


def test_many_files_may_be_open() -> None:
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(1000, limits[0]), limits[1]))
        allow_open_files()
        assert resource.getrlimit(resource.RLIMIT_NOFILE)[0] == min(4096, limits[1])
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)


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
