"""Makes the golden store in `tests/golden/store/`: the bytes the store must write and read.

Independent of the store's code on purpose: everything is packed here with struct, straight from
the format's description (store/FORMAT.md 1-7). Run it as `python tests/golden/make_store.py`; it
rewrites the directory, and `git diff` must show nothing. The index files' names are times in the
local time zone, so only their content is golden; they are kept as `index/0` and `index/1`.
"""

import shutil
import struct
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

LOG_BYTES = 2048
QUEUE_BYTES = 100  # five units
SLOTS, ENTRIES = 7, 20
FIRST_MS = 1_700_000_000_000
STEP_MS = 700

V4 = bytes((192, 0, 2, 1)) + struct.pack(">i", 10911)
V6 = bytes.fromhex("20010db8000000000000000000000001") + struct.pack(">i", 10911)
PREPARED, COMMIT, ROLLBACK = 0x4, 0x8, 0xC


class Item(NamedTuple):
    """One message of the workload; messages with the same `batch` number are put together."""

    topic: str
    queue_id: int
    body: bytes
    properties: str
    born_host: bytes = V4
    store_host: bytes = V4
    flag: int = 0
    sys_flag: int = 0
    reconsume_times: int = 0
    prepared_offset: int = 0
    batch: int = 0

    @property
    def tags(self) -> str:
        return self.values().get("TAGS", "")

    @property
    def keys(self) -> tuple[str, ...]:
        values = self.values()
        words = [word for word in values.get("KEYS", "").split(" ") if word]
        return tuple(([values["UNIQ_KEY"]] if "UNIQ_KEY" in values else []) + words)

    def values(self) -> dict[str, str]:
        entries = (entry.partition("\x01") for entry in self.properties.split("\x02"))
        return {name: value for name, _, value in entries if name and value}


def properties(**values: str) -> str:
    return "\x02".join(f"{name}\x01{value}" for name, value in values.items())


WORKLOAD = [
    Item("Orders", 0, b"first", properties(TAGS="TagA", KEYS="k1 k2", UNIQ_KEY="U1")),
    Item("Orders", 1, b"born v6", properties(TAGS="TagA", UNIQ_KEY="U2"), born_host=V6),
    Item("Orders", 0, b"store v6", properties(UNIQ_KEY="U3", CLUSTER="c"), store_host=V6, flag=-7),
    Item("Orders", 0, b"both v6", "trailing\x01separator\x02", born_host=V6, store_host=V6),
    Item("RMQ_SYS_TRANS_HALF_TOPIC", 0, b"half", properties(UNIQ_KEY="U4"), sys_flag=PREPARED),
    Item("Orders", 1, b"", properties(UNIQ_KEY="U5"), sys_flag=ROLLBACK),
    Item(
        "Orders",
        1,
        b"committed",
        properties(UNIQ_KEY="U4", TAGS="标签 🚀"),
        sys_flag=COMMIT | 0x1,
        prepared_offset=500,
        reconsume_times=3,
    ),
    Item("Orders", 0, bytes(range(256)), properties(KEYS="ключ  ключ", TAGS="TagB")),
    Item("Batch_%x-", 2, b"one", properties(UNIQ_KEY="B1"), batch=1, flag=1),
    Item("Batch_%x-", 2, b"two", properties(UNIQ_KEY="B2", TAGS="TagA"), batch=1, flag=2),
    Item("Batch_%x-", 2, b"three", properties(UNIQ_KEY="B3"), batch=1, flag=3),
    *(
        Item("Orders", 0, b"filler %d " % n * 9, properties(UNIQ_KEY=f"F{n}", TAGS=f"T{n % 3}"))
        for n in range(14)
    ),
]


class Stored(NamedTuple):
    """A message of the workload at its place."""

    item: Item
    log_offset: int
    size: int
    queue_offset: int
    store_ms: int


def java_hash(text: str) -> int:
    value = 0
    data = text.encode("utf-16-be")
    for (unit,) in struct.iter_unpack(">H", data):
        value = (31 * value + unit) & 0xFFFFFFFF
    return value - 2**32 if value >= 2**31 else value


Encode = Callable[[Item, int, int, int], bytes]


def record(item: Item, queue_offset: int, log_offset: int, store_ms: int) -> bytes:
    sys_flag = item.sys_flag
    sys_flag |= 0x10 if len(item.born_host) == 20 else 0
    sys_flag |= 0x20 if len(item.store_host) == 20 else 0
    topic = item.topic.encode()
    text = item.properties.encode()
    rest = (
        struct.pack(">iiiqq", zlib.crc32(item.body) & 0x7FFFFFFF, item.queue_id, item.flag,
                    queue_offset, log_offset)
        + struct.pack(">iq", sys_flag, FIRST_MS - 5)
        + item.born_host
        + struct.pack(">q", store_ms)
        + item.store_host
        + struct.pack(">iqi", item.reconsume_times, item.prepared_offset, len(item.body))
        + item.body
        + struct.pack(">b", len(topic)) + topic
        + struct.pack(">h", len(text)) + text
    )  # fmt: skip
    return struct.pack(">iI", len(rest) + 8, 0xDAA320A7) + rest


def puts() -> list[list[Item]]:
    """The workload as puts: batches together, the rest singly."""
    calls: list[list[Item]] = []
    for item in WORKLOAD:
        if item.batch and calls and calls[-1][0].batch == item.batch:
            calls[-1].append(item)
        else:
            calls.append([item])
    return calls


def make_log(encode: Encode = record) -> tuple[bytes, list[Stored]]:
    """The whole commit log, cut to full segments, and where everything went."""
    log = b""
    stored: list[Stored] = []
    numbers: dict[tuple[str, int], int] = {}
    for call, items in enumerate(puts()):
        store_ms = FIRST_MS + call * STEP_MS
        total = sum(len(encode(item, 0, 0, store_ms)) for item in items)
        left = LOG_BYTES - len(log) % LOG_BYTES
        if total + 8 > left:
            log += struct.pack(">iI", left, 0xCBD43194) + bytes(left - 8)
        for item in items:
            in_queue = item.sys_flag & 0xC in (0, COMMIT)
            key = (item.topic, item.queue_id)
            number = numbers.get(key, 0) if in_queue else 0
            data = encode(item, number, len(log), store_ms)
            stored.append(Stored(item, len(log), len(data), number, store_ms))
            log += data
            if in_queue:
                numbers[key] = number + 1
    return log + bytes(-len(log) % LOG_BYTES), stored


def make_queues(stored: list[Stored]) -> dict[tuple[str, int], bytes]:
    queues: dict[tuple[str, int], bytes] = {}
    for place in stored:
        if place.item.sys_flag & 0xC in (0, COMMIT):
            unit = struct.pack(">qiq", place.log_offset, place.size, java_hash(place.item.tags))
            key = (place.item.topic, place.item.queue_id)
            queues[key] = queues.get(key, b"") + unit
    return {key: data + bytes(-len(data) % QUEUE_BYTES) for key, data in queues.items()}


def make_index(stored: list[Stored]) -> list[bytes]:
    files: list[bytes] = []
    slots = [0] * SLOTS
    entries = [bytes(20)]
    begin_ms = end_ms = begin_offset = end_offset = 0
    for place in stored:
        if place.item.sys_flag & 0xC == ROLLBACK:
            continue
        for key in place.item.keys:
            if len(entries) == ENTRIES:
                files.append(index_file(slots, entries, begin_ms, end_ms, begin_offset, end_offset))
                slots, entries = [0] * SLOTS, [bytes(20)]
                begin_ms, begin_offset = end_ms, end_offset
            value = abs(java_hash(f"{place.item.topic}#{key}"))
            value = 0 if value == 2**31 else value
            seconds = max(0, (place.store_ms - begin_ms) // 1000) if begin_ms > 0 else 0
            entries.append(
                struct.pack(">iqii", value, place.log_offset, seconds, slots[value % SLOTS])
            )
            slots[value % SLOTS] = len(entries) - 1
            if len(entries) == 2:
                begin_ms, begin_offset = place.store_ms, place.log_offset
            end_ms, end_offset = place.store_ms, place.log_offset
    files.append(index_file(slots, entries, begin_ms, end_ms, begin_offset, end_offset))
    return files


def index_file(
    slots: list[int], entries: list[bytes], begin_ms: int, end_ms: int, begin: int, end: int
) -> bytes:
    used = sum(1 for slot in slots if slot)
    header = struct.pack(">qqqqii", begin_ms, end_ms, begin, end, used, len(entries))
    body = header + struct.pack(f">{SLOTS}i", *slots) + b"".join(entries)
    return body + bytes(40 + 4 * SLOTS + 20 * ENTRIES - len(body))


def write_store(root: Path, index_names: list[str], encode: Encode = record) -> list[Stored]:
    """Write the golden store to `root`, its index files named so; where everything went."""
    log, stored = make_log(encode)
    (root / "commitlog").mkdir(parents=True)
    for start in range(0, len(log), LOG_BYTES):
        (root / "commitlog" / f"{start:020d}").write_bytes(log[start : start + LOG_BYTES])
    for (topic, queue_id), data in make_queues(stored).items():
        directory = root / "consumequeue" / topic / str(queue_id)
        directory.mkdir(parents=True)
        for start in range(0, len(data), QUEUE_BYTES):
            (directory / f"{start:020d}").write_bytes(data[start : start + QUEUE_BYTES])
    (root / "index").mkdir()
    for name, data in zip(index_names, make_index(stored), strict=True):
        (root / "index" / name).write_bytes(data)
    last_ms = stored[-1].store_ms
    times = struct.pack(">qqq", last_ms, last_ms, last_ms)
    (root / "checkpoint").write_bytes(times + bytes(4096 - len(times)))
    (root / "lock").write_bytes(b"lock")
    return stored


if __name__ == "__main__":
    target = Path(__file__).parent / "store"
    shutil.rmtree(target, ignore_errors=True)
    write_store(target, ["0", "1"])
