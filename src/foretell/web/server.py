"""Web: the server itself: one address, clients that do not finish a request are hung up on, and a clean end."""

import asyncio
import socket
from collections.abc import Callable

import h11
import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from foretell.errors import InputError
from foretell.web.api import make_app
from foretell.web.settings import Settings

_MOST_CONNECTIONS = 512
_GRACE_S = 5.0


class PatientProtocol(H11Protocol):
    """Waits for a request for so long and no longer: its application learns of it only when its head is complete."""

    patience_s = 60.0
    _timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Begin to wait."""
        super().connection_made(transport)
        self._wait()

    def data_received(self, data: bytes) -> None:
        """Wait on, unless the request is complete."""
        super().data_received(data)
        if self.conn.their_state not in (h11.IDLE, h11.SEND_BODY):
            self._rest()
        elif self._timer is None:
            self._wait()

    def connection_lost(self, exc: Exception | None) -> None:
        """Nothing to wait for."""
        self._rest()
        super().connection_lost(exc)

    def _wait(self) -> None:
        self._timer = self.loop.call_later(self.patience_s, self.transport.close)

    def _rest(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


class _Server(uvicorn.Server):
    """Says where it listens once it does."""

    def __init__(self, config: uvicorn.Config, said: Callable[[], None]) -> None:
        super().__init__(config)
        self._said = said

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Start, then tell."""
        await super().startup(sockets)
        self._said()


def serve(settings: Settings, say: Callable[[str], None]) -> None:
    """Serve until told to end; ``say`` gets the address, with the port that was really taken."""
    with listen(settings.host, settings.port) as line:
        host, port = line.getsockname()[:2]
        app = make_app(settings)
        # longer than the application waits: it gives the reason
        patient = type("Patient", (PatientProtocol,), {"patience_s": settings.timeout_s + _GRACE_S})
        config = uvicorn.Config(
            app,
            http=patient,
            ws="none",
            loop="asyncio",
            log_level="error",
            access_log=False,  # a token may stand in an address
            server_header=False,
            limit_concurrency=_MOST_CONNECTIONS,
            timeout_graceful_shutdown=int(_GRACE_S),
        )
        try:
            _Server(config, lambda: say(f"http://{f'[{host}]' if ':' in host else host}:{port}")).run([line])
        finally:
            app.state.queue.uploads.close()


def listen(host: str, port: int) -> socket.socket:
    """A line at an address, before anything heavy is loaded."""
    try:
        return socket.create_server((host, port), family=socket.AF_INET6 if ":" in host else socket.AF_INET)
    except OSError as error:
        reason = error.strerror or error
        raise InputError(f"Cannot listen at {host}:{port}: {reason}. Choose another --host or --port.") from error
