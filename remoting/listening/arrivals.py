"""Accepted sockets whose first bytes are awaited: is it TLS, or a plain frame?

TLS and plain connections come to the same port. The first byte of a TLS handshake is 0x16, which no
frame within its limit begins with (protocol/WIRE.md 7.2). It is looked at without being taken, so
whoever serves the connection reads all of it. A server that takes no TLS has no arrivals.

    first byte -> plain: handed on, or closed where TLS is required
               -> 0x16: hello -> handshake -> handed on

Until a whole hello is there, an arrival is a descriptor and nothing else: the kernel keeps the
bytes and wakes us when the whole hello has come (SO_RCVLOWAT). Only then is TLS state made, so
thousands of half hellos cost no memory. Signing with the server's key is the dear part of a
handshake, a millisecond or several, and the peer has a say in which step signs: the server may have
to ask it for another hello. So each step waits for its turn: a slice of the loop's turn has a few
steps (decision 14), and connected peers are served between them. OpenSSL keeps some 50 KiB of a
handshake, so `handshakes.py` limits how many are under way.

Arrivals count in the limits of connections (`len`, `count_of`), end in time, and end with the
server. Loop thread only.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import ssl
from collections import Counter, deque
from collections.abc import Callable
from functools import partial
from time import perf_counter
from typing import Final, NamedTuple, Protocol, TypeAlias

from aerobee.remoting.connection_stats import TlsFailure, TlsStats
from aerobee.remoting.peers import address_text
from aerobee.remoting.tls.handshakes import Handshakes
from aerobee.remoting.tls.tls_session import TlsSession, TooManyRecords
from aerobee.remoting.turns import SLICE_S
from aerobee.summed_log import SummedLog

log = logging.getLogger("aerobee.remoting")

# Two handshakes of the usual two steps, of which the second is cheap. None begins when the slice is
# over: an RSA signature of 4096 bits alone takes 4 ms, and a turn has eight.
_STEPS_A_TURN: Final = 4
# 12 MiB of OpenSSL's.
_UNDER_WAY_MAX: Final = 256
# Seconds that a handshake is sure of while others of its address wait to begin: a peer at the other
# end of the world needs less, and 500 a second can be turned out.
_SURE_S: Final = 0.5
# Arrivals that are ended in one go because their time is over; others are served before the next.
_ENDED_AT_ONCE: Final = 64
# A line about failures of one kind comes at most so often, and counts those in between.
_REPORT_S: Final = 60.0
# The kernel's number for an open connection (tcp_states.h).
_ESTABLISHED: Final = 1
_HANDSHAKE: Final = 0x16
_CLIENT_HELLO: Final = 1
# A record has type, version, length; then its content, 2^14 bytes at most (RFC 8446, 5.1).
_RECORD_HEAD: Final = 5
_RECORD_MAX: Final = 1 << 14
# A hello has type, length; the least of them offers one cipher and nothing else (4.1.2).
_HELLO_HEAD: Final = 4
_HELLO_LEAST: Final = 45

_Peer: TypeAlias = tuple[str, int]


class Encryption(Protocol):
    """How a server takes TLS (`config/tls/certificates.py`)."""

    @property
    def required(self) -> bool:
        """Plain connections are closed."""

    @property
    def handshake_s(self) -> float:
        """Seconds for a hello, and again for the handshake behind it."""

    @property
    def context(self) -> ssl.SSLContext:
        """That of new connections: another one when the certificate has changed."""


class Host(Protocol):
    """Serves an arrival once it is handed on. It owns the socket from then on, and closes it when
    it raises OSError."""

    async def open_plain(self, arrived: socket.socket, peer: _Peer, /) -> None:
        """Serve a plain socket from now on."""

    def open_tls(self, arrived: TlsSession, peer: _Peer, /) -> None:
        """Serve a socket from now on whose handshake is done."""


class ArrivalTimes(NamedTuple):
    """Seconds: how long a plain peer may be silent, and between two looks at who is late."""

    silent_s: float
    look_s: float


class _Arrival:
    """One socket. `hello_bytes` is 0 until its first byte has said that it is TLS, `tls` None until
    its hello is whole."""

    __slots__ = ("deadline", "hello_bytes", "peer", "reads", "socket", "task", "tls", "writes")

    def __init__(self, accepted: socket.socket, peer: _Peer, deadline: float) -> None:
        self.socket = accepted
        self.peer = peer
        self.deadline = deadline
        self.hello_bytes = 0
        self.tls: TlsSession | None = None
        # Hands it on, if it is plain.
        self.task: asyncio.Task[None] | None = None
        # Whether the loop watches the socket for input, and for room to write.
        self.reads = self.writes = False


class Arrivals:
    """The arrivals of one server. Made on its loop."""

    def __init__(
        self, encryption: Encryption, times: ArrivalTimes, host: Host, stats: TlsStats, name: str
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._encryption = encryption
        self._times = times
        self._host = host
        self._stats = stats
        self._name = name
        # All that are not handed on yet, the longest here first.
        self._here: dict[_Arrival, None] = {}
        self._addresses: Counter[str] = Counter()
        # Those that are ready to begin their handshake, or for another step of it, are not watched
        # meanwhile.
        self._handshakes: Handshakes[_Arrival] = Handshakes(_UNDER_WAY_MAX, _SURE_S)
        self._to_shake: deque[_Arrival] = deque()
        self._shakes: asyncio.Handle | None = None
        # Wakes those that wait to begin; who ends, or comes, does so too.
        self._room: asyncio.TimerHandle | None = None
        self._opening: set[asyncio.Task[None]] = set()
        self._timer: asyncio.TimerHandle | None = None
        self._sums = SummedLog(self._loop.time, _REPORT_S, self._loop.call_later)

    def __len__(self) -> int:
        return len(self._here)

    def peers(self) -> list[tuple[str, int]]:
        """The other ends of all arrivals."""
        return [arrival.peer for arrival in self._here]

    def count_of(self, host: str) -> int:
        """Arrivals from one address."""
        return self._addresses[host]

    def take(self, accepted: socket.socket, peer: _Peer) -> None:
        """Own a socket from now on. It does not block."""
        silent_s = self._times.silent_s
        if self._encryption.required:
            # Nobody speaks first on a TLS port but the client.
            silent_s = min(silent_s, self._encryption.handshake_s)
        arrival = _Arrival(accepted, peer, self._loop.time() + silent_s)
        self._here[arrival] = None
        self._stats.arriving += 1
        self._addresses[peer[0]] += 1
        if self._timer is None:
            self._timer = self._loop.call_later(self._times.look_s, self._end_late)
        self._look(arrival)

    def end_longest(self) -> None:
        """Close the arrival that has been here longest, to make room. At least one arrival is
        here."""
        longest = next(iter(self._here))
        reason = TlsFailure.TIMEOUT if longest.hello_bytes else TlsFailure.SILENT
        self._fail(longest, reason, "it made room for others")

    async def close(self) -> None:
        """Close all, whatever they wait for."""
        for task in self._opening:
            task.cancel()
        await asyncio.gather(*self._opening, return_exceptions=True)
        for arrival in list(self._here):
            self._end(arrival)
        for handle in (self._timer, self._room, self._shakes):
            if handle is not None:
                handle.cancel()
        self._timer = self._room = self._shakes = None
        self._sums.close()

    # --- the first bytes

    def _look(self, arrival: _Arrival) -> None:
        """See what has come, and decide if it is enough for that."""
        waited_for = arrival.hello_bytes
        try:
            head = arrival.socket.recv(max(_RECORD_HEAD, waited_for), socket.MSG_PEEK)
        except (BlockingIOError, InterruptedError):
            self._watch(arrival, self._look, reads=True)
            return
        except OSError:
            self._end(arrival)
            return
        if not head:
            self._end(arrival)
        elif head[0] == _HANDSHAKE:
            self._hello(arrival, head)
        elif self._encryption.required:
            self._fail(arrival, TlsFailure.PLAIN, "a plain connection, and TLS is required here")
        else:
            self._hand_on_plain(arrival)

    def _hello(self, arrival: _Arrival, head: bytes) -> None:
        if not arrival.hello_bytes:
            arrival.deadline = self._loop.time() + self._encryption.handshake_s
        wanted = _hello_bytes(head)
        if wanted is None:
            self._fail(arrival, TlsFailure.RUBBISH, "no hello of TLS behind its first byte")
        elif len(head) >= wanted or arrival.hello_bytes >= wanted:
            # Woken before there is as much as was waited for: the peer has ended, or the kernel
            # has no room. TLS finds out.
            self._ready(arrival)
        else:
            arrival.hello_bytes = wanted
            arrival.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, wanted)
            self._watch(arrival, self._look, reads=True)

    def _watch(
        self,
        arrival: _Arrival,
        then: Callable[[_Arrival], None] | None = None,
        *,
        reads: bool = False,
        writes: bool = False,
    ) -> None:
        """Have the loop call `then` when the socket is ready for that; by default for nothing."""
        fd = arrival.socket.fileno()
        if arrival.reads:
            self._loop.remove_reader(fd)
        if arrival.writes:
            self._loop.remove_writer(fd)
        arrival.reads, arrival.writes = reads, writes
        if then is not None and reads:
            self._loop.add_reader(fd, then, arrival)
        if then is not None and writes:
            self._loop.add_writer(fd, then, arrival)

    # --- handshakes

    def _ready(self, arrival: _Arrival) -> None:
        """Have a step of its handshake done when those in front of it are."""
        self._watch(arrival)
        if arrival.tls is None:
            self._handshakes.wait(arrival, arrival.peer[0])
        else:
            self._to_shake.append(arrival)
        self._go_on()

    def _go_on(self) -> None:
        if self._shakes is None:
            self._shakes = self._loop.call_soon(self._shake_some)

    def _shake_some(self) -> None:
        self._shakes = None
        until = perf_counter() + SLICE_S
        for number in range(_STEPS_A_TURN):
            # By turns: neither those who go on nor those who begin can hold up the others.
            first, second = self._beginner, self._continuing
            arrival = (first() or second()) if number % 2 == 0 else (second() or first())
            if arrival is None:
                self._wait_for_room()
                return
            self._shake(arrival)
            if perf_counter() >= until:
                break
        self._go_on()

    def _continuing(self) -> _Arrival | None:
        while self._to_shake:
            arrival = self._to_shake.popleft()
            if arrival in self._here:
                return arrival
        return None

    def _beginner(self) -> _Arrival | None:
        now = self._loop.time()
        for _ in range(_STEPS_A_TURN):
            found = self._handshakes.next(now)
            if found is None:
                return None
            arrival, longest = found
            if _has_left(arrival.socket):
                self._fail(arrival, TlsFailure.GONE, "it ended before its handshake began")
                continue
            if longest is not None:
                self._fail(longest, TlsFailure.TIMEOUT, "its handshake made room for another")
            self._handshakes.begin(arrival, arrival.peer[0], now)
            arrival.deadline = now + self._encryption.handshake_s
            return arrival
        # Thousands may have left meanwhile.
        self._go_on()
        return None

    def _wait_for_room(self) -> None:
        if self._handshakes.waits and self._room is None:
            wait_s = self._handshakes.wait_s(self._loop.time())
            self._room = self._loop.call_later(wait_s, self._after_room)

    def _after_room(self) -> None:
        self._room = None
        self._go_on()

    def _shake(self, arrival: _Arrival) -> None:
        """One step of a handshake."""
        try:
            if arrival.tls is None:
                arrival.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, 1)
                arrival.tls = TlsSession(self._encryption.context, arrival.socket)
            done = arrival.tls.shake()
        except OSError as error:
            self._fail(arrival, *failure_of(error))
            return
        except Exception:
            # A fault of ours, which ends this one only.
            log.exception("a handshake failed peer=%s", address_text(arrival.peer))
            self._end(arrival)
            return
        if not done:
            owing = arrival.tls.is_owing
            self._watch(arrival, self._ready, reads=not owing, writes=owing)
            return
        self._forget(arrival)
        self._stats.handshakes += 1
        with contextlib.suppress(OSError):
            self._host.open_tls(arrival.tls, arrival.peer)

    # --- plain ones

    def _hand_on_plain(self, arrival: _Arrival) -> None:
        """It counts until it is served."""
        self._watch(arrival)
        arrival.deadline = float("inf")
        task = self._loop.create_task(self._host.open_plain(arrival.socket, arrival.peer))
        arrival.task = task
        self._opening.add(task)
        task.add_done_callback(partial(self._handed_on, arrival))

    def _handed_on(self, arrival: _Arrival, task: asyncio.Task[None]) -> None:
        self._opening.discard(task)
        self._forget(arrival)
        if task.cancelled():
            arrival.socket.close()
        elif (error := task.exception()) is not None:
            arrival.socket.close()
            if not isinstance(error, OSError):
                log.critical("opening a connection failed server=%s", self._name, exc_info=error)

    # --- ends

    def _end_late(self) -> None:
        now = self._loop.time()
        late = [one for one in self._here if one.deadline <= now]
        for arrival in late[:_ENDED_AT_ONCE]:
            if arrival.tls is not None:
                self._fail(arrival, TlsFailure.TIMEOUT, "its handshake took too long")
            elif arrival.hello_bytes:
                text = "its hello did not come whole, or found no room for a handshake, in time"
                self._fail(arrival, TlsFailure.TIMEOUT, text)
            else:
                self._fail(arrival, TlsFailure.SILENT, "it said nothing")
        self._timer = None
        if self._here:
            # The others of very many go when the loop has served others.
            after_s = 0.0 if len(late) > _ENDED_AT_ONCE else self._times.look_s
            self._timer = self._loop.call_later(after_s, self._end_late)

    def _fail(self, arrival: _Arrival, reason: TlsFailure, detail: str) -> None:
        self._end(arrival)
        self._failed(arrival.peer, reason, detail)

    def _failed(self, peer: _Peer, reason: TlsFailure, detail: str) -> None:
        self._stats.failed[reason] += 1
        text = 'connection not taken peer=%s reason="%s" detail="%s" server=%s'
        who = address_text(peer)
        self._sums.add(log, logging.INFO, reason, text, who, reason, detail, self._name)

    def _end(self, arrival: _Arrival) -> None:
        """Close an arrival. An arrival that is being handed on ends by its task."""
        if arrival.task is not None:
            arrival.task.cancel()
            return
        self._watch(arrival)
        self._forget(arrival)
        arrival.socket.close()
        # It may be in a queue still.
        arrival.tls = None

    def _forget(self, arrival: _Arrival) -> None:
        if arrival not in self._here:
            return
        del self._here[arrival]
        if self._handshakes.forget(arrival, arrival.peer[0]) and self._handshakes.waits:
            self._go_on()
        self._stats.arriving -= 1
        host = arrival.peer[0]
        self._addresses[host] -= 1
        if not self._addresses[host]:
            del self._addresses[host]


def _has_left(found: socket.socket) -> bool:
    """Whether the peer has ended the connection, though what it sent is there still."""
    try:
        return found.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 1)[0] != _ESTABLISHED
    except OSError:
        return True


def _hello_bytes(head: bytes) -> int | None:
    """Bytes to wait for before TLS begins, as far as `head` says; None if it is no hello.

    A hello may be cut into records. Then this is the least it can have, and TLS waits for the rest.
    """
    if len(head) > 1 and head[1] != 3:
        return None
    if len(head) < _RECORD_HEAD:
        return _RECORD_HEAD
    length = int.from_bytes(head[3:_RECORD_HEAD], "big")
    if not 0 < length <= _RECORD_MAX:
        return None
    if len(head) > _RECORD_HEAD and head[_RECORD_HEAD] != _CLIENT_HELLO:
        return None
    first = _RECORD_HEAD + length
    if len(head) < first:
        return first
    hello = _HELLO_LEAST
    if length >= _HELLO_HEAD:
        # Its length stands behind its type. One of more than a record is for TLS to refuse.
        hello = _HELLO_HEAD + int.from_bytes(head[_RECORD_HEAD + 1 : _RECORD_HEAD + 4], "big")
    return 2 * _RECORD_HEAD + hello if length < hello <= _RECORD_MAX else first


# Parts of OpenSSL's names of reasons; the first that is found counts.
_REASONS: Final = (
    ("UNSUPPORTED_PROTOCOL", TlsFailure.VERSION, "its version of TLS is below 1.2"),
    ("VERSION_TOO_LOW", TlsFailure.VERSION, "its version of TLS is below 1.2"),
    ("ALERT_PROTOCOL_VERSION", TlsFailure.VERSION, "it refuses our versions of TLS"),
    ("PEER_DID_NOT_RETURN", TlsFailure.CERTIFICATE, "it showed no certificate"),
    ("CERTIFICATE_VERIFY_FAILED", TlsFailure.CERTIFICATE, "its certificate is not trusted here"),
    ("ALERT_UNKNOWN_CA", TlsFailure.REFUSED, "it does not trust our certificate"),
    ("CERTIFICATE", TlsFailure.REFUSED, "it refuses our certificate"),
    ("NO_SHARED_CIPHER", TlsFailure.CIPHER, "it has no cipher that is allowed here"),
    ("HANDSHAKE_FAILURE", TlsFailure.CIPHER, "it cannot agree with us on ciphers"),
    ("UNEXPECTED_EOF", TlsFailure.GONE, "it ended in the middle of the handshake"),
)


def failure_of(error: OSError) -> tuple[TlsFailure, str]:
    """Returns why a handshake failed: the reason that is counted, and a text for people."""
    if isinstance(error, TooManyRecords):
        return TlsFailure.RUBBISH, str(error)
    if isinstance(error, ssl.SSLCertVerificationError):
        return TlsFailure.CERTIFICATE, f"its certificate is not trusted: {error.verify_message}"
    if isinstance(error, ssl.SSLError):
        name = error.reason or ""
        for part, reason, detail in _REASONS:
            if part in name:
                return reason, detail
        return TlsFailure.RUBBISH, name.lower().replace("_", " ") or "no TLS"
    return TlsFailure.GONE, "it ended in the middle of the handshake"
