"""Web: who asks, and what share of something one client may take.

A client is an address. It may take as many places as are free: alone it gets half of them, two such clients get a third
each, and there is always room for another one.
"""

import ipaddress
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar

UNKNOWN = "unknown"
CLIENT: ContextVar[str] = ContextVar("client", default=UNKNOWN)  # whose request the current task answers


class Shares:
    """A number of places, and how many of them each client has taken."""

    def __init__(self, places: int) -> None:
        self.places = places
        self.taken = 0
        self._taken_by: Counter[str] = Counter()

    def of(self, client: str) -> int:
        """How many places a client has taken."""
        return self._taken_by[client]

    @property
    def full(self) -> bool:
        """Whether no place is free."""
        return self.taken >= self.places

    def allows(self, client: str, places: int = 1) -> bool:
        """Whether a client may take more places.

        >>> shares = Shares(4)
        >>> shares.take("a", 2)
        >>> shares.allows("a"), shares.allows("b"), shares.allows("b", 3)
        (False, True, False)
        """
        return self._taken_by[client] + places <= self.places - self.taken

    def take(self, client: str, places: int = 1) -> None:
        """Take places, or give them back where the number is negative."""
        self.taken += places
        self._taken_by[client] += places
        if self._taken_by[client] <= 0:
            del self._taken_by[client]  # addresses come and go, and must not fill the memory

    @contextmanager
    def hold(self, client: str) -> Iterator[None]:
        """Take one place for a while."""
        self.take(client)
        try:
            yield
        finally:
            self.take(client, -1)

    def largest(self) -> str | None:
        """The client that has taken the most places."""
        return max(self._taken_by, key=self._taken_by.__getitem__, default=None)


def client_of(peer: str | None, headers: Mapping[str, str], *, behind_proxy: bool) -> str:
    """The address of a client: the peer of the connection, or what our own proxy says.

    A proxy appends the address that it sees to what the client has sent, so only the last address is to be believed.

    >>> client_of("10.0.0.1", {"x-forwarded-for": "1.1.1.1, 2.2.2.2"}, behind_proxy=True)
    '2.2.2.2'
    """
    said = headers.get("x-forwarded-for", "").rpartition(",")[2].strip() if behind_proxy else ""
    return _network(said) or _network(peer or "") or peer or UNKNOWN


def _network(text: str) -> str | None:
    """An address; of IPv6 the first half, because a client has all of the second."""
    try:
        address = ipaddress.ip_address(text.partition("%")[0])
    except ValueError:
        return None
    if isinstance(address, ipaddress.IPv4Address):
        return str(address)
    if address.ipv4_mapped is not None:
        return str(address.ipv4_mapped)
    return str(ipaddress.ip_network((address, 64), strict=False).network_address)
