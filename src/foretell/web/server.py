"""Web: the server process. It listens at one address, disconnects slow clients, and cleans up at its end."""

import asyncio
import socket
from collections.abc import Callable

import h11
import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from foretell.errors import InputError
from foretell.web.api import make_app
from foretell.web.settings import Settings

_MAX_CONNECTIONS = 512
_GRACE_S = 5.0


class TimeoutProtocol(H11Protocol):
    """Closes a connection whose request does not arrive in time.

    The application sees a request only when its headers are complete, and uvicorn has no timeout before that: without
    this, clients that send nothing would use up all connections.
    """

    timeout_s = 60.0
    _timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Start the timer of a new connection."""
        super().connection_made(transport)
        self._start_timer()

    def data_received(self, data: bytes) -> None:
        """Stop the timer once the request is complete, start it for the next one."""
        super().data_received(data)
        if self.conn.their_state not in (h11.IDLE, h11.SEND_BODY):
            self._stop_timer()
        elif self._timer is None:
            self._start_timer()

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop the timer of a closed connection."""
        self._stop_timer()
        super().connection_lost(exc)

    def _start_timer(self) -> None:
        self._timer = self.loop.call_later(self.timeout_s, self.transport.close)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


class _Server(uvicorn.Server):
    """Calls a function once it accepts connections."""

    def __init__(self, config: uvicorn.Config, on_started: Callable[[], None]) -> None:
        super().__init__(config)
        self._on_started = on_started

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Start, then call the function."""
        await super().startup(sockets)
        self._on_started()


def serve(settings: Settings, on_started: Callable[[str], None]) -> None:
    """Serve until a signal ends it; ``on_started`` gets the address, with the actual port if 0 was requested."""
    with listen(settings.host, settings.port) as listener:
        host, port = listener.getsockname()[:2]
        app = make_app(settings)
        # Longer than the timeout of the application, which answers with a reason; this one only closes the connection.
        protocol = type("Timeout", (TimeoutProtocol,), {"timeout_s": settings.timeout_s + _GRACE_S})
        config = uvicorn.Config(
            app,
            http=protocol,
            ws="none",
            loop="asyncio",
            log_level="error",
            access_log=False,  # an address may contain the token
            server_header=False,
            limit_concurrency=_MAX_CONNECTIONS,
            timeout_graceful_shutdown=int(_GRACE_S),
        )
        try:
            _Server(config, lambda: on_started(f"http://{f'[{host}]' if ':' in host else host}:{port}")).run([listener])
        finally:
            app.state.queue.uploads.close()


def listen(host: str, port: int) -> socket.socket:
    """A listening socket. It is opened first, so that an address in use is reported before heavy libraries load."""
    try:
        return socket.create_server((host, port), family=socket.AF_INET6 if ":" in host else socket.AF_INET)
    except OSError as error:
        reason = error.strerror or error
        raise InputError(f"Cannot listen at {host}:{port}: {reason}. Choose another --host or --port.") from error
