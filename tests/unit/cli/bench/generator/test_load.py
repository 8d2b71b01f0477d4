"""A connection sends and counts, with a clock and a peer of the tests' own."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, TypeVar

import pytest

from aerobee.cli.bench.counts import Counts
from aerobee.cli.bench.generator import load as load_module
from aerobee.cli.bench.generator.lane import Lane
from aerobee.cli.bench.generator.load import (
    Load,
    LoadSettings,
    PullLoad,
    ReaderSpec,
    Schedule,
    Sender,
    SenderSpec,
)
from aerobee.cli.bench.generator.request_frames import MessageValues
from aerobee.cli.bench.generator.security import Secured, Security
from aerobee.protocol.codes import ResponseCode
from aerobee.protocol.frames.command import Command
from aerobee.protocol.frames.frame import FrameDecoder
from aerobee.protocol.frames.signature import Signer
from aerobee.protocol.message.record import StoreMessage, encode_record
from tests.tls import CERTIFICATE, STRANGER, tls_in_front_of

Kind = TypeVar("Kind", bound=Load)
MS = 1_000_000
START_NS = 100 * MS
PLAIN = Secured()


class Clock:
    """The monotonic clock, as the test wants it."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now_ns = START_NS
        clock = SimpleNamespace(monotonic_ns=lambda: self.now_ns, time_ns=time.time_ns)
        monkeypatch.setattr(load_module, "time", clock)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    return Clock(monkeypatch)


def make_sender(secured: Secured = PLAIN, **settings: Any) -> Sender:
    spec = SenderSpec("127.0.0.1:1", "Orders", [0, 1], 0, 1)
    values = MessageValues(lambda: "A" * 32, lambda: b"k" * 10)
    own: dict[str, Any] = {"in_flight": 1, "timeout_s": 5.0, **settings}
    return connected(
        Sender(
            spec=spec,
            settings=LoadSettings(**own),
            bodies=[b"body"],
            values=values,
            counts=Counts(),
            secured=secured,
        )
    )


def make_reader(
    *, follows: bool, in_flight: int = 1, stamped: bool = False, secured: Secured = PLAIN
) -> PullLoad:
    spec = ReaderSpec("127.0.0.1:1", "Orders", [(0, 10), (1, 20)], 0, 1, follows)
    settings = LoadSettings(in_flight=in_flight, timeout_s=5.0, stamped=stamped)
    return connected(PullLoad(spec, settings, Counts(), secured))


def connected(load: Kind) -> Kind:
    """Pretend that there is a connection; writes go nowhere."""
    load._lane.open = True
    return load


def answer(load: Load, code: int = 0, remark: str = "", body: bytes = b"", **ext: int) -> None:
    """The oldest request under way is answered, as one read of the connection."""
    opaque = next(iter(load._lane.waiting))
    command = Command(code=code, opaque=opaque, flag=1, remark=remark, body=body)
    command.ext = {name: str(value) for name, value in ext.items()}
    load._on_answer(load._lane.waiting.pop(opaque), command)
    load._go()


async def until(is_so: Callable[[], bool]) -> None:
    while True:
        if is_so():
            return
        await asyncio.sleep(0.001)


def under_way(load: Load) -> int:
    return len(load._lane.waiting)


async def test_a_closed_loop_keeps_so_many_requests_under_way(clock: Clock) -> None:
    sender = make_sender(in_flight=3)
    sender.begin(None)
    assert (under_way(sender), sender.counts.sent) == (3, 3)
    clock.now_ns += 7 * MS
    answer(sender)
    assert (under_way(sender), sender.counts.sent, sender.counts.acked) == (3, 4, 1)
    assert sender.counts.acked_bytes == len(b"body")
    assert sender.counts.publish.max_us == 7000
    assert sender.counts.delay.count == 0


async def test_latency_of_an_open_loop_counts_from_when_a_request_was_due(clock: Clock) -> None:
    sender = make_sender(rate=1000.0)
    sender.begin(Schedule(1000, 0, 1, START_NS))
    assert sender.counts.sent == 1
    # The broker stands for ten milliseconds; ten more requests have become due by then.
    for step in range(10):
        clock.now_ns = START_NS + (10 + step) * MS
        answer(sender)
    counts = sender.counts
    assert (counts.acked, counts.sent) == (10, 11)
    # Each was answered within a millisecond of leaving, but every one 10 ms after it was due.
    assert counts.publish.percentile_us(0.1) == counts.publish.max_us == 10_000
    # The first left in time, the others nine milliseconds late.
    assert counts.delay.max_us == 9000
    assert counts.delay.percentile_us(5) == 0
    assert counts.delay.count == 11
    sender.end()


async def test_an_open_loop_sends_nothing_early_and_nothing_twice(clock: Clock) -> None:
    sender = make_sender(rate=1000.0, in_flight=1000)
    sender.begin(Schedule(1000, 0, 1, START_NS + 5 * MS))
    assert sender.counts.sent == 0
    clock.now_ns = START_NS + 7 * MS
    sender._go()
    assert sender.counts.sent == 3
    sender._go()
    assert sender.counts.sent == 3
    sender.end()


async def test_a_request_that_is_due_leaves_by_the_timer() -> None:
    sender = make_sender(rate=1000.0, in_flight=1000)
    sender.begin(Schedule(1000, 0, 1, time.monotonic_ns() + MS))
    async with asyncio.timeout(30):
        await until(lambda: sender.counts.sent >= 20)
    sender.end()
    # Never before it is due.
    assert all(one.sent_ns >= one.due_ns for one in sender._lane.waiting.values())


async def test_refusals_are_counted_by_name_with_the_first_remark(clock: Clock) -> None:
    sender = make_sender(in_flight=2, batch=4)
    sender.begin(None)
    answer(sender, ResponseCode.SYSTEM_BUSY, "too many")
    answer(sender, ResponseCode.SYSTEM_BUSY, "still")
    answer(sender, 12345)
    counts = sender.counts
    assert counts.failures == {"SYSTEM_BUSY": (2, "too many"), "12345": (1, "")}
    assert (counts.failed, counts.acked, counts.publish.count) == (12, 0, 0)
    assert under_way(sender) == 2


async def test_what_nobody_answers_in_time_is_given_up(clock: Clock) -> None:
    sender = make_sender(in_flight=2)
    sender.begin(None)
    clock.now_ns += 4000 * MS
    sender.sweep()
    assert sender.counts.failures == {}
    clock.now_ns += 1001 * MS
    sender.sweep()
    [(name, (count, remark))] = sender.counts.failures.items()
    assert (name, count) == ("NO_ANSWER", 2)
    assert remark == "no answer of 127.0.0.1:1 in 5 s"
    assert (under_way(sender), sender.counts.sent) == (2, 4)


async def test_at_the_end_answers_count_and_nothing_is_sent(clock: Clock) -> None:
    sender = make_sender(in_flight=2, batch=3)
    sender.begin(None)
    sender.end()
    assert sender.unanswered == 6
    answer(sender)
    assert (sender.counts.acked, sender.unanswered, sender.counts.sent) == (3, 3, 6)


def records(count: int, *, stamp_ns: int | None = None, broken: bool = False) -> bytes:
    text = "UNIQ_KEY\x01x"
    if stamp_ns is not None:
        text += f"\x02AEROBEE_BENCH\x01{stamp_ns:016x}"
    stored = StoreMessage(
        topic="Orders",
        queue_id=0,
        flag=0,
        sys_flag=0,
        born_timestamp_ms=1,
        born_host=bytes(8),
        store_host=bytes(8),
        reconsume_times=0,
        prepared_transaction_offset=0,
        # A body may look like a stamp without being a stamp.
        body=b"AEROBEE_BENCH\x01 in a body",
        properties=text.encode(),
    )
    one = bytes(encode_record(stored, 0, 0, 1))
    return one * count + (one[:50] if broken else b"")


async def test_a_pull_begins_again_at_the_end_of_a_queue(clock: Clock) -> None:
    reader = make_reader(follows=False)
    reader.begin(None)
    clock.now_ns += 2 * MS
    body = records(5)
    answer(reader, body=body, nextBeginOffset=15, minOffset=3)
    counts = reader.counts
    assert (counts.received, counts.received_bytes, counts.pulls) == (5, len(body), 1)
    assert counts.pull.max_us == 2000
    # The other queue had its turn.
    assert [one.what.offset for one in reader._lane.waiting.values()] == [20]  # type: ignore[attr-defined]
    answer(reader, ResponseCode.PULL_NOT_FOUND, nextBeginOffset=20, minOffset=4)
    answer(reader, ResponseCode.PULL_OFFSET_MOVED, nextBeginOffset=15, minOffset=3)
    offsets = sorted(cursor.offset for cursor in reader._idle)
    assert offsets + [one.what.offset for one in reader._lane.waiting.values()] == [3, 4]  # type: ignore[attr-defined]
    assert (counts.pulls, counts.failures) == (1, {})


async def test_a_consumer_listens_to_all_queues_and_goes_on_where_it_is_told(clock: Clock) -> None:
    reader = make_reader(follows=True, stamped=True)
    reader.begin(None)
    assert under_way(reader) == 2
    clock.now_ns += 30 * MS
    body = records(2, stamp_ns=clock.now_ns - 12 * MS)
    answer(reader, body=body, nextBeginOffset=12, minOffset=0)
    assert reader.counts.end_to_end.count == reader.counts.received == 2
    assert 12_000 <= reader.counts.end_to_end.percentile_us(50) <= 12_100
    answer(reader, ResponseCode.PULL_NOT_FOUND, nextBeginOffset=20, minOffset=0)
    answer(reader, ResponseCode.PULL_OFFSET_MOVED, nextBeginOffset=7, minOffset=0)
    offsets = sorted(one.what.offset for one in reader._lane.waiting.values())  # type: ignore[attr-defined]
    assert offsets == [7, 20]


async def test_messages_of_others_do_not_count(clock: Clock) -> None:
    reader = make_reader(follows=True, stamped=True)
    reader.begin(None)
    answer(reader, body=records(3), nextBeginOffset=13, minOffset=0)
    assert (reader.counts.received, reader.counts.end_to_end.count) == (0, 0)
    assert reader.counts.failures == {}


async def test_a_held_pull_is_not_given_up_while_the_broker_may_hold_it(clock: Clock) -> None:
    reader = make_reader(follows=True)
    reader.begin(None)
    clock.now_ns += 29_000 * MS
    reader.sweep()
    assert reader.counts.failures == {}
    clock.now_ns += 1_001 * MS
    reader.sweep()
    assert reader.counts.failures == {"NO_ANSWER": (2, "no answer of 127.0.0.1:1 in 30 s")}


async def test_a_held_consumer_pulls_nothing_until_it_may(clock: Clock) -> None:
    reader = make_reader(follows=True)
    reader.begin(None)
    reader.pause()
    answer(reader, body=records(1), nextBeginOffset=11, minOffset=0)
    assert under_way(reader) == 1
    reader.resume()
    assert under_way(reader) == 2


@pytest.mark.parametrize(
    "ext", [{}, {"nextBeginOffset": 12}], ids=["no offsets", "sizes that do not add up"]
)
async def test_answers_that_cannot_be_read_are_counted(clock: Clock, ext: dict[str, Any]) -> None:
    reader = make_reader(follows=True)
    reader.begin(None)
    answer(reader, body=records(1, broken=bool(ext)), **ext)
    assert list(reader.counts.failures) == ["UNREADABLE_ANSWER"]
    assert reader.counts.received == 0


async def test_a_lost_connection_is_made_again_and_what_was_under_way_has_failed() -> None:
    opened = asyncio.Queue[asyncio.StreamWriter]()

    async def serve(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        opened.put_nowait(writer)

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    address = f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
    async with server, asyncio.timeout(30):
        sender = make_sender(in_flight=2)
        sender._address = address
        assert await sender.connect() == ""
        sender.begin(None)
        (await opened.get()).close()
        again = await opened.get()
        await until(lambda: sender.counts.sent >= 4)
        assert sender.counts.failures["CONNECTION_LOST"][0] == 2
        assert address in sender.counts.failures["CONNECTION_LOST"][1]
        again.close()
        sender.close()


@pytest.mark.parametrize("kind", ["send", "batch", "pull"])
async def test_every_request_of_an_account_is_signed(kind: str) -> None:
    secured = Security(access_key="user", secret_key="secret").secured()
    load = (
        make_reader(follows=False, in_flight=2, secured=secured)
        if kind == "pull"
        else make_sender(secured, in_flight=2, batch=3 if kind == "batch" else 0)
    )
    written: list[bytes] = []
    load._lane._transport = SimpleNamespace(write=written.append)  # type: ignore[assignment]
    load.begin(None)
    commands = FrameDecoder().feed(b"".join(written))
    assert len(commands) == 2
    for command in commands:
        assert command.ext["AccessKey"] == "user"
        assert Signer("secret").has_signed(command.ext, command.body, command.version)


async def test_a_connection_is_lost_to_who_is_not_trusted_any_more() -> None:
    """Made again, it is refused with the reason, and goes on being tried."""
    opened = asyncio.Queue[asyncio.StreamWriter]()

    async def serve(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        opened.put_nowait(writer)

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with (
        server,
        asyncio.timeout(30),
        tls_in_front_of(server.sockets[0].getsockname()[1]) as port,
    ):
        trusting = Security(use_tls=True, trust_store=str(CERTIFICATE)).secured()
        sender = make_sender(trusting)
        sender._address = f"127.0.0.1:{port}"
        assert await sender.connect() == ""
        sender.begin(None)
        sender._tls = Security(use_tls=True, trust_store=str(STRANGER)).secured().tls
        (await opened.get()).close()
        await until(lambda: sender.counts.failures.get("CANNOT_CONNECT", (0,))[0] >= 2)
        remark = sender.counts.failures["CANNOT_CONNECT"][1]
        assert remark.startswith(f"127.0.0.1:{port}: its certificate is not trusted: self")
        sender.close()


async def test_a_peer_that_takes_no_tls_is_said_to_be_one() -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(1)
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server, asyncio.timeout(30):
        sender = make_sender(Security(use_tls=True).secured())
        sender._address = f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
        assert (await sender.connect()).endswith("in the TLS handshake, as one without TLS does")


async def test_an_answer_nobody_waits_for_is_dropped() -> None:
    told: list[object] = []
    lane = Lane(lambda waiting, _: told.append(waiting), lambda: None, told.append)
    frame = Command(code=0, opaque=77, flag=1).encode()
    lane.get_buffer(-1)[: len(frame)] = frame
    lane.buffer_updated(len(frame))
    assert told == []
