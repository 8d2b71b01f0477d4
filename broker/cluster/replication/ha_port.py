"""The port where slaves take the log (protocol/WIRE.md 10): admits them, serves them, watches them.

An admitted peer gets every message, and its reports let SYNC_MASTER sends be answered, so
admission is by address (`trust`), and few connections are taken, in all and from one address. The
first byte tells TLS from a slave in the clear, where TLS is taken at all.

At the end of each turn that has appended, `appended` sends to all slaves at the end of the log.
Refused slaves are remembered by address for a while: readiness says what a person has to do.

Loop thread only.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple, Protocol

from aerobee.broker.cluster.replication.slave_connection import SlaveConnection
from aerobee.broker.cluster.replication.wires import PlainWire, SealedWire, Wire
from aerobee.broker.routing.role import Role
from aerobee.config.model import Settings
from aerobee.protocol.replication import BadReplication
from aerobee.remoting.connection_stats import ServerStats
from aerobee.remoting.listening.arrivals import Arrivals, ArrivalTimes, Encryption
from aerobee.remoting.listening.server import Listening
from aerobee.remoting.peers import address_text
from aerobee.remoting.tls.tls_session import TlsSession
from aerobee.store.log.replication.ages import EndTimes
from aerobee.store.log.replication.feed import CannotFollow, Feed, FollowError
from aerobee.summed_log import SummedLog

log = logging.getLogger("aerobee.broker.replication")

#: Slaves of one master, and connections from one address: a slave that comes anew may be here
#: twice for a moment, and several may share an address.
MOST_SLAVES = 16
MOST_OF_ADDRESS = 4
# Refused slaves that are remembered, and for how long. They come again every few seconds.
_MOST_REFUSED = 16
_REFUSED_S = 60.0
# A slave of RocketMQ says nothing for the first five seconds.
_SILENT_S = 20.0
_LOOK_S = 1.0
_PAUSE_S = 1.0
# Lines of one kind that a slave's host gets in a minute before they are summed.
_AT_ONCE = 5
# Why a connection is not taken, as the kinds of refusals are called beside those of the feed.
_UNTRUSTED = "untrusted"
_NO_MASTER = "no_master"
_CROWDED = "crowded"
_NO_SLAVE = "no_slave"
_REFUSALS = (*(kind.value for kind in FollowError), _UNTRUSTED, _CROWDED, _NO_MASTER, _NO_SLAVE)


class Waiting(Protocol):
    """The answers that wait for slaves (`appending/answers.py`)."""

    def go_on(self) -> None:
        """Send the answers that need not wait any longer."""


class _Refused(NamedTuple):
    text: str
    at: float


class SlaveFigures(NamedTuple):
    """One slave, for people and for metrics."""

    #: Its address; with the port only where two are connected from one address.
    address: str
    connection: SlaveConnection
    #: The bytes of the log that it has not reported, and for how long the log has had the first of
    #: them, in seconds.
    behind: int
    age_s: float
    is_near: bool


class HaPort:
    """The slaves of this broker. Made when the broker is built; `start` opens the port."""

    def __init__(
        self,
        settings: Settings,
        loop: asyncio.AbstractEventLoop,
        feed: Feed,
        answers: Waiting,
        *,
        trust: Callable[[str], bool],
        role: Role,
    ) -> None:
        """`trust` says whether a slave may come from an address. A slave has no slaves."""
        self._loop = loop
        self._settings = settings
        self._feed = feed
        self._answers = answers
        self._trust = trust
        self._role = role
        self.stats = ServerStats()
        self._listening = Listening("slaves", self.stats, _PAUSE_S)
        self._arrivals: Arrivals | None = None
        self._block_bytes = settings.ha_transfer_batch_bytes
        # Not the loop's own threads: a slave that does not read may keep one for long.
        self._workers = ThreadPoolExecutor(MOST_SLAVES, thread_name_prefix="aerobee-slave")
        #: The slaves that are connected.
        self.slaves: set[SlaveConnection] = set()
        self._refused: dict[str, _Refused] = {}
        #: Slaves that were not served, by why.
        self.refusals: Counter[str] = Counter()
        self._ends = EndTimes()
        self._sent_before = 0
        # A slave that restarts some times says so in order.
        self._sums = SummedLog(loop.time, call_later=loop.call_later, at_once=_AT_ONCE)

    # --- the port -----------------------------------------------------------------------------

    async def start(self, host: str, port: int, encryption: Encryption | None = None) -> int:
        """Listen; returns the port (0 picks a free one). Raises `RemotingListenError`."""
        if encryption is not None:
            times = ArrivalTimes(_SILENT_S, _LOOK_S)
            self._arrivals = Arrivals(encryption, times, self, self.stats.tls, "slaves")
        return await self._listening.open(host, port, self)

    async def close(self) -> None:
        """Listen no more, and end all connections."""
        await self._listening.close()
        if self._arrivals is not None:
            await self._arrivals.close()
        for slave in list(self.slaves):
            slave.close("this broker stops")
        self._workers.shutdown(wait=False)
        self._sums.close()

    @property
    def port(self) -> int:
        """The port listened on, 0 before `start`."""
        return self._listening.ports[0] if self._listening.ports else 0

    async def take_accepted(self, accepted: socket.socket, peer: tuple[str, int]) -> None:
        """Refuse a socket, serve it, or see first whether it is TLS."""
        self.stats.accepted += 1
        found = self._reason_against(peer[0])
        if found is not None:
            accepted.close()
            why, reason = found
            self.stats.refused_address += 1
            self.refusals[why] += 1
            if why == _UNTRUSTED:
                self._remember(peer[0], f"it is not admitted: {reason}")
            elif why == _CROWDED:
                self._remember(peer[0], f"there are too many connections: {reason}")
            kind = "refused", peer[0]
            self._sums.add(
                log, logging.WARNING, kind, "slave refused peer=%s why=%s", *peer[:1], reason
            )
            return
        accepted.setblocking(False)
        accepted.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if self._arrivals is not None:
            self._arrivals.take(accepted, peer)
        else:
            await self.open_plain(accepted, peer)

    def _reason_against(self, host: str) -> tuple[str, str] | None:
        if self._role.is_slave:
            return _NO_MASTER, "this broker is a slave itself: its master has the log to copy"
        if not self._trust(host):
            return _UNTRUSTED, (
                "its address is not among haSlaveAddresses, or without these not among the white "
                "addresses of plain_acl.yml"
            )
        arriving = 0 if self._arrivals is None else len(self._arrivals)
        if len(self.slaves) + arriving >= MOST_SLAVES:
            return _CROWDED, f"{MOST_SLAVES} slaves are connected"
        of_address = sum([slave.peer[0] == host for slave in self.slaves])
        if self._arrivals is not None:
            of_address += self._arrivals.count_of(host)
        if of_address >= MOST_OF_ADDRESS:
            return _CROWDED, f"{MOST_OF_ADDRESS} connections of its address are open"
        return None

    async def open_plain(self, arrived: socket.socket, peer: tuple[str, int]) -> None:
        """Serve a plain socket from now on."""
        self._serve(PlainWire(arrived), peer)

    def open_tls(self, arrived: TlsSession, peer: tuple[str, int]) -> None:
        """Serve a socket from now on whose handshake is done."""
        self._serve(SealedWire(arrived), peer)

    def _serve(self, wire: Wire, peer: tuple[str, int]) -> None:
        slave = SlaveConnection(
            self._loop,
            wire,
            peer,
            self._feed.admit(peer[0]),
            self,
            block_bytes=self._block_bytes,
            workers=self._workers,
        )
        self.slaves.add(slave)
        self.stats.open += 1
        kind = "connected", peer[0]
        self._sums.add(log, logging.INFO, kind, "slave connected peer=%s", address_text(peer))

    # --- turns --------------------------------------------------------------------------------

    def appended(self) -> None:
        """Messages were appended in the turn that ends: send them."""
        # A slave whose socket is gone leaves the set meanwhile.
        for slave in tuple(self.slaves):
            slave.go_on()
        if not self._feed.enough:
            # Nobody is waited for.
            self._answers.go_on()

    def look(self) -> None:
        """Send signs of life, and end the connections of slaves that have gone silent. Called once
        a second or so."""
        now = self._loop.time()
        sign_s = self._settings.ha_heartbeat_interval_ms / 1000
        silent_s = self._settings.ha_housekeeping_interval_ms / 1000
        self._ends.note(self._feed.end, now)
        for slave in list(self.slaves):
            slave.look(now, sign_s=sign_s, silent_s=silent_s)
        self._feed.settle()

    # --- what the connections tell ------------------------------------------------------------

    def reported(self) -> None:
        """A slave has reported: answers may leave."""
        self._answers.go_on()

    def refused(self, connection: SlaveConnection, error: CannotFollow) -> None:
        """A slave cannot be served: note what a person has to do."""
        self.refusals[error.kind.value] += 1
        host = connection.peer[0]
        self._remember(host, str(error))
        self._sums.add(
            log,
            logging.ERROR,
            (host, error.kind),
            "slave cannot be served peer=%s offset=%d why=%s",
            address_text(connection.peer),
            error.log_offset,
            error,
        )

    def confused(self, connection: SlaveConnection, error: BadReplication) -> None:
        """The peer is no slave: whoever looks for what calls here finds a line and a count."""
        self.refusals[_NO_SLAVE] += 1
        host = connection.peer[0]
        kind = "no slave", host
        self._sums.add(log, logging.WARNING, kind, "no slave peer=%s why=%s", host, error)

    def _remember(self, host: str, text: str) -> None:
        if host in self._refused or len(self._refused) < _MOST_REFUSED:
            self._refused[host] = _Refused(text, self._loop.time())

    def ended(self, connection: SlaveConnection, reason: str) -> None:
        """A connection has ended."""
        peer = address_text(connection.peer)
        kind = "gone", connection.peer[0]
        self._sums.add(log, logging.INFO, kind, "slave gone peer=%s why=%s", peer, reason)
        self.slaves.discard(connection)
        self._sent_before += connection.sent_bytes
        self.stats.open -= 1
        self._answers.go_on()

    # --- for people ---------------------------------------------------------------------------

    @property
    def sent_bytes(self) -> int:
        """Bytes of the log that slaves were sent, those that are gone included."""
        return self._sent_before + sum([slave.sent_bytes for slave in self.slaves])

    @property
    def near(self) -> int:
        """How many slaves are near enough to count as copies."""
        return self._feed.near

    def all_refusals(self) -> dict[str, int]:
        """Slaves that were not served, by why: each from the start on, so that its first is an
        increase."""
        return {why: self.refusals[why] for why in _REFUSALS}

    def figures(self) -> list[SlaveFigures]:
        """The slaves, by their addresses."""
        now, near = self._loop.time(), self._settings.ha_slave_behind_max_bytes
        of_address = Counter([slave.peer[0] for slave in self.slaves])
        found = []
        for slave in self.slaves:
            follower, host = slave.follower, slave.peer[0]
            found.append(
                SlaveFigures(
                    host if of_address[host] == 1 else address_text(slave.peer),
                    slave,
                    follower.behind,
                    self._ends.age(follower.reported, now) if follower.behind else 0.0,
                    follower.asked and follower.behind < near,
                )
            )
        return sorted(found, key=lambda one: one.address)

    def silent_peers(self) -> list[tuple[str, int]]:
        """The connections that have sent nothing yet, where they may be TLS or not."""
        return [] if self._arrivals is None else self._arrivals.peers()

    def refused_slaves(self) -> list[tuple[str, str]]:
        """The addresses of slaves that were refused in the last minute, and why."""
        since = self._loop.time() - _REFUSED_S
        self._refused = {host: one for host, one in self._refused.items() if one.at >= since}
        return sorted((host, one.text) for host, one in self._refused.items())

    def problem(self) -> str | None:
        """Why slaves were refused in the last minute, for readiness; None if no slave was."""
        refused = self.refused_slaves()
        return "; ".join(f"slave {host}: {text}" for host, text in refused) or None
