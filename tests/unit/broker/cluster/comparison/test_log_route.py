"""The log comes from the master that was compared with: by the address that the name servers tell,
or because that master lists the connection."""

from __future__ import annotations

import asyncio

import pytest

from aerobee.broker.cluster.comparison import log_route
from aerobee.broker.cluster.comparison.comparing import RefusalKind
from aerobee.broker.cluster.comparison.log_route import other_pair
from aerobee.broker.cluster.comparison.master_requests import split_peer
from aerobee.broker.cluster.registration.master_address import MasterAddress
from aerobee.config.model import Settings

NAMES = "ns:9876"
OWN = ("192.0.2.9", 40_000)


class Compared:
    """A master that lists the connection at the look `listed_at`, if it `tells` of slaves."""

    def __init__(self, host: str, listed_at: int | None = None, *, tells: bool = True) -> None:
        self.peer = (host, 10911)
        self.looks = 0
        self._listed_at = listed_at
        self._tells = tells

    async def has_connection(self, own: tuple[str, int]) -> bool | None:
        assert own == OWN
        self.looks += 1
        return self.looks == self._listed_at if self._tells else None


class Connection:
    """The slave's connection to a port for slaves."""

    def __init__(self, host: str, port: int = 10912) -> None:
        self.own = OWN
        self.peer = (host, port)
        self.closed: asyncio.Future[str] = asyncio.get_running_loop().create_future()


def known(told: str | None = None, given: str = "given.example:10912") -> MasterAddress:
    found = MasterAddress(Settings.for_tests(ha_master_address=given), [NAMES])
    if told is not None:
        found.heard(NAMES, "192.0.2.1:10911", told)
    return found


@pytest.fixture(autouse=True)
def _at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_route, "_LOOK_S", 0.0)


@pytest.mark.parametrize(
    ("told", "peer"),
    [
        ("192.0.2.1:10912", ("192.0.2.1", 10912)),
        ("localhost:10912", ("127.0.0.1", 10912)),
        ("127.0.0.1:10912", ("::1", 10912)),
        # brokerIP2 is an address that this slave does not go by; the compared host is the same.
        ("10.9.9.9:10912", ("192.0.2.1", 10912)),
    ],
)
async def test_the_address_that_is_told_is_the_masters(told: str, peer: tuple[str, int]) -> None:
    master = Compared("192.0.2.1")
    assert await other_pair(master, Connection(*peer), known(told)) is None
    assert master.looks == 0


@pytest.mark.parametrize(
    "peer", [("192.0.2.2", 10912), ("192.0.2.1", 20912), ("192.0.2.1", 10911), ("::1", 10912)]
)
async def test_another_address_is_refused_unless_the_master_lists_the_connection(
    peer: tuple[str, int],
) -> None:
    told = known("192.0.2.1:10912")
    assert await other_pair(Compared("192.0.2.1", listed_at=3), Connection(*peer), told) is None
    for tells in (True, False):
        master = Compared("192.0.2.1", tells=tells)
        found = await other_pair(master, Connection(*peer), told)
        assert found is not None
        assert found.kind is RefusalKind.OTHER_PAIR
        for part in ("given.example:10912", "192.0.2.1:10912", "another pair", "brokerIP2"):
            assert part in found.text
        assert ("RocketMQ 4.9" in found.text) is not tells


async def test_without_an_address_that_is_told_rocketmq_49_has_it_one_above() -> None:
    master = Compared("192.0.2.1", tells=False)
    assert await other_pair(master, Connection("192.0.2.1"), known()) is None
    found = await other_pair(master, Connection("192.0.2.1", 20912), known())
    assert found is not None
    assert "no name server tells" in found.text
    # A master that tells is believed, whatever its port is.
    ours = Compared("192.0.2.1", listed_at=1)
    assert await other_pair(ours, Connection("192.0.2.1", 20912), known()) is None
    assert await other_pair(Compared("192.0.2.1"), Connection("192.0.2.1"), known()) is not None


async def test_a_connection_that_has_ended_is_not_judged() -> None:
    connection = Connection("192.0.2.2")
    connection.closed.set_result("the master has closed it")
    assert await other_pair(Compared("192.0.2.1"), connection, known("192.0.2.1:10912")) is None


async def test_an_address_that_the_name_servers_told_needs_no_look() -> None:
    told = known("192.0.2.1:10912", given="")
    assert await other_pair(Compared("192.0.2.1"), Connection("192.0.2.2"), told) is None


def test_peers_are_read_as_rocketmq_and_ours_write_them() -> None:
    assert split_peer("/10.0.0.3:4001") == split_peer("10.0.0.3:4001") == ("10.0.0.3", 4001)
    assert split_peer("[2001:db8::1]:4001") == ("2001:db8::1", 4001)
    assert split_peer("/[2001:db8:0:0:0:0:0:1]:4001") == ("2001:db8:0:0:0:0:0:1", 4001)
    assert split_peer("nothing") == ("", 0)
