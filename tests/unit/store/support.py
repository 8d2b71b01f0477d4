"""Shared by the store's tests: small settings, messages, a clock, images of a killed store."""

import os
import shutil
from collections.abc import Callable, Generator
from pathlib import Path
from typing import TypeVar

import msgspec

from aerobee.config.model import Settings
from aerobee.protocol.hashing import tag_code
from aerobee.protocol.message.properties import decode_properties, encode_properties, index_keys
from aerobee.protocol.message.record import Message, StoreMessage, decode_records
from aerobee.protocol.message.record_layout import pack_host
from aerobee.store.disk.files import Clock, Files
from aerobee.store.disk.offsets_file import OffsetsFile
from aerobee.store.errors import StoreBroken, StoreNotWritable
from aerobee.store.log.marks import Marks, StoreListener
from aerobee.store.message_store import MessageStore
from aerobee.store.segments.results import GetStatus

T = TypeVar("T")

HOST = pack_host("192.0.2.1", 10911)
SEGMENT = 4096
QUEUE_SEGMENT = 200  # ten units
FIRST_MS = 1_700_000_000_000


def small_settings(path: Path, **changes: object) -> Settings:
    """Segments of a few messages, no flush but at roll, at close and when asked for."""
    values: dict[str, object] = {
        "store_path": str(path),
        "commit_log_segment_bytes": SEGMENT,
        "consume_queue_segment_bytes": QUEUE_SEGMENT,
        "index_slots": 50,
        "index_entries": 40,
        "max_message_bytes": 3000,
        "flush_interval_ms": 20,
        "disk_warning_ratio": 1.0,
    }
    return Settings.for_tests(**(values | changes))


class Heard(StoreListener):
    """The reports of a store: its marks at each move, and its failure; `durable` is called with
    each durable mark."""

    def __init__(self, durable: Callable[[int], None] = lambda _mark: None) -> None:
        self.durable: list[int] = []
        self.committed: list[int] = []
        self.failures: list[StoreBroken] = []
        self._tell = durable

    def moved(self, marks: Marks) -> None:
        self.committed.append(marks.committed)
        if marks.durable not in self.durable[-1:]:
            self.durable.append(marks.durable)
            self._tell(marks.durable)

    def broken(self, error: StoreBroken) -> None:
        self.failures.append(error)


def marks_at(log_offset: int) -> Marks:
    """The marks of a store whose log ends there."""
    return Marks(Settings.for_tests(), log_offset, 0, StoreListener())


class ManualClock(Clock):
    """Wall time that a test moves; intervals stay real."""

    def __init__(self, now_ms: int = FIRST_MS) -> None:
        self.time_ms = now_ms

    def now_ns(self) -> int:
        return self.time_ms * 1_000_000

    def now_ms(self) -> int:
        return self.time_ms


def message(
    body: bytes = b"hello",
    topic: str = "Orders",
    queue_id: int = 0,
    *,
    tags: str = "",
    keys: str = "",
    unique: str = "",
    sys_flag: int = 0,
    born_host: bytes = HOST,
    store_host: bytes = HOST,
    more: dict[str, str] | None = None,
) -> StoreMessage:
    values = {"TAGS": tags, "KEYS": keys, "UNIQ_KEY": unique} | (more or {})
    return from_properties(
        body,
        topic,
        queue_id,
        encode_properties({name: value for name, value in values.items() if value}).encode(),
        sys_flag=sys_flag,
        born_host=born_host,
        store_host=store_host,
    )


def from_properties(
    body: bytes,
    topic: str,
    queue_id: int,
    properties: bytes,
    *,
    sys_flag: int = 0,
    born_host: bytes = HOST,
    store_host: bytes = HOST,
    flag: int = 0,
    born_ms: int = FIRST_MS,
    reconsume_times: int = 0,
    prepared_offset: int = 0,
) -> StoreMessage:
    """A message as the broker makes it of a request."""
    values = decode_properties(properties)
    return StoreMessage(
        topic,
        queue_id,
        flag,
        sys_flag,
        born_ms,
        born_host,
        store_host,
        reconsume_times,
        prepared_offset,
        body,
        properties,
        tag_code(values.get("TAGS", "")),
        index_keys(values),
    )


def read_all(store: MessageStore, topic: str = "Orders", queue_id: int = 0) -> list[Message]:
    """Every message of a queue, pulled as a consumer does, from its first offset on."""
    found: list[Message] = []
    offset = store.min_offset(topic, queue_id)
    while True:
        result = store.reader.get(topic, queue_id, offset, 32, None)
        for view in result.views:
            found += decode_records(bytes(view))
        result.release()
        if result.status not in (GetStatus.FOUND, GetStatus.MESSAGE_WAS_REMOVING):
            return found
        offset = result.next_offset


def bodies(store: MessageStore, topic: str = "Orders", queue_id: int = 0) -> list[bytes]:
    return [found.body for found in read_all(store, topic, queue_id)]


def fill(store: MessageStore, count: int, *, queues: int = 1, size: int = 50) -> list[bytes]:
    """Put numbered messages round robin; their bodies in order."""
    made = [b"%06d" % n + b"." * size for n in range(count)]
    for n, body in enumerate(made):
        store.log.put(message(body, queue_id=n % queues, unique=f"U{n}", tags=f"T{n % 3}"))
    store.dispatch()
    return made


def put_until_refused(store: MessageStore) -> tuple[list[bytes], StoreNotWritable]:
    """Put and dispatch messages until the store takes no more; the bodies it took, the refusal."""
    taken: list[bytes] = []
    for number in range(1000):
        body = b"%04d" % number + b"." * 100
        try:
            store.log.put(message(body))
        except StoreNotWritable as refusal:
            return taken, refusal
        taken.append(body)
        store.dispatch()
    raise AssertionError("it was never refused")


def kill_image(store_path: Path, target: Path) -> Path:
    """The directory as a kill -9 of its process would leave it now, seen as a copy."""
    shutil.copytree(store_path, target, copy_function=_copy_if_there)
    as_copy(target)
    return target


def _copy_if_there(source: str, target: str) -> None:
    """A file that the running store was just replacing may have its other name by now."""
    try:
        shutil.copy2(source, target)
    except FileNotFoundError:
        if not source.endswith(".tmp"):
            raise


def as_copy(root: Path) -> None:
    """Copies made a moment after the original have its times by chance: let them differ."""
    if (root / "abort").exists():
        os.utime(root / "abort", ns=(1, 1))


def adopt(root: Path, *, other_boot: bool = False, **changes: object) -> Path:
    """Make the offsets file of a copied store speak of the copy, as if it were the store itself.

    `other_boot`: as if the machine had gone down since; `changes` replace values of the file.
    """
    file = OffsetsFile(Files(), str(root))
    offsets = file.load()
    assert offsets is not None
    identity = file.identity()
    if other_boot:
        identity = msgspec.structs.replace(identity, boot_id="another")
    file.save(msgspec.structs.replace(offsets, identity=identity, **changes))
    return root


def tree(root: Path, below: str) -> dict[str, bytes]:
    """Contents of all files below a folder of the store, by relative path."""
    folder = root / below
    return {
        str(path.relative_to(root)): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


def log_segment(root: Path, start: int = 0) -> Path:
    return root / "commitlog" / f"{start:020d}"


def queue_file(root: Path, topic: str = "Orders", queue_id: int = 0, start: int = 0) -> Path:
    return root / "consumequeue" / topic / str(queue_id) / f"{start:020d}"


def flip(path: Path, position: int, bit: int = 1) -> None:
    """Damage one byte of a file."""
    data = bytearray(path.read_bytes())
    data[position] ^= bit
    path.write_bytes(data)


def whole(steps: Generator[None, None, T]) -> T:
    """The result of work in steps."""
    while True:
        try:
            next(steps)
        except StopIteration as end:
            result: T = end.value
            return result
