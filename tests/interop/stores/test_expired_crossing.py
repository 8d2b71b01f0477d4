"""One broker deletes what is old; the other opens what is left, and both see the same messages."""

import shutil
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from tests.interop.brokers import Broker, StoreShape
from tests.interop.processes import wait_until
from tests.interop.wire import Stored, Wire

TOPIC = "expired"
QUEUES = 2
UNIT_BYTES = 20
# Not a multiple of what a queue file holds: at the end of a full one Java fails to clean.
COUNT = 1_230
DELETE_EXPIRED_COMMITLOG, CLEAN_EXPIRED_CONSUMEQUEUE = 329, 306
# Any disk is too full, so that a request to delete takes all segments but the last. Java has the
# ratio as a property of its machine, ours under the same name in the file.
FORCE_RATIO = "0.01"
SHAPE = StoreShape(
    segment_bytes=1 << 20,
    queue_segment_bytes=4_000,
    index_slots=1_000,
    index_entries=4_000,
    extra={
        "cleanResourceInterval": "500",
        "deleteCommitLogFilesInterval": "0",
        "deleteConsumeQueueFilesInterval": "0",
        "flushConsumeQueueThoroughInterval": "500",
    },
)
OURS = replace(SHAPE, extra={**SHAPE.extra, "diskSpaceCleanForciblyRatio": FORCE_RATIO})
# Java looks for the first time a minute after its start.
DELETED_WITHIN_S = 120


def send(wire: Wire) -> None:
    for n in range(COUNT):
        answer = wire.send(TOPIC, n % QUEUES, b"%05d" % n + b"." * 4_000, KEYS=f"k{n}")
        assert answer.code == 0, answer.remark


def everything(wire: Wire) -> list[Stored]:
    return sorted(wire.read_topic(TOPIC, QUEUES), key=lambda one: one.log_offset)


def is_trimmed(wire: Wire, store: Path, queue: int) -> bool:
    """Whether the queue begins in its first file: files go after the offset has moved, and Java
    looks for the beginning of a queue in the first file that it finds."""
    first = wire.min_offset(TOPIC, queue)
    files = sorted(
        int(path.name) for path in (store / "consumequeue" / TOPIC / f"{queue}").iterdir()
    )
    return 0 < first * UNIT_BYTES < files[0] + SHAPE.queue_segment_bytes


@pytest.fixture
def store() -> Iterator[Path]:
    """On a disk: a file system in memory, where tests have their files else, is too empty."""
    with tempfile.TemporaryDirectory(prefix="aerobee-") as folder:
        disk = shutil.disk_usage(folder)
        if disk.used / disk.total < 2 * float(FORCE_RATIO):
            pytest.skip("the disk is too empty to force anything")
        yield Path(folder) / "store"


@pytest.mark.parametrize("kinds", [("our", "java"), ("java", "our")], ids="-".join)
def test_what_one_broker_left_undeleted_the_other_serves(
    kinds: tuple[str, str], new_broker: Callable[..., Broker], store: Path
) -> None:
    deleting, other = (
        new_broker(kind, kind, shape=OURS if kind == "our" else SHAPE, store=store)
        for kind in kinds
    )
    if kinds[0] == "java":
        ratio = f"-Drocketmq.broker.diskSpaceCleanForciblyRatio={FORCE_RATIO}"
        deleting.flags = (*deleting.flags, ratio)  # type: ignore[attr-defined]
    deleting.start()
    deleting.create_topic(TOPIC, QUEUES)
    with deleting.wire() as wire:
        send(wire)
        wire.done(DELETE_EXPIRED_COMMITLOG)
        wait_until(
            lambda: (
                len(list((store / "commitlog").iterdir())) <= 2  # one more is made ahead
                and all(is_trimmed(wire, store, queue) for queue in range(QUEUES))
            ),
            DELETED_WITHIN_S,
            f"{kinds[0]} has deleted",
        )
        left = everything(wire)
        ends = [wire.max_offset(TOPIC, queue) for queue in range(QUEUES)]
        firsts = [wire.min_offset(TOPIC, queue) for queue in range(QUEUES)]
    assert 0 < len(left) < COUNT
    deleting.stop()

    other.start()
    with other.wire() as wire:
        assert everything(wire) == left
        assert [wire.max_offset(TOPIC, queue) for queue in range(QUEUES)] == ends
        assert [wire.min_offset(TOPIC, queue) for queue in range(QUEUES)] == firsts
        for one in left[::37]:
            assert one in wire.by_key(TOPIC, one.properties["KEYS"], 0, one.store_ms)
        assert wire.pull(TOPIC, 0, 0) == ([], firsts[0])
        assert wire.send(TOPIC, 0, b"next").ext["queueOffset"] == str(ends[0])
        assert wire.done(CLEAN_EXPIRED_CONSUMEQUEUE).code == 0
    other.stop()
