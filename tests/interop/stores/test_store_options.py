"""The options of the commit log in one store of both brokers: transient pool, several directories,
some of them read-only, warmed segments.

One chain with all of them, because each Java broker takes seconds to start: ours writes, Java goes
on and is killed, ours goes on and is killed, Java has the last word; at each change of hands
directories are added, and retired. A second one is for what goes only without the pool: warming
under SYNC_FLUSH.

Java's differences (4.9.7) are asserted where they show: it goes on writing in a directory that has
become read-only, where ours ends the segment and goes on elsewhere.
"""

import json
import re
import struct
from collections.abc import Callable
from functools import partial
from pathlib import Path

from tests.interop.brokers import Broker, StoreShape
from tests.interop.processes import wait_until
from tests.interop.scenarios import QUEUES
from tests.interop.stores.test_store_tools import tool
from tests.interop.wire import BROKER_RUNTIME_INFO, SUCCESS, VIEW_MESSAGE, Stored, Wire

TOPIC = "log-options"
SEGMENT = 1 << 18
BUFFERS = 6
BODY_BYTES = 8_000
COUNT = 100  # some three segments
BLANK = struct.Struct(">II")
BLANK_MAGIC = 0xCBD43194
POOL = {"transientStorePoolEnable": "true", "transientStorePoolSize": str(BUFFERS)}
WARM = {"warmMapedFileEnable": "true", "flushLeastPagesWhenWarmMapedFile": "16"}
SYSTEM_BUSY = 2
NewBroker = Callable[..., Broker]


class Turns:
    """The brokers of one chain, one at a time, and what the store is to hold."""

    def __init__(self, new_broker: NewBroker, root: Path) -> None:
        self._new_broker = new_broker
        self.root = root
        self.store = root / "store"
        self.stored: list[Stored] = []
        self.broker: Broker
        self._count = 0

    def next(self, kind: str, shape: StoreShape, *, by_key: bool = True) -> None:
        """The next broker starts, and serves all that the others have left."""
        self._count += 1
        name = f"{self._count}-{kind}"
        self.broker = self._new_broker(kind, name, shape=shape, store=self.store).start()
        if self._count == 1:
            self.broker.create_topic(TOPIC, QUEUES)
        found = self.everything(len(self.stored))
        assert found == self.stored, f"{kind} reads what was left"
        if by_key:
            self._check_keys(found)

    def write(self, count: int = COUNT, *, until: Callable[[int], bool] = lambda _: True) -> int:
        """Append that many messages, and more up to a log offset that will do; the first one's."""
        places: list[int] = []
        with self.broker.wire() as wire:
            while len(places) < count or not until(places[-1]):
                number = len(self.stored) + len(places)
                body = f"{number:06d}-".encode() + b"." * BODY_BYTES
                answer = wire.send(TOPIC, number % QUEUES, body, KEYS=f"k{number}")
                if answer.code == SYSTEM_BUSY:  # Java, while all buffers of its pool are full
                    continue
                assert answer.code == SUCCESS, answer.remark
                assert answer.ext["queueOffset"] == str(number // QUEUES)
                places.append(int(answer.ext["msgId"][-16:], 16))
        found = self.everything(len(self.stored) + len(places))
        # Earlier messages stay as they were, and each new message is where its answer said.
        assert found[: len(self.stored)] == self.stored
        assert [one.log_offset for one in found[len(self.stored) :]] == places
        self._check_keys(found[len(self.stored) :])
        self.stored = found
        return places[0]

    def everything(self, count: int) -> list[Stored]:
        """All messages in the order of the log, once `count` are visible."""
        with self.broker.wire() as wire:
            wait_until(lambda: self._visible(wire) >= count, 20, f"{count} messages visible")
            found = sorted(wire.read_topic(TOPIC, QUEUES), key=lambda one: one.log_offset)
            for one in found[::31]:
                assert wire.by_log_offset(one.log_offset) == one
        return found

    def _check_keys(self, messages: list[Stored]) -> None:
        with self.broker.wire() as wire:
            for one in messages[::17]:
                # Java's index comes a little behind its queues.
                wait_until(partial(is_found_by_key, wire, one), 10, one.properties["KEYS"])

    def _visible(self, wire: Wire) -> int:
        return sum(wire.max_offset(TOPIC, queue) for queue in range(QUEUES))

    def directory_of(self, log_offset: int) -> str:
        """The name of the directory that holds the log offset; only one does."""
        name = f"{log_offset // SEGMENT * SEGMENT:020d}"
        (found,) = (path.parent.name for path in self.root.glob(f"*/{name}"))
        return found

    def is_in(self, directory: str) -> Callable[[int], bool]:
        return lambda log_offset: self.directory_of(log_offset) == directory

    def bytes_at(self, log_offset: int, size: int) -> bytes:
        start = log_offset // SEGMENT * SEGMENT
        path = self.root / self.directory_of(log_offset) / f"{start:020d}"
        return path.read_bytes()[log_offset - start : log_offset - start + size]

    def end(self) -> int:
        """Log offset behind the last record."""
        last = self.stored[-1].log_offset
        return last + int.from_bytes(self.bytes_at(last, 4), "big")


def is_found_by_key(wire: Wire, one: Stored) -> bool:
    return one in wire.by_key(TOPIC, one.properties["KEYS"], 0, one.store_ms)


def shape(root: Path, names: str, *, read_only: str = "", **more: str) -> StoreShape:
    """A log in directories below `root`, each list separated by commas."""
    lists = {"storePathCommitLog": names, "readOnlyCommitLogStorePaths": read_only}
    paths = {
        key: ",".join(str(root / name) for name in value.split(","))
        for key, value in lists.items()
        if value
    }
    return StoreShape(
        segment_bytes=SEGMENT,
        queue_segment_bytes=4_000,
        index_slots=500,
        index_entries=1_000,
        extra={**paths, **more},
    )


def dealt(start: int, *names: str) -> str:
    """Where the rule puts the segment of a log offset."""
    return sorted(names)[start // SEGMENT % len(names)]


def locked_bytes(broker: Broker) -> int:
    found = re.search(r"VmLck:\s+(\d+) kB", Path(f"/proc/{broker.pid}/status").read_text())
    assert found is not None
    return int(found[1]) * 1024


def free_buffers(broker: Broker) -> int:
    with broker.wire() as wire:
        # Java fails to answer in the first moments after its start, before it has taken a sample.
        wait_until(lambda: wire.call(BROKER_RUNTIME_INFO).code == SUCCESS, 10, "runtime info")
        table = json.loads(wire.done(BROKER_RUNTIME_INFO).body)["table"]
    return int(table["remainTransientStoreBufferNumbs"])


def check_dealt(turns: Turns, first: int, *writable: str) -> None:
    """Each segment from that log offset's on is where the rule puts it; several have one."""
    starts = range(first // SEGMENT * SEGMENT, turns.stored[-1].log_offset, SEGMENT)
    assert len(starts) >= 3
    places = [turns.directory_of(start) for start in starts]
    assert places == [dealt(start, *writable) for start in starts]
    assert set(places) == set(writable)


def test_pool_directories_and_warm_up_wander_between_the_brokers(
    new_broker: NewBroker, tmp_path: Path
) -> None:
    root = tmp_path / "disks"
    root.mkdir()
    turns = Turns(new_broker, root)
    options = {**POOL, **WARM}

    turns.next("our", shape(root, "a,b", **options))
    assert free_buffers(turns.broker) < BUFFERS
    assert locked_bytes(turns.broker) >= BUFFERS * SEGMENT
    turns.write(until=turns.is_in("a"))
    check_dealt(turns, 0, "a", "b")
    turns.broker.stop()

    # The log ends in a directory that is read-only from now on.
    turns.next("java", shape(root, "a,b,c", read_only="a", **options))
    assert locked_bytes(turns.broker) >= BUFFERS * SEGMENT
    first = turns.write()
    assert turns.directory_of(first) == "a", "Java goes on there"
    assert free_buffers(turns.broker) < BUFFERS
    check_dealt(turns, first + SEGMENT, "b", "c")
    turns.write(1, until=turns.is_in("b"))
    turns.broker.kill()

    # And again, of directories that are not in the other list any more.
    end = turns.end()
    turns.next("our", shape(root, "c,d", read_only="a,b", **options))
    first = turns.write()
    assert turns.directory_of(first) in "cd", "ours does not"
    room = SEGMENT - end % SEGMENT
    assert turns.bytes_at(end, BLANK.size) == BLANK.pack(room, BLANK_MAGIC)
    assert turns.bytes_at(end + BLANK.size, room - BLANK.size).strip(b"\0") == b""
    check_dealt(turns, first, "c", "d")
    turns.broker.kill()

    # After a crash Java has lost index entries (FORMAT.md 8.4), with these options and without.
    turns.next("java", shape(root, "c,d", read_only="a,b", **options), by_key=False)
    first = turns.write()
    check_dealt(turns, first + SEGMENT, "c", "d")
    turns.broker.stop()
    assert {path.name for path in root.iterdir()} == {*"abcd", "store"}
    assert set(tool(turns.broker, "verify")["kinds"]) <= {"key-missing", "offsets-foreign"}


def test_segments_warmed_under_sync_flush_wander_between_the_brokers(
    new_broker: NewBroker, tmp_path: Path
) -> None:
    root = tmp_path / "disks"
    root.mkdir()
    turns = Turns(new_broker, root)
    warmed = shape(root, "a", flushDiskType="SYNC_FLUSH", **POOL, **WARM)
    for kind in ("our", "java", "our"):
        turns.next(kind, warmed)
        turns.write()
        assert free_buffers(turns.broker) in (0, (1 << 31) - 1), "no pool under SYNC_FLUSH"
        assert locked_bytes(turns.broker) >= SEGMENT
        turns.broker.stop()
    assert tool(turns.broker, "verify")["sound"]


def test_java_does_not_look_into_a_read_only_directory_beside_a_single_other(
    new_broker: NewBroker, tmp_path: Path
) -> None:
    """docs/operations.md warns of this: such a store is whole for our broker only."""
    root = tmp_path / "disks"
    root.mkdir()
    turns = Turns(new_broker, root)
    turns.next("our", shape(root, "a"))
    turns.write(until=lambda place: place > 2 * SEGMENT)
    turns.broker.stop()
    turns.next("our", shape(root, "b", read_only="a"))
    first = turns.write(10)
    turns.broker.stop()

    java = new_broker("java", "java", shape=shape(root, "b", read_only="a"), store=turns.store)
    java.start()
    with java.wire() as wire:
        for one in turns.stored[7::23]:
            found = wire.call(VIEW_MESSAGE, {"offset": one.log_offset}).code == SUCCESS
            assert found is (one.log_offset >= first)
    java.stop()

    turns.next("our", shape(root, "b", read_only="a"))
    turns.write(1)
    turns.broker.stop()
