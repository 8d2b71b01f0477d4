"""Stores for the tests of the reader of log files, read without Spark and read record by record."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from unittest.mock import patch

from aerobee.pipeline.files.directory import FileReader
from aerobee.pipeline.files.part_reader import read_part
from aerobee.pipeline.files.store_options import StoreOptions
from aerobee.pipeline.files.store_plan import Part, plan
from aerobee.protocol.message.ids import offset_msg_id
from aerobee.protocol.message.record import Message, decode_record
from aerobee.protocol.message.record_layout import BLANK_MAGIC, MESSAGE_MAGIC, pack_host
from aerobee.store.message_store import MessageStore
from tests.unit.store.support import ManualClock, message, small_settings

GOLDEN = Path(__file__).parents[2] / "golden"
Row = dict[str, object]


def parts(path: Path | str, **options: str) -> list[Part]:
    parsed = StoreOptions.parse({"path": str(path), **options})
    return plan(parsed, parsed.selection)


def rows(path: Path | str, **options: str) -> list[Row]:
    """All rows, partition by partition; every batch is checked against the schema."""
    parsed = StoreOptions.parse({"path": str(path), **options})
    found: list[Row] = []
    for part in plan(parsed, parsed.selection):
        for batch in read_part(part, parsed, parsed.selection):
            batch.validate(full=True)
            assert batch.num_rows
            found += batch.to_pylist()
    return found


def offsets(found: list[Row]) -> list[int]:
    """Log offsets of the sound rows, in the order they came."""
    return [row["commitLogOffset"] for row in found if row["error"] is None]  # type: ignore[misc]


def errors(found: list[Row]) -> list[str]:
    return [str(row["error"]) for row in found if row["error"] is not None]


def read_one_by_one(root: Path) -> list[Message]:
    """Every record of a sound store, by the reader of single records."""
    found = []
    for path in sorted((root / "commitlog").iterdir()):
        data, position = path.read_bytes(), 0
        while position + 8 <= len(data):
            magic = int.from_bytes(data[position + 4 : position + 8], "big")
            if magic != MESSAGE_MAGIC:
                assert magic in (0, BLANK_MAGIC)
                break
            record = decode_record(data, position)
            found.append(record)
            position += record.size
    return found


def as_row(record: Message) -> Row:
    """The source's standard columns for it; bodies as stored."""
    properties = record.properties
    place = offset_msg_id(pack_host(*record.store_host), record.log_offset)

    def host(ip: str, port: int) -> str:
        return f"[{ip}]:{port}" if ":" in ip else f"{ip}:{port}"

    return {
        "topic": record.topic,
        "flag": record.flag,
        "body": record.body,
        "properties": dict(properties),
        "queueId": record.queue_id,
        "queueOffset": record.queue_offset,
        "bornTimestamp": record.born_timestamp_ms,
        "storeTimestamp": record.store_timestamp_ms,
        "msgId": properties.get("UNIQ_KEY", place),
        "offsetMsgId": place,
        "keys": properties.get("KEYS"),
        "tags": properties.get("TAGS"),
        "reconsumeTimes": record.reconsume_times,
        "sysFlag": record.sys_flag,
        "bornHost": host(*record.born_host),
        "storeHost": host(*record.store_host),
        "commitLogOffset": record.log_offset,
        "recordSize": record.size,
        "preparedTransactionOffset": record.prepared_transaction_offset,
        "error": None,
    }


def plain(row: Row) -> Row:
    """A row in the terms of `as_row`: times in ms, properties as a dict."""
    times = {
        name: round(row[name].timestamp() * 1000)  # type: ignore[attr-defined]
        for name in ("bornTimestamp", "storeTimestamp")
    }
    return row | times | {"properties": dict(row["properties"])}  # type: ignore[call-overload]


def write_store(root: Path, count: int = 60, *, clean: bool = True, size: int = 60) -> MessageStore:
    """A broker's store of 4 KiB segments: topics A (mostly) and Rare, two queues each, one message
    a second; closed in order, or left open."""
    clock = ManualClock()
    store = MessageStore.open(small_settings(root), clock=clock)
    for number in range(count):
        clock.time_ms += 1000
        topic = "Rare" if number % 20 == 7 else "A"
        body = b"%05d" % number + b"." * size
        store.log.put(message(body, topic, number % 2, unique=f"U{number}", tags="t"))
    store.dispatch()
    if clean:
        store.close()
    return store


def copy_of_open(root: Path, target: Path, count: int = 60) -> Path:
    """Make a copy of a running broker's directory."""
    store = write_store(root, count, clean=False)
    shutil.copytree(root, target)
    store.close()
    return target


Reads = list[tuple[str, int, int]]


@contextmanager
def counted_reads() -> Iterator[Reads]:
    """(path, position, bytes) of everything that is read of a store inside the block."""
    reads: Reads = []
    original = FileReader.read

    def read(self: FileReader, position: int, count: int) -> bytes:
        data = original(self, position, count)
        reads.append((self.path, position, len(data)))
        return data

    with patch.object(FileReader, "read", read):
        yield reads


def log_bytes(reads: Reads) -> int:
    """How much of them was of the commit log."""
    return sum(count for path, _, count in reads if "/commitlog/" in path)
