"""Web: the server process. It listens at one address, disconnects slow clients, and cleans up at its end."""

import asyncio
import gc
import resource
import socket
from collections.abc import Callable

import h11
import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from foretell.errors import InputError
from foretell.web.admission.clients import client_of
from foretell.web.admission.connections import Connections
from foretell.web.admission.middleware import CROWDED, HEAD_TIMEOUT_S
from foretell.web.api import make_app
from foretell.web.settings import Settings

_MAX_CONNECTIONS = 512
_RESERVED_CONNECTIONS = 64  # above that, for health checks
_MAX_OPEN_FILES = 4096
_GRACE_S = 5.0


class TimeoutProtocol(H11Protocol):
    """Closes a connection whose request does not arrive in time, or that has to make room for others.

    The application sees a request only when its headers are complete, and uvicorn has no timeout before that: without
    this, clients that send nothing would use up all connections.
    """

    head_timeout_s = HEAD_TIMEOUT_S
    body_timeout_s = 60.0
    all_connections = Connections(_MAX_CONNECTIONS, _RESERVED_CONNECTIONS)
    _timer: asyncio.TimerHandle | None = None
    _timed_state: object = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Start the timer of a new connection."""
        super().connection_made(transport)
        peer = self.client[0] if self.client else None
        self._entry = _Entry(self, client_of(peer, {}, behind_proxy=False))
        if self.all_connections.add(self._entry):
            self.app_state = {**self.app_state, CROWDED: True}
        self._set_timer()

    def data_received(self, data: bytes) -> None:
        """Stop the timer once the request is complete, start it for the next one."""
        super().data_received(data)
        self._set_timer()

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop the timer of a closed connection."""
        self._stop_timer()
        self.all_connections.remove(self._entry)
        super().connection_lost(exc)

    @property
    def answering(self) -> bool:
        """Whether a request is being answered."""
        return self.cycle is not None and not self.cycle.response_complete

    def _set_timer(self) -> None:
        state = self.conn.their_state
        if state is self._timed_state and self._timer is not None:
            return  # more of the same head or body: its time runs on
        self._stop_timer()
        self._timed_state = state
        if state is h11.IDLE or state is h11.SEND_BODY:
            timeout_s = self.head_timeout_s if state is h11.IDLE else self.body_timeout_s
            self._timer = self.loop.call_later(timeout_s, self.transport.close)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


class _Entry:
    """A connection in the list of all."""

    def __init__(self, protocol: TimeoutProtocol, client: str) -> None:
        self._protocol = protocol
        self.client = client

    @property
    def idle(self) -> bool:
        """Whether no request of it is being answered."""
        return not self._protocol.answering

    def hang_up(self) -> None:
        """Close the connection now, whatever is still to be sent."""
        self._protocol.transport.abort()


class _Server(uvicorn.Server):
    """Calls a function once it accepts connections."""

    def __init__(self, config: uvicorn.Config, on_started: Callable[[], None]) -> None:
        super().__init__(config)
        self._on_started = on_started

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Start, then call the function."""
        await super().startup(sockets)
        gc.freeze()  # libraries and page stay: a search for cycles would hold up all requests to visit them in vain
        self._on_started()


def serve(settings: Settings, on_started: Callable[[str], None]) -> None:
    """Serve until a signal ends it; ``on_started`` gets the address, with the actual port if 0 was requested."""
    with listen(settings.host, settings.port) as listener:
        host, port = listener.getsockname()[:2]
        app = make_app(settings)
        allow_open_files()
        # Longer than the timeout of the application, which answers with a reason; this one only closes the connection.
        limits = {
            "head_timeout_s": min(HEAD_TIMEOUT_S, settings.timeout_s + _GRACE_S),
            "body_timeout_s": settings.timeout_s + _GRACE_S,
            "all_connections": Connections(
                _MAX_CONNECTIONS, _RESERVED_CONNECTIONS, by_client=not settings.behind_proxy
            ),
        }
        protocol = type("Timeout", (TimeoutProtocol,), limits)
        config = uvicorn.Config(
            app,
            http=protocol,
            ws="none",
            loop="asyncio",
            log_level="error",
            access_log=False,  # an address may contain the token
            server_header=False,
            proxy_headers=False,  # the middleware reads them, where the settings say so
            timeout_graceful_shutdown=int(_GRACE_S),
        )
        try:
            _Server(config, lambda: on_started(f"http://{f'[{host}]' if ':' in host else host}:{port}")).run([listener])
        finally:
            app.state.queue.uploads.close()


def allow_open_files() -> None:
    """Raise the limit of open files where the system permits: each connection is one, and so is each large upload."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = _MAX_OPEN_FILES if hard == resource.RLIM_INFINITY else min(_MAX_OPEN_FILES, hard)
    if soft != resource.RLIM_INFINITY and soft < most:
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))


def listen(host: str, port: int) -> socket.socket:
    """A listening socket. It is opened first, so that an address in use is reported before heavy libraries load."""
    try:
        return socket.create_server((host, port), family=socket.AF_INET6 if ":" in host else socket.AF_INET)
    except OSError as error:
        reason = error.strerror or error
        raise InputError(f"Cannot listen at {host}:{port}: {reason}. Choose another --host or --port.") from error
