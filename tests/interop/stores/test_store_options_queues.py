"""Extension files, multi-dispatch, light queues and sealed records in one store of both brokers.

One chain, because each Java broker takes seconds to start: Java writes and is killed, ours makes
its queues again from the log and writes on, is killed, Java does the same, ours has the last look.
"""

import json
import shutil
import struct
import zlib
from collections.abc import Callable
from pathlib import Path

from tests.interop.brokers import Broker, StoreShape
from tests.interop.processes import wait_until
from tests.interop.stores.test_store_tools import tool
from tests.interop.wire import Stored, Wire

TOPIC = "crossing-options"
QUEUES = 3
LIGHT = ("%LMQ%one", "%LMQ%two")
# Sent to as a topic. Java numbers messages of a light queue that are sent to it and messages that
# list it apart, and loses some where both are done.
STRAIGHT = "%LMQ%straight"
AUDIT = "crossing-audit"  # an ordinary queue that messages list
GROUP = "%LMQ%readers"
TAGS = ("T0", "T1")
COUNT = 120
EXT_BYTES = 1_000
LOWEST = -(1 << 63)
EXT_HEAD, UNIT = struct.Struct(">hqqh"), struct.Struct(">qiq")
UPDATE_OFFSET, QUERY_OFFSET = 15, 14
FOLDERS = ("consumequeue", "consumequeue_ext")
SHAPE = StoreShape(
    segment_bytes=1 << 20,
    queue_segment_bytes=1_000,
    extra={
        "enableConsumeQueueExt": "true",
        "mappedFileSizeConsumeQueueExt": str(EXT_BYTES),
        "enableMultiDispatch": "true",
        "enableLmq": "true",
        # Ours alone: RocketMQ knows them from 5.2 on, and passes over keys it does not know.
        "enabledAppendPropCRC": "true",
        "forceVerifyPropCRC": "true",
    },
)


def write(wire: Wire, turn: str) -> None:
    """Messages for 0 to 3 further queues each, and some straight to a light queue."""
    for n in range(COUNT):
        body, tag = f"{turn}-{n}".encode(), TAGS[n % 2]
        further = [*LIGHT, AUDIT][: n % 4]
        properties = {"TAGS": tag, "KEYS": f"{turn}-{n}"}
        if further:
            properties["INNER_MULTI_DISPATCH"] = ",".join(further)
        assert wire.send(TOPIC, n % QUEUES, body, **properties).code == 0
        if n % 10 == 0:
            assert wire.send(STRAIGHT, 0, b"straight-" + body, TAGS=tag).code == 0


def expected(name: str, turns: tuple[str, ...], queue: int = 0) -> list[str]:
    """Bodies of a queue, in order."""
    found = []
    for turn in turns:
        for n in range(COUNT):
            further = [*LIGHT, AUDIT][: n % 4]
            own = (TOPIC, n % QUEUES)
            others = [(one, 0 if one in LIGHT else n % QUEUES) for one in further]
            if (name, queue) in [own, *others]:
                found.append(f"{turn}-{n}")
            if n % 10 == 0 and name == STRAIGHT:
                found.append(f"straight-{turn}-{n}")
    return found


def read(wire: Wire, name: str, queue: int, count: int, tags: str = "*") -> list[Stored]:
    """A queue's messages once the last of them is there."""
    wait_until(lambda: wire.max_offset(name, queue) >= count, 20, f"{count} messages in {name}")
    return wire.read_queue(name, queue, tags)


def check(broker: Broker, *turns: str) -> None:
    """Every queue has its messages and each its number; the tag filter goes by their tags."""
    with broker.wire() as wire:
        wire.create_topic(AUDIT, QUEUES)  # a topic's queues are there before the topic
        for name in (TOPIC, AUDIT):
            for queue in range(QUEUES):
                bodies = expected(name, turns, queue)
                assert [one.body for one in read(wire, name, queue, len(bodies))] == bodies
        for name in (*LIGHT, STRAIGHT):
            bodies = expected(name, turns)
            found = read(wire, name, 0, len(bodies))
            assert [one.body for one in found] == bodies
            for number, one in enumerate(found):
                assert number_in(one, name) in (number, None)
        for number, tag in enumerate(TAGS):
            # Every third message is in queue 0, every second has the tag.
            only = [f"{turn}-{n}" for turn in turns for n in range(3 * number, COUNT, 6)]
            assert [one.body for one in wire.read_queue(TOPIC, 0, tag)] == only
            light = [one.properties["TAGS"] for one in wire.read_queue(LIGHT[0], 0, tag)]
            assert set(light) == {tag}
        assert wire.read_queue(TOPIC, 0, "other") == []


def number_in(message: Stored, name: str) -> int | None:
    """The message's number in a further queue, as its record says; None if it is its own queue."""
    names = message.properties.get("INNER_MULTI_DISPATCH", "").split(",")
    if name not in names:
        return None
    return int(message.properties["INNER_MULTI_QUEUE_OFFSET"].split(",")[names.index(name)])


def derived(store: Path) -> dict[str, bytes]:
    """Consume queues and their extensions, without empty files made ahead."""
    files = {
        str(path.relative_to(store)): path.read_bytes()
        for folder in FOLDERS
        for path in sorted((store / folder).rglob("*"))
        if path.is_file()
    }
    return {name: data for name, data in files.items() if data.strip(b"\0")}


def check_extensions(store: Path) -> None:
    """Each unit of a message's own queue names an extension with its tags code; further ones the
    tags code itself."""
    codes = {java_hash(tag) for tag in TAGS}
    own = further = 0
    for path in sorted((store / "consumequeue").glob("*/*/0*")):
        name = path.relative_to(store / "consumequeue").parts[:2]
        extensions = read_extensions(store / "consumequeue_ext" / name[0] / name[1])
        for log_offset, size, code in UNIT.iter_unpack(path.read_bytes()):
            if size <= 0:
                continue
            topic = topic_at(store, log_offset)
            if topic == name[0]:
                assert extensions[code - LOWEST] in codes
                own += 1
            else:
                assert code in codes
                further += 1
    assert own >= COUNT
    assert further > COUNT


def read_extensions(folder: Path) -> dict[int, int]:
    """Tags codes by offset."""
    found: dict[int, int] = {}
    for path in sorted(folder.glob("0*")):
        data, position = path.read_bytes(), 0
        assert len(data) == EXT_BYTES
        while position <= EXT_BYTES - 20:
            size, code, store_ms, map_size = EXT_HEAD.unpack_from(data, position)
            if size <= 0:
                break
            assert (size, map_size) == (20, 0)
            assert store_ms > 1_600_000_000_000
            found[int(path.name) + position] = code
            position += size
    return found


def topic_at(store: Path, log_offset: int) -> str:
    log = (store / "commitlog" / f"{0:020d}").read_bytes()
    (body_size,) = struct.unpack_from(">i", log, log_offset + 84)
    at = log_offset + 88 + body_size
    return log[at + 1 : at + 1 + log[at]].decode()


def java_hash(text: str) -> int:
    value = 0
    for character in text:
        value = (31 * value + ord(character)) & 0xFFFFFFFF
    return value - 2**32 if value >= 2**31 else value


def check_seals(store: Path, broker: Broker, turn: str, *, sealed: bool) -> None:
    """A record of our broker ends with the CRC of all of it; to Java that is a property."""
    log = (store / "commitlog" / f"{0:020d}").read_bytes()
    with broker.wire() as wire:
        ours = [one for one in wire.read_queue(TOPIC, 1) if one.body.startswith(f"{turn}-")]
    for one in ours:
        (size,) = struct.unpack_from(">i", log, one.log_offset)
        record = log[one.log_offset : one.log_offset + size]
        assert ("__CRC32#" in one.properties) is sealed
        if sealed:
            digits = f"{zlib.crc32(record[:-20]) & 0x7FFFFFFF:010d}"[::-1]
            assert record[-20:] == f"__CRC32#\x01{digits}\x02".encode()
            assert one.properties["__CRC32#"] == digits


def commit(broker: Broker, offset: int) -> None:
    with broker.wire() as wire:
        where = {"consumerGroup": GROUP, "topic": LIGHT[0], "queueId": 0}
        wire.done(UPDATE_OFFSET, {**where, "commitOffset": offset})


def committed(broker: Broker) -> int:
    with broker.wire() as wire:
        where = {"consumerGroup": GROUP, "topic": LIGHT[0], "queueId": 0}
        return int(wire.done(QUERY_OFFSET, where).ext["offset"])


def wait_saved(store: Path, offset: int) -> None:
    """Both brokers write consumer offsets every five seconds; a killed one would lose them."""
    path = store / "config" / "lmqConsumerOffset.json"

    def saved() -> bool:
        if not path.exists():
            return False
        table = json.loads(path.read_text() or "{}")
        return bool(table.get("lmqOffsetTable", {}).get(f"{LIGHT[0]}@{GROUP}") == offset)

    wait_until(saved, 30, f"offset {offset} in {path.name}")


def take_derived_away(store: Path) -> dict[str, bytes]:
    """Remove them, so that the next broker has to make all of them again; return the old
    contents."""
    before = derived(store)
    for folder in FOLDERS:
        shutil.rmtree(store / folder)
    (store / "checkpoint").unlink()
    (store / "offsets").unlink(missing_ok=True)
    return before


def test_queue_options_wander_between_the_brokers(
    new_broker: Callable[..., Broker], tmp_path: Path
) -> None:
    store = tmp_path / "store"
    java, our, java_again, our_again = (
        new_broker(kind, f"{turn}-{kind}", shape=SHAPE, store=store)
        for turn, kind in enumerate(("java", "our", "java", "our"))
    )

    java.start()
    java.create_topic(TOPIC, QUEUES)
    with java.wire() as wire:
        write(wire, "a")
    check(java, "a")
    commit(java, 7)
    wait_saved(store, 7)
    java.kill()
    before = take_derived_away(store)

    our.start()
    check(our, "a")
    assert derived(store) == before
    check_extensions(store)
    assert committed(our) == 7
    with our.wire() as wire:
        write(wire, "b")
    check(our, "a", "b")
    check_seals(store, our, "a", sealed=False)
    check_seals(store, our, "b", sealed=True)
    check_extensions(store)
    commit(our, 9)
    wait_saved(store, 9)
    our.kill()
    before = take_derived_away(store)

    java_again.start()
    check(java_again, "a", "b")
    assert derived(store) == before
    check_seals(store, java_again, "b", sealed=True)
    assert committed(java_again) == 9
    with java_again.wire() as wire:
        write(wire, "c")
    check(java_again, "a", "b", "c")
    java_again.stop()

    our_again.start()
    check(our_again, "a", "b", "c")
    check_extensions(store)
    our_again.stop()
    assert tool(our_again, "verify")["findings"] == []
    before = derived(store)
    tool(our_again, "rebuild", "--queues")
    assert derived(store) == before
