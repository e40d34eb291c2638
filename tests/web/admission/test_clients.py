"""One client takes its share, and there is always room for another."""

import pytest

from foretell.web.admission.clients import UNKNOWN, Shares, client_of


def fill(shares: Shares, client: str) -> int:
    while shares.allows(client):
        shares.take(client)
    return shares.of(client)


def test_a_client_takes_what_is_free_and_leaves_room_for_the_next() -> None:
    shares = Shares(64)
    assert [fill(shares, client) for client in "abcdef"] == [32, 16, 8, 4, 2, 1]
    assert not shares.full
    assert shares.largest() == "a"


def test_places_come_back_and_addresses_are_forgotten() -> None:
    shares = Shares(4)
    with shares.hold("a"):
        assert (shares.taken, shares.of("a")) == (1, 1)
    assert (shares.taken, shares.largest()) == (0, None)


@pytest.mark.parametrize(
    ("peer", "said", "behind_proxy", "client"),
    [
        ("10.0.0.1", "1.1.1.1", False, "10.0.0.1"),  # anyone can say so
        ("10.0.0.1", "6.6.6.6, 1.1.1.1", True, "1.1.1.1"),
        ("10.0.0.1", "", True, "10.0.0.1"),
        ("10.0.0.1", "nonsense", True, "10.0.0.1"),
        ("::ffff:10.0.0.1", "", False, "10.0.0.1"),
        ("2001:db8:1:2:3:4:5:6", "", False, "2001:db8:1:2::"),
        ("testclient", "", False, "testclient"),
        (None, "", False, UNKNOWN),
    ],
)
def test_the_address_of_a_client(peer: str | None, said: str, behind_proxy: bool, client: str) -> None:
    headers = {"x-forwarded-for": said} if said else {}
    assert client_of(peer, headers, behind_proxy=behind_proxy) == client
