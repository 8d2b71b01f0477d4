"""Makes the golden stores of the options, in `tests/golden/store_<option>/`.

They are packed, as in make_store.py, from the format's description, not by the store's code. Run it
as `python -m tests.golden.make_store_options`; `git diff` must show nothing.
"""

import shutil
import struct
import zlib
from pathlib import Path

from tests.golden.make_store import (
    COMMIT,
    FIRST_MS,
    QUEUE_BYTES,
    STEP_MS,
    Item,
    Stored,
    java_hash,
    properties,
    record,
    write_store,
)

SEAL_BYTES = 20
LMQ_LOG_BYTES = 4096


def sealed_record(item: Item, queue_offset: int, log_offset: int, store_ms: int) -> bytes:
    """A record whose last property is the CRC of all before it (store/FORMAT.md 2.10)."""
    text = item.properties
    if text and not text.endswith("\x02"):
        text += "\x02"
    # The bytes in the seal's place do not count, but their length does.
    roomy = item._replace(properties=text + " " * SEAL_BYTES)
    head = record(roomy, queue_offset, log_offset, store_ms)[:-SEAL_BYTES]
    value = zlib.crc32(head) & 0x7FFFFFFF
    digits = b""
    for _ in range(10):
        digits += b"%d" % (value % 10)
        value //= 10
    return head + b"__CRC32#\x01" + digits + b"\x02"


LMQ_WORKLOAD = [
    Item("Orders", 2, b"two light", properties(TAGS="a", INNER_MULTI_DISPATCH="%LMQ%x,%LMQ%y")),
    Item("Orders", 2, b"none", properties(TAGS="b")),
    Item("Orders", 0, b"plain and light", properties(INNER_MULTI_DISPATCH="Audit,%LMQ%x")),
    Item("%LMQ%x", 0, b"straight", properties(TAGS="c")),
    Item("Orders", 1, b"twice", properties(INNER_MULTI_DISPATCH="%LMQ%y,%LMQ%y,Orders")),
    *(
        Item("Orders", n % 3, b"%d" % n * 40, properties(INNER_MULTI_DISPATCH="%LMQ%x"))
        for n in range(8)
    ),
    Item("%RETRY%group", 0, b"again", properties(INNER_MULTI_DISPATCH="%LMQ%x")),
]


def listed(item: Item) -> list[tuple[str, int]]:
    """The further queues that the item lists."""
    names = item.values().get("INNER_MULTI_DISPATCH", "")
    if not names or item.topic.startswith("%RETRY%"):
        return []
    return [(name, 0 if name.startswith("%LMQ%") else item.queue_id) for name in names.split(",")]


def lmq_store() -> tuple[bytes, dict[tuple[str, int], bytes]]:
    """The commit log (one segment) and each queue's entries of LMQ_WORKLOAD, put singly."""
    log = b""
    queues: dict[tuple[str, int], bytes] = {}
    for turn, item in enumerate(LMQ_WORKLOAD):
        own = (item.topic, item.queue_id)
        others = listed(item)
        if others:
            numbers = ",".join(str(len(queues.get(other, b"")) // 20) for other in others)
            text = item.properties + "\x02INNER_MULTI_QUEUE_OFFSET\x01" + numbers
            item = item._replace(properties=text)
        number = len(queues.get(own, b"")) // 20
        data = record(item, number, len(log), FIRST_MS + turn * STEP_MS)
        unit = struct.pack(">qiq", len(log), len(data), java_hash(item.tags))
        for key in dict.fromkeys([own, *others]):
            queues[key] = queues.get(key, b"") + unit
        log += data
    assert len(log) < LMQ_LOG_BYTES
    return log + bytes(LMQ_LOG_BYTES - len(log)), queues


def write_lmq_store(root: Path) -> None:
    """Log and queues only."""
    log, queues = lmq_store()
    (root / "commitlog").mkdir(parents=True)
    (root / "commitlog" / f"{0:020d}").write_bytes(log)
    for (topic, queue_id), units in queues.items():
        directory = root / "consumequeue" / topic / str(queue_id)
        directory.mkdir(parents=True)
        for start in range(0, len(units), QUEUE_BYTES):
            part = units[start : start + QUEUE_BYTES]
            (directory / f"{start:020d}").write_bytes(part + bytes(QUEUE_BYTES - len(part)))


EXT_BYTES = 64  # three units and the mark


def ext_files(stored: list[Stored]) -> tuple[dict[str, bytes], dict[str, bytes]]:
    """Consume queue files that hold addresses, and the extension files they lie in."""
    units: dict[tuple[str, int], bytes] = {}
    extensions: dict[tuple[str, int], bytes] = {}
    for place in stored:
        if place.item.sys_flag & 0xC not in (0, COMMIT):
            continue
        key = (place.item.topic, place.item.queue_id)
        extension = extensions.get(key, b"")
        if EXT_BYTES - len(extension) % EXT_BYTES - 4 < 20:
            extension += b"\xff\xff\0\0"
        address = len(extension) - (1 << 63)
        extension += struct.pack(">hqqh", 20, java_hash(place.item.tags), place.store_ms, 0)
        extensions[key] = extension
        unit = struct.pack(">qiq", place.log_offset, place.size, address)
        units[key] = units.get(key, b"") + unit
    return split(units, QUEUE_BYTES), split(extensions, EXT_BYTES)


def split(queues: dict[tuple[str, int], bytes], size: int) -> dict[str, bytes]:
    files = {}
    for (topic, queue_id), data in queues.items():
        for start in range(0, len(data), size):
            part = data[start : start + size]
            files[f"{topic}/{queue_id}/{start:020d}"] = part + bytes(size - len(part))
    return files


def write_ext_store(root: Path) -> None:
    """The store of make_store.py with extension files."""
    stored = write_store(root, ["0", "1"])
    shutil.rmtree(root / "consumequeue")
    for folder, files in zip(("consumequeue", "consumequeue_ext"), ext_files(stored), strict=True):
        for name, data in files.items():
            path = root / folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(data)


def target(option: str) -> Path:
    return Path(__file__).parent / f"store_{option}"


if __name__ == "__main__":
    shutil.rmtree(target("sealed"), ignore_errors=True)
    write_store(target("sealed"), ["0", "1"], sealed_record)
    shutil.rmtree(target("lmq"), ignore_errors=True)
    write_lmq_store(target("lmq"))
    shutil.rmtree(target("ext"), ignore_errors=True)
    write_ext_store(target("ext"))
