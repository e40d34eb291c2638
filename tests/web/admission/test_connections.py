"""Connections that only wait make room; health checks always find a place."""

from dataclasses import dataclass

from foretell.web.admission.connections import Connections


@dataclass(eq=False)
class Line:
    client: str
    idle: bool = True
    closed: bool = False

    def hang_up(self) -> None:
        self.closed = True


def connect(connections: Connections, *lines: Line) -> list[bool]:
    return [connections.add(line) for line in lines]


def test_a_client_with_too_many_loses_its_oldest_idle_one() -> None:
    connections = Connections(8, 2)
    other, busy = Line("other"), Line("one", idle=False)
    idle = [Line("one") for _ in range(20)]
    assert connect(connections, other, busy, *idle) == [False] * 22
    assert not other.closed
    assert not busy.closed
    still_open = [line for line in idle if not line.closed]
    assert still_open == idle[-len(still_open) :]
    assert len(connections) <= 8
    assert connections.hung_up == 20 - len(still_open)


def test_many_addresses_do_not_lock_others_out() -> None:
    connections = Connections(8, 2)
    swarm = [Line(str(number)) for number in range(100)]
    connect(connections, *swarm)
    assert len(connections) == 8
    assert [line.closed for line in swarm] == [True] * 92 + [False] * 8
    assert connect(connections, Line("new")) == [False]


def test_where_all_are_busy_a_new_one_is_crowded_and_still_open() -> None:
    connections = Connections(4, 2)
    busy = [Line(str(number), idle=False) for number in range(4)]
    assert connect(connections, *busy) == [False] * 4
    crowded = [Line("new", idle=False) for _ in range(2)]
    assert connect(connections, *crowded) == [True, True]
    beyond = Line("another", idle=False)
    assert connect(connections, beyond) == [True]
    assert beyond.closed
    assert not any(line.closed for line in [*busy, *crowded])
    connections.remove(crowded[0])
    connections.remove(crowded[0])  # twice does no harm
    last = Line("another")
    assert connect(connections, last) == [True]
    assert not last.closed


def test_behind_a_proxy_all_have_one_address() -> None:
    connections = Connections(4, 2, by_client=False)
    lines = [Line("proxy", idle=False) for _ in range(4)]
    assert connect(connections, *lines) == [False] * 4
