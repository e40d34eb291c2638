"""Web: the open connections. Those that only wait make room for others, and a few places are kept for health checks."""

from collections.abc import Iterator
from typing import Protocol

from foretell.web.admission.clients import Shares


class Connection(Protocol):
    """What is known about a connection."""

    client: str

    @property
    def idle(self) -> bool:
        """Whether no request of it is being answered: its head has not arrived, or it is between two requests."""

    def hang_up(self) -> None:
        """Close the connection now."""


class Connections:
    """All connections, oldest first.

    A client with more than its share loses its oldest idle connection. Where it has none, the new connection is
    crowded: it is told to wait, but health checks are answered. With ``by_client=False`` all come from one proxy.
    """

    def __init__(self, most: int, reserve: int, *, by_client: bool = True) -> None:
        self._reserve = reserve
        self._by_client = by_client
        self._shares = Shares(most)
        self._open: dict[Connection, None] = {}  # a dict, because it is in the order of arrival
        self.hung_up = 0

    def __len__(self) -> int:
        return len(self._open)

    def add(self, connection: Connection) -> bool:
        """Add a connection; return whether it is crowded."""
        fits = not self._shares.full and (not self._by_client or self._shares.allows(connection.client))
        self._open[connection] = None
        self._shares.take(connection.client)
        if fits:
            return False
        if self._hang_up_oldest(self._victims(connection)):
            return False
        if len(self._open) > self._shares.places + self._reserve:
            self._hang_up_oldest(iter([connection]))
        return True

    def remove(self, connection: Connection) -> None:
        """Forget a connection that is closed."""
        if connection in self._open:
            del self._open[connection]
            self._shares.take(connection.client, -1)

    def _victims(self, new: Connection) -> Iterator[Connection]:
        """The idle connections that may be closed for a new one."""
        if self._by_client and self._shares.of(new.client) > 1:
            yield from self._idle(new, new.client)
        if self._shares.taken > self._shares.places:
            yield from self._idle(new, self._shares.largest())
            yield from self._idle(new, None)

    def _idle(self, new: Connection, client: str | None) -> Iterator[Connection]:
        for connection in self._open:
            if connection is not new and connection.idle and client in (None, connection.client):
                yield connection

    def _hang_up_oldest(self, victims: Iterator[Connection]) -> bool:
        victim = next(victims, None)
        if victim is None:
            return False
        self.remove(victim)
        self.hung_up += 1
        victim.hang_up()
        return True
