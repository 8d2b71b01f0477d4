"""The transports of TLS connections, in both forms, keep the promises of a loop's own transport."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import socket
import ssl
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from aerobee.remoting.tls.tls_session import TlsSession
from aerobee.remoting.tls.tls_transport import TlsTransport
from tests.tls.authority import client
from tests.tls.key_updates import CIPHER, ClientRecords
from tests.unit.remoting.conftest import eventually
from tests.unit.remoting.tls_ends import Noting, server_context, serving, shaken_pair

pytestmark = pytest.mark.both_loops

MANY = 8 << 20


class Ends:
    """Our transport, and the peer's socket, which does not block."""

    def __init__(self, transport: asyncio.Transport, protocol: Noting, peer: ssl.SSLSocket) -> None:
        self.transport = transport
        self.protocol = protocol
        self.peer = peer

    async def read(self, count: int) -> bytes:
        """The peer's next `count` bytes, fewer at the end."""
        found = bytearray()
        async with asyncio.timeout(20):
            while len(found) < count:
                try:
                    more = self.peer.recv(count - len(found))
                except ssl.SSLWantReadError:
                    await asyncio.sleep(0)
                    continue
                if not more:
                    break
                found += more
        return bytes(found)

    async def send(self, data: bytes) -> None:
        view = memoryview(data)
        async with asyncio.timeout(20):
            while view:
                try:
                    view = view[self.peer.send(view[:65536]) :]
                except ssl.SSLWantWriteError:
                    await asyncio.sleep(0)


VERSIONS = {"1.2": ssl.TLSVersion.TLSv1_2, "1.3": ssl.TLSVersion.TLSv1_3}
FORMS = {"plain": False, "compiled": True}


@pytest.fixture(
    params=[(version, form) for version in VERSIONS.values() for form in FORMS.values()],
    ids=[f"{version}-{form}" for version in VERSIONS for form in FORMS],
)
async def ends(request: pytest.FixtureRequest) -> AsyncIterator[Ends]:
    asking = client()
    asking.maximum_version = request.param[0]
    served, peer = await shaken_pair(asking)
    with serving(served, compiled=request.param[1]) as (transport, protocol):
        found = Ends(transport, protocol, peer)
        yield found
        found.transport.abort()
        found.peer.close()
        await eventually(lambda: protocol.told[-1] == "lost")


#: A record that no key has made.
DAMAGED = b"\x17\x03\x03\x00\x20" + bytes(32)


def send_raw(peer: ssl.SSLSocket, data: bytes) -> None:
    """Past TLS."""
    raw = socket.socket(fileno=peer.fileno())
    raw.send(data)
    raw.detach()


def read_raw(peer: ssl.SSLSocket) -> bytes:
    raw = socket.socket(fileno=peer.fileno())
    data = raw.recv(65536)
    raw.detach()
    return data


def digest(data: bytes | bytearray) -> str:
    return hashlib.sha256(data).hexdigest()


async def test_much_arrives_whole_both_ways_at_once(ends: Ends) -> None:
    there, back = bytes(range(256)) * (MANY // 256), bytes(range(255, -1, -1)) * (MANY // 256)
    ends.transport.write(back)
    sending = asyncio.create_task(ends.send(there))
    assert digest(await ends.read(MANY)) == digest(back)
    await sending
    await eventually(lambda: len(ends.protocol.data) == MANY, 20)
    assert digest(ends.protocol.data) == digest(there)
    assert ends.transport.get_write_buffer_size() == 0


async def test_a_peer_that_does_not_read_is_told_and_counted(ends: Ends) -> None:
    ends.transport.set_write_buffer_limits(high=1000, low=250)
    ends.transport.write(bytes(MANY))
    assert ends.protocol.told == ["made", "pause"]
    assert ends.transport.get_write_buffer_size() > MANY // 2
    await ends.read(MANY)
    await eventually(lambda: ends.protocol.told == ["made", "pause", "resume"])


async def test_many_small_writes_behind_a_full_socket_fill_the_buffer_as_one_does(
    ends: Ends,
) -> None:
    ends.transport.set_write_buffer_limits(high=65536, low=16384)
    while ends.transport.get_write_buffer_size() <= 65536:
        ends.transport.write(bytes(4000))
    assert ends.protocol.told[-1] == "pause"


async def test_what_openssl_holds_is_read_after_a_pause(ends: Ends) -> None:
    ends.transport.pause_reading()
    if isinstance(ends.transport, TlsTransport):
        assert not ends.transport.is_reading()
    await ends.send(bytes(100_000))
    for _ in range(10):
        await asyncio.sleep(0)
    assert not ends.protocol.data
    ends.transport.resume_reading()
    await eventually(lambda: len(ends.protocol.data) == 100_000)


async def test_closing_sends_what_was_written_and_says_goodbye(ends: Ends) -> None:
    ends.transport.write(bytes(MANY))
    ends.transport.close()
    ends.transport.write(b"dropped")
    assert ends.transport.is_closing()
    # A peer that were cut off would have an error in the place of an end.
    ends.peer.suppress_ragged_eofs = False
    assert len(await ends.read(MANY + 1)) == MANY
    await eventually(lambda: ends.protocol.told[-1] == "lost")
    assert ends.protocol.error is None


async def test_aborting_drops_what_was_written(ends: Ends) -> None:
    ends.transport.write(bytes(MANY))
    ends.transport.abort()
    assert ends.transport.get_write_buffer_size() == 0
    await eventually(lambda: ends.protocol.told[-1] == "lost")
    assert len(await ends.read(MANY)) < MANY


@pytest.mark.parametrize("says_goodbye", [True, False])
async def test_the_end_of_the_peer_is_told_once(ends: Ends, says_goodbye: bool) -> None:
    await ends.send(b"last")
    if says_goodbye:
        with pytest.raises(ssl.SSLWantReadError):
            ends.peer.unwrap()
    else:
        ends.peer.shutdown(socket.SHUT_RDWR)
    await eventually(lambda: ends.protocol.told == ["made", "eof", "lost"])
    assert ends.protocol.data == b"last"


async def test_what_came_with_the_goodbye_is_answered(ends: Ends) -> None:
    """Answers leave at the end of a turn of the loop."""
    loop = asyncio.get_running_loop()

    def answer() -> None:
        loop.call_soon(ends.transport.write, b"answer")

    ends.protocol.noted = answer
    ends.peer.send(b"request")
    with pytest.raises(ssl.SSLWantReadError):
        ends.peer.unwrap()
    await eventually(lambda: ends.protocol.told == ["made", "eof", "lost"])
    assert len(read_raw(ends.peer)) > len(b"answer")


@pytest.mark.parametrize("before", [b"", b"whole"], ids=["alone", "behind_a_good_one"])
async def test_a_record_that_was_changed_ends_the_connection(ends: Ends, before: bytes) -> None:
    """Data that came whole before it is served first, as without TLS."""
    await ends.send(before)
    send_raw(ends.peer, DAMAGED)
    await eventually(lambda: ends.protocol.told == ["made", "lost"])
    assert ends.protocol.data == before
    assert isinstance(ends.protocol.error, ssl.SSLError)
    # The peer is told, too.
    with pytest.raises(ssl.SSLError, match="ALERT"):
        await ends.read(1)


async def test_an_answer_to_what_came_before_a_changed_record_is_not_sent_in_the_clear(
    ends: Ends,
) -> None:
    ends.protocol.noted = lambda: ends.transport.write(b"answer")
    await ends.send(b"whole")
    send_raw(ends.peer, DAMAGED)
    await eventually(lambda: ends.protocol.told == ["made", "lost"])
    assert b"answer" not in read_raw(ends.peer)


async def test_a_read_takes_a_bounded_number_of_records(
    ends: Ends, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A record of one byte takes as long as a large one, and the loop waits for all of a read."""
    taken, a_read = [0], []
    read = ssl.SSLObject.read

    def counting(*given: Any) -> Any:
        count = read(*given)
        taken[0] += 1
        return count

    def note() -> None:
        a_read.append(taken[0])
        taken[0] = 0

    monkeypatch.setattr(ssl.SSLObject, "read", counting)
    ends.protocol.noted = note
    data = bytes(range(256)) * 8
    # Hundreds of them are there before the loop looks.
    for start in range(len(data)):
        await ends.send(data[start : start + 1])
    await eventually(lambda: len(ends.protocol.data) == len(data))
    assert ends.protocol.data == data
    assert max(a_read) <= 64
    # There were 64 at once, and the rest behind them has come all the same.
    assert a_read.count(64) > 1


@pytest.mark.parametrize("answered", [False, True], ids=["silent", "answered"])
@pytest.mark.parametrize("compiled", FORMS.values(), ids=FORMS)
async def test_updates_of_keys_let_the_loop_turn(
    compiled: bool, answered: bool, tmp_path: Path
) -> None:
    """OpenSSL takes all that it can get in one call, and each costs as much as a request."""
    asking = client()
    asking.keylog_filename = str(tmp_path / "keys")
    served, peer = await shaken_pair(asking)
    assert peer.cipher()[0] == CIPHER  # type: ignore[index]
    records = ClientRecords(tmp_path / "keys")
    turns = [0]
    loop = asyncio.get_running_loop()

    def turn() -> None:
        turns[0] += 1
        if turns[0] >= 0:
            loop.call_soon(turn)

    with serving(served, compiled=compiled) as (transport, protocol):
        # All of it lies there before the loop looks.
        flood = [records.key_update(answered=answered) for _ in range(640)]
        send_raw(peer, b"".join([*flood, records.data(b"whole")]))
        turn()
        # The answers to them are room that is wanted before it goes on.
        await eventually(lambda: not received(peer) and protocol.data == b"whole")
        assert turns[0] >= 640 // 64
        transport.write(b"answer")
        await eventually(lambda: received(peer) == b"answer")
        turns[0] = -1 << 31
        transport.abort()
        await eventually(lambda: protocol.told[-1] == "lost")
    peer.close()


def received(peer: ssl.SSLSocket) -> bytes:
    try:
        return peer.recv(100)
    except ssl.SSLWantReadError:
        return b""


async def test_records_that_come_in_pieces_and_many_at_once_are_read(ends: Ends) -> None:
    texts = [bytes([number % 256]) * (1 + 37 * number % 5000) for number in range(300)]
    for text in texts:
        await ends.send(text)
        if len(text) % 3:
            await asyncio.sleep(0)
    await eventually(lambda: len(ends.protocol.data) == sum(map(len, texts)))
    assert digest(ends.protocol.data) == digest(b"".join(texts))


@pytest.mark.parametrize("piece", [1, 4, 5, 6, 100])
@pytest.mark.parametrize("compiled", FORMS.values(), ids=FORMS)
async def test_a_record_that_comes_in_pieces_is_waited_for(compiled: bool, piece: int) -> None:
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    asking = client().wrap_bio(incoming, outgoing)
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
    for one in (ours, theirs):
        one.setblocking(False)
    served = TlsSession(server_context(), ours)
    for step in (asking.do_handshake, served.shake, asking.do_handshake, served.shake):
        with contextlib.suppress(ssl.SSLWantReadError):
            step()
        theirs.sendall(outgoing.read())
        with contextlib.suppress(BlockingIOError):
            incoming.write(theirs.recv(65536))
    with serving(served, compiled=compiled) as (transport, protocol):
        for text in (b"first", b"second" * 50):
            asking.write(text)
            sealed = outgoing.read()
            for start in range(0, len(sealed), piece):
                theirs.sendall(sealed[start : start + piece])
                await asyncio.sleep(0.001)
        await eventually(lambda: protocol.data == b"first" + b"second" * 50)
        transport.abort()
        await eventually(lambda: protocol.told[-1] == "lost")
    theirs.close()
