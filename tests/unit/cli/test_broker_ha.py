"""`aerobee broker ha`: which slave is which, and what is shown of brokers that do not tell."""

from __future__ import annotations

import pytest

from aerobee.cli.cluster.replication import _Asked, _Row, _rows
from aerobee.client.admin import BrokerHa
from aerobee.client.errors import NetworkError, RequestRefused
from aerobee.protocol.bodies.ha_status import HaStatus, MasterStatus, RefusedSlave, SlaveStatus

MASTER = "10.0.0.1:10911"


def seen(address: str, acknowledged: int, *, in_sync: bool = True) -> SlaveStatus:
    return SlaveStatus(address, acknowledged, 1000 - acknowledged, in_sync, 0, 1000)


def of_master(*slaves: SlaveStatus) -> _Asked:
    return _master(slaves, copies=sum(one.in_sync for one in slaves))


def _master(
    slaves: tuple[SlaveStatus, ...], copies: int, refused: tuple[RefusedSlave, ...] = ()
) -> _Asked:
    status = HaStatus(1000, slaves, copies=copies, refused=refused)
    return _Asked(0, MASTER, BrokerHa(1000, status), None)


def of_slave(
    broker_id: int,
    host: str,
    end: int,
    *,
    connected: bool = True,
    problem: str = "",
    refusal: str = "",
) -> _Asked:
    connected = connected and not refusal
    seen = MasterStatus("10.0.0.1:10912", connected, end, 0, 0, 0, 0, problem, refusal)
    status = HaStatus(master=seen)
    return _Asked(broker_id, f"{host}:10911", BrokerHa(end, status), None)


def shown(*asked: _Asked) -> list[tuple[object, ...]]:
    """Without name and address."""
    return [(one.id, one.role, *one.shown[4:]) for one in _rows("a", list(asked))]


def test_slaves_are_told_by_their_hosts() -> None:
    found = shown(
        of_master(seen("/10.0.0.3:4001", 10, in_sync=False), seen("10.0.0.2:4000", 900)),
        of_slave(1, "10.0.0.2", 950),
        of_slave(2, "10.0.0.3", 10),
    )
    assert found == [
        (0, "master", 1000, None, None, "1 of 2 slaves near enough"),
        (1, "slave", 950, 900, 100, "near enough"),
        (2, "slave", 10, 10, 990, "too far behind to count as a copy"),
    ]


def test_the_only_slave_may_come_from_another_address() -> None:
    assert shown(of_master(seen("192.168.7.7:4000", 1000)), of_slave(1, "10.0.0.2", 1000))[1:] == [
        (1, "slave", 1000, 1000, 0, "level")
    ]


def test_a_slave_that_has_only_connected_has_reported_nothing() -> None:
    found = shown(of_master(seen("10.0.0.2:4000", 0, in_sync=False)), of_slave(1, "10.0.0.2", 0))
    assert found[1:] == [(1, "slave", 0, 0, 1000, "connected, has reported nothing")]


def test_slaves_of_one_host_are_not_told_apart() -> None:
    found = shown(
        of_master(seen("10.0.0.2:4000", 900), seen("10.0.0.2:4001", 800)),
        of_slave(1, "10.0.0.2", 900),
        of_slave(2, "10.0.0.2", 800, connected=False),
    )
    assert found[1:] == [
        (1, "slave", 900, None, 100, "follows"),
        (2, "slave", 800, None, 200, "not connected to its master"),
        (None, "slave", None, 900, 100, "near enough, by its connection"),
        (None, "slave", None, 800, 200, "near enough, by its connection"),
    ]


@pytest.mark.parametrize(
    ("copies", "text"), [(1, "together 1 copy: those of one address count once"), (2, "")]
)
def test_slaves_of_one_address_are_shown_as_the_copies_that_they_count_as(
    copies: int, text: str
) -> None:
    slaves = seen("10.0.0.2:4000", 900), seen("10.0.0.2:4001", 800)
    (state,) = [row[-1] for row in shown(_master(slaves, copies)) if row[1] == "master"]
    assert state == "2 of 2 slaves near enough" + (f", {text}" if text else "")


def test_a_slave_that_is_ahead_has_no_lag_and_says_how_far_it_is_ahead() -> None:
    ahead = of_slave(1, "10.0.0.2", 1100, problem="has messages that", refusal="ahead")
    state = "does not follow, 100 bytes ahead of its master"
    # The connection of another slave is not taken for its own.
    for master in (of_master(), of_master(seen("10.0.0.9:4000", 1000))):
        assert shown(master, ahead)[1] == (1, "slave", 1100, None, None, state)


@pytest.mark.parametrize("end", [900, 1000, 1100])
def test_logs_that_differ_have_no_lag(end: int) -> None:
    """Their ends say nothing of each other, whichever is larger."""
    for kind in ("differs", "other_pair"):
        differs = of_slave(1, "10.0.0.2", end, problem="differs from", refusal=kind)
        assert shown(of_master(), differs)[1] == (1, "slave", end, None, None, "does not follow")


def test_who_is_not_connected_who_is_refused_and_who_does_not_follow_are_told_apart() -> None:
    silent = _Asked(0, MASTER, None, NetworkError("no connection"))
    away = of_slave(1, "10.0.0.2", 900, connected=False, problem="cannot connect")
    for master in (silent, of_master()):
        assert shown(master, away)[1][-1] == "not connected to its master"
    refusing = of_slave(1, "10.0.0.2", 900, problem="of the cluster", refusal="cluster")
    for master in (silent, of_master()):
        assert shown(master, refusing)[1][-1] == "does not follow"
    refused = _master((), 0, (RefusedSlave("10.0.0.2", "it is not admitted"),))
    assert shown(refused, away)[1][-1] == "refused by its master"
    # Nobody has compared these logs, so nobody knows whether one is ahead.
    past = of_slave(1, "10.0.0.2", 1100, connected=False, problem="cannot connect")
    assert shown(of_master(), past)[1][-2:] == (None, "not connected to its master")


def test_reasons_stand_beside_those_whom_they_are_about() -> None:
    refused = RefusedSlave("10.0.0.2", "it is not admitted"), RefusedSlave("10.0.0.3", "no")
    stranger = of_slave(1, "10.0.0.2", 10, connected=False, problem="closed the connection")
    rows = _rows("a", [_master((), 0, refused), stranger])
    assert [row.reason for row in rows] == [
        "slave 10.0.0.2 was refused: it is not admitted; slave 10.0.0.3 was refused: no",
        "closed the connection",
    ]
    rows = _rows("a", [of_master(seen("10.0.0.2:4000", 10)), of_slave(1, "10.0.0.2", 10)])
    assert [row.reason for row in rows] == [None, None]


def test_a_connection_without_a_registered_slave_is_shown() -> None:
    assert _rows("a", [of_master(seen("10.0.0.9:4000", 1000))])[1:] == [
        _Row("a", None, "slave", "10.0.0.9:4000", None, 1000, 0, "level, by its connection")
    ]


def test_rocketmq_49_tells_the_ends_only() -> None:
    master = _Asked(0, MASTER, BrokerHa(1000, None), None)
    slave = _Asked(1, "10.0.0.2:10911", BrokerHa(900, None), None)
    assert shown(master, slave) == [
        (0, "master", 1000, None, None, "does not tell of its slaves"),
        (1, "slave", 900, None, 100, "does not tell"),
    ]
    # A slave of ours says whether it follows. Its end may have passed its master's, which was asked
    # first.
    assert shown(master, of_slave(1, "10.0.0.2", 1100))[1:] == [
        (1, "slave", 1100, None, 0, "follows")
    ]


def test_a_slave_of_rocketmq_is_known_to_a_master_of_ours() -> None:
    slave = _Asked(1, "10.0.0.2:10911", BrokerHa(1000, None), None)
    assert shown(of_master(seen("10.0.0.2:4000", 1000)), slave)[1:] == [
        (1, "slave", 1000, 1000, 0, "level")
    ]
    assert shown(of_master(), slave)[1:] == [
        (1, "slave", 1000, None, 0, "not connected to its master")
    ]


def test_who_does_not_answer_is_in_the_list() -> None:
    silent = _Asked(0, MASTER, None, NetworkError("no connection"))
    assert shown(silent, of_slave(1, "10.0.0.2", 900)) == [
        (0, "master", None, None, None, "does not answer"),
        (1, "slave", 900, None, None, "follows"),
    ]
    gone = _Asked(1, "10.0.0.2:10911", None, NetworkError("no connection"))
    assert shown(of_master(), gone)[1:] == [(1, "slave", None, None, None, "does not answer")]
    # RocketMQ's fails on the question for figures in its first seconds.
    failing = _Asked(
        1, "10.0.0.2:10911", None, RequestRefused("no", address="a", code=1, remark="")
    )
    assert shown(of_master(), failing)[1:] == [
        (1, "slave", None, None, None, "answers with an error")
    ]
    # Slaves alone: their master is gone.
    assert shown(of_slave(1, "10.0.0.2", 900, connected=False)) == [
        (1, "slave", 900, None, None, "not connected to its master")
    ]


def test_a_slave_that_has_deleted_what_its_master_has_says_so_below_the_table() -> None:
    asked = [
        _Asked(0, MASTER, BrokerHa(1000, None, 100), None),
        _Asked(1, "10.0.0.2:10911", BrokerHa(1000, None, 400), None),
        _Asked(2, "10.0.0.3:10911", BrokerHa(1000, None, 100), None),
    ]
    _, full, whole = _rows("a", asked)
    assert full.reason is not None
    assert "begins at 400, its master's at 100" in full.reason
    assert "the oldest 300 bytes" in full.reason
    assert whole.reason is None
