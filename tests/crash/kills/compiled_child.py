"""The process that test_compiled_steps.py kills or looks into: sends fifty messages through the
compiled form, as clients send them.

    python compiled_child.py BUILD DIR FLUSH --at STEP:VISIT    kill itself at a named step
    python compiled_child.py BUILD DIR FLUSH --observe          look at the files at each step
    python compiled_child.py BUILD DIR FLUSH --recover ...      send nothing, open what is there

BUILD is a folder of `tests/native_builds.py` with named steps. Prints what kill_child.py prints; an
observer prints a line for each step, with how often it was passed, and a line for each fault.
"""

import argparse
import asyncio
import itertools
import os
import signal
import sys
import zlib
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[3]))

from aerobee.broker import core
from aerobee.broker.appending.store_events import StoreEvents
from aerobee.broker.broker_stats import BrokerStats
from aerobee.broker.cluster.registration.broker_address import Advertised, Identity
from aerobee.native.form import chosen
from aerobee.protocol.bodies.topics import SINGLE_TAG, TopicConfig
from aerobee.protocol.codes import RequestCode, ResponseCode
from aerobee.protocol.errors import CorruptRecord
from aerobee.protocol.frames.command import Command
from aerobee.protocol.frames.frame import FrameDecoder
from aerobee.protocol.frames.header_encode import JSON, ROCKETMQ
from aerobee.protocol.headers.send import SendMessageHeader
from aerobee.protocol.message import record_layout as layout
from aerobee.protocol.message.batch import BatchItem, encode_batch
from aerobee.protocol.message.record import decode_record
from aerobee.remoting.connection_limits import RemotingLimits
from aerobee.remoting.connections.connection_set import ConnectionSet
from aerobee.store.index.layout import INDEX_ENTRY_BYTES, entry_at, slot_at
from aerobee.store.message_store import MessageStore
from tests import native_builds
from tests.crash.judges.same_directory import SameDirectory
from tests.crash.kills.kill_child import COUNT, QUEUES, body_of, say, settings_of
from tests.crash.running.link import log_offset_of
from tests.native.replayed import ByHand, Wire, receive, settled
from tests.unit.store.support import small_settings


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("build", type=Path)
    parser.add_argument("directory", type=Path)
    parser.add_argument("flush")
    parser.add_argument("--at")
    parser.add_argument("--observe", action="store_true")
    parser.add_argument("--recover", action="store_true")
    options = parser.parse_args()
    native_builds.use(options.build)
    hooks: Any = sys
    if options.at:
        hooks.aerobee_step = killer(*options.at.split(":"))
    observer = Observer(options.directory)
    if options.observe:
        hooks.aerobee_step = observer
    if options.recover:
        recover(options.directory, options.flush)
    else:
        asyncio.run(write(options.directory, options.flush))
    for step, count in sorted(observer.passed.items()):
        say(f"step {count} {step}")
    for text in observer.wrong:
        say(f"wrong {text}")
    say("done")


def killer(step: str, visit: str) -> Callable[[str], None]:
    left = int(visit)

    def at_step(name: str) -> None:
        nonlocal left
        left -= name == step
        if not left:
            os.kill(os.getpid(), signal.SIGKILL)

    return at_step


class Observer:
    """Looks at the store's files at each step, as another process could: a process that sees a
    record's size sees all of the record, and the records that the index names are there."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self.passed: Counter[str] = Counter()
        self.wrong: list[str] = []

    def __call__(self, step: str) -> None:
        self.passed[step] += 1
        if len(self.wrong) < 5:
            records = self._records(step)
            self._look_at_index(step, records)

    def _records(self, step: str) -> set[int]:
        """Where records are, from their sizes alone."""
        places = set()
        for path in sorted((self._directory / "commitlog").glob("0*")):
            data, at = path.read_bytes(), 0
            while size := int.from_bytes(data[at : at + 4], "big"):
                record = data[at : at + size]
                if record[4:8] == layout.BLANK_MAGIC.to_bytes(4, "big"):
                    break
                place = int(path.name) + at
                if not _is_whole(record, place):
                    self.wrong.append(f"{step}: the record at {place} is not whole")
                    return places
                places.add(place)
                at += size
        return places

    def _look_at_index(self, step: str, places: set[int]) -> None:
        slots = small_settings(self._directory).index_slots
        entries_at = entry_at(slots, 0)
        for path in (self._directory / "index").glob("*"):
            data = path.read_bytes()
            for slot in range(slots):
                at = slot_at(slot)
                number = int.from_bytes(data[at : at + 4], "big")
                if number:
                    entry = data[entries_at + INDEX_ENTRY_BYTES * number :][:INDEX_ENTRY_BYTES]
                    if int.from_bytes(entry[4:12], "big") not in places or not any(entry):
                        self.wrong.append(f"{step}: slot {slot} leads to no entry of a record")


def _is_whole(record: bytes, place: int) -> bool:
    try:
        one = decode_record(record, 0)
    except CorruptRecord:
        return False
    return bool(one.body.strip(b"\0")) and (
        one.size == len(record)
        and one.log_offset == place
        and one.body == body_of(int(one.body[:4]))
        and one.body_crc == zlib.crc32(one.body) & 0x7FFFFFFF
        and one.topic == "Orders"
    )


def recover(directory: Path, flush: str) -> None:
    """Open the store through the compiled form, which may have all of its queues to make again."""
    form = chosen()
    assert form is not None, "the build is not there"
    settings = settings_of(directory, flush)
    assert MessageStore.open(settings, files=SameDirectory(), compiled=form.store).close()


async def write(directory: Path, flush: str) -> None:
    """Send the messages and say which are acknowledged, when the answer leaves."""

    form = chosen()
    assert form is not None, "the build is not there"
    settings = settings_of(directory, flush)
    loop = asyncio.get_running_loop()
    events = StoreEvents(loop)
    store = MessageStore.open(settings, files=SameDirectory(), compiled=form.store, listener=events)
    identity = Identity(Advertised("127.0.0.1", "127.0.0.1", ()), 10911)
    broker = core.BrokerCore(
        settings=settings,
        store=store,
        events=events,
        identity=identity,
        stats=BrokerStats(),
        loop=loop,
        form=form,
    )
    assert broker.compiled is not None
    try:
        broker.complete_tables()
        broker.topics.update(TopicConfig("Orders", QUEUES, QUEUES, 6, SINGLE_TAG, 0, False))
        shared = ConnectionSet(RemotingLimits(), "killed", turns=broker.turns)
        told = _Told()
        connection = ByHand(shared, broker.main_router, broker.compiled, lambda _: None)
        connection.connection_made(told)
        number = 0
        for read in itertools.count():
            if number == COUNT:
                break
            count = min(1 + read % 4, COUNT - number)
            receive(connection, _frames(number, count))
            number += count
            async with asyncio.timeout(30):
                while told.acknowledged < number:
                    await settled(broker, store, [connection])
            await settled(broker, store, [connection])
    finally:
        await broker.close()
        assert store.close(broker.save_last)


class _Told(Wire):
    """Says what its client is told, when it is told."""

    acknowledged = 0

    def write(self, data: bytes | bytearray | memoryview) -> None:
        for answer in FrameDecoder().feed(data):
            assert answer.code == ResponseCode.SUCCESS, answer
            queue_id, first = int(answer.ext["queueId"]), int(answer.ext["queueOffset"])
            for index, msg_id in enumerate(answer.ext["msgId"].split(",")):
                place = f"{queue_id} {first + index} {log_offset_of(msg_id)}"
                say(f"ack {place} {answer.opaque + index}")
                self.acknowledged += 1


def _frames(number: int, count: int) -> bytes:
    """One read: sends of both codes and headers, every fourth a batch."""

    def properties(one: int) -> str:
        return f"UNIQ_KEY\x01U{one}\x02TAGS\x01t\x02"

    def header(queue_id: int, text: str, *, batch: bool) -> SendMessageHeader:
        return SendMessageHeader(
            "crash-test", "Orders", "TBW102", 4, queue_id, 0, 1_700_000_000_000, 0, text, 0,
            False, 0, batch,
        )  # fmt: skip

    kind = JSON if number % 2 else ROCKETMQ
    if count == 4:
        items = [
            BatchItem(0, body_of(one), properties(one).encode())
            for one in range(number, number + count)
        ]
        ext = header(number % QUEUES, "", batch=True).to_ext()
        return Command(
            code=RequestCode.SEND_BATCH_MESSAGE, ext=ext, body=encode_batch(items), opaque=number,
            serialization=kind,
        ).encode()  # fmt: skip
    frames = []
    for one in range(number, number + count):
        plain = header(one % QUEUES, properties(one), batch=False)
        long = one % 5 == 0
        frames.append(
            Command(
                code=RequestCode.SEND_MESSAGE if long else RequestCode.SEND_MESSAGE_V2,
                ext=plain.to_ext_long() if long else plain.to_ext(),
                body=body_of(one),
                opaque=one,
                serialization=kind,
            ).encode()
        )
    return b"".join(frames)


if __name__ == "__main__":
    main()
