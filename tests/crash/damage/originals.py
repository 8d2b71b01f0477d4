"""The stores that get damaged, and everything that was in them.

One small store of 4 KiB segments in several states (`IMAGES`): stopped in order; killed with the
last messages not dispatched yet; the same after a power cut; the same without our own offsets file,
as RocketMQ would leave it; killed, with extension files. Three topics, queues, keys, tags, delayed
and half messages, hosts of either family. Everything is made with a clock of its own, so each run
makes the same bytes.
"""

import os
import shutil
from dataclasses import dataclass, field
from pathlib import Path

from aerobee.config.model import Settings
from aerobee.protocol.message.record import Message, decode_record
from aerobee.protocol.message.record_layout import pack_host
from aerobee.store.disk.offsets_file import decode
from aerobee.store.message_store import MessageStore
from tests.crash.damage import tables
from tests.crash.judges.same_directory import SameDirectory
from tests.unit.store.support import ManualClock, message, read_all, small_settings

COUNT = 96
UNDISPATCHED = 4
#: Numbers of the messages after which everything is synced and noted in the offsets file.
FLUSHED_AT = (30, 60, 85)
EXT_SETTINGS: dict[str, object] = {
    "consume_queue_ext_enabled": True,
    "consume_queue_ext_segment_bytes": 144,
}
SEGMENT = 4096
#: (topic, queue id) in turn; the fourth is delayed.
QUEUES = (("Orders", 0), ("Payments", 0), ("Orders", 1), ("SCHEDULE_TOPIC_XXXX", 2), ("Orders", 0))
HOST_V6 = pack_host("2001:db8::1", 10911)
SYS_PREPARED = 4
#: Begins what `snapshot` says of a symbolic link.
LINK = b"link to "

Place = tuple[str, int, int]


@dataclass(frozen=True)
class Record:
    """A message as it lies in the log; `place` is None for a half message."""

    number: int
    message: Message
    data: bytes

    @property
    def start(self) -> int:
        return self.message.log_offset

    @property
    def end(self) -> int:
        return self.message.log_offset + self.message.size

    @property
    def place(self) -> Place | None:
        if self.message.sys_flag & SYS_PREPARED:
            return None
        return self.message.topic, self.message.queue_id, self.message.queue_offset


class AnotherBoot(SameDirectory):
    """The machine has gone down since the store was left."""

    def boot_id(self) -> str:
        return "another"

    def made_and_left(self, path: str) -> bool:
        return False


@dataclass(frozen=True)
class Written:
    """The leftovers of one writer: its files when it was killed, when it stopped, and at moments
    before that; the records in its log."""

    killed: dict[str, bytes]
    clean: dict[str, bytes]
    older: tuple[dict[str, bytes], ...]
    directories: tuple[str, ...]
    lock_mtime_ns: int
    records: tuple[Record, ...]
    log_end: int
    settings: dict[str, object]


@dataclass
class Original:
    """A store directory in memory, and what it holds."""

    name: str
    files: dict[str, bytes]
    written: Written
    #: The system it is opened on.
    system: SameDirectory
    #: All below was synced for certain, as far as the start can know; the log's end when stopped.
    flushed: int
    #: The files after an undisturbed start and stop.
    settled: dict[str, bytes] = field(default_factory=dict)

    @property
    def records(self) -> tuple[Record, ...]:
        return self.written.records

    @property
    def older(self) -> tuple[dict[str, bytes], ...]:
        return self.written.older

    @property
    def directories(self) -> tuple[str, ...]:
        return self.written.directories

    @property
    def log_end(self) -> int:
        return self.written.log_end

    @property
    def has_addresses(self) -> bool:
        """Whether units hold addresses of extension units, which may differ and be as good."""
        return bool(self.written.settings)

    @property
    def power_lost(self) -> bool:
        return isinstance(self.system, AnotherBoot)

    @property
    def placed(self) -> dict[Place, Record]:
        return {one.place: one for one in self.records if one.place is not None}

    def write(self, root: Path) -> None:
        """Make the directory `root`, which must not exist."""
        root.mkdir()
        for directory in self.directories:
            (root / directory).mkdir()
        for name, data in self.files.items():
            fd = os.open(f"{root}/{name}", os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644)
            os.write(fd, data)
            os.close(fd)
        times = (self.written.lock_mtime_ns, self.written.lock_mtime_ns)
        os.utime(root / "lock", ns=times)

    def settings(self, root: Path) -> Settings:
        """Settings of the store at `root`."""
        return settings_of(root, **self.written.settings)

    def open(self, root: Path) -> MessageStore:
        """Start it. Raises StoreError."""
        return MessageStore.open(self.settings(root), self.system, ManualClock(LATER_MS))

    def first_kept(self, lost: frozenset[int]) -> int:
        """The log offset of the first record behind those that are lost."""
        return self.records[max(lost) + 1].start

    def segments(self) -> list[str]:
        """Names of the log's files, in order."""
        return sorted(name for name in self.files if name.startswith("commitlog/"))


def settings_of(root: Path, **changes: object) -> Settings:
    """No thread does anything by itself, but the scrub."""
    return small_settings(
        root,
        commit_log_segment_bytes=SEGMENT,
        flush_disk_type="SYNC_FLUSH",
        consume_queue_flush_interval_ms=3_600_000,
        scrub_bytes_per_second=1 << 40,
        **changes,
    )


def snapshot(root: Path) -> tuple[dict[str, bytes], tuple[str, ...]]:
    """All files by relative path, and all directories, parents first."""
    files: dict[str, bytes] = {}
    directories: list[str] = []
    prefix = len(str(root)) + 1
    for folder, names, leaves in os.walk(root):
        names.sort()
        directories += [f"{folder}/{name}"[prefix:] for name in names]
        for leaf in leaves:
            path = f"{folder}/{leaf}"
            files[path[prefix:]] = _bytes_of(path)
    return files, tuple(directories)


def _bytes_of(path: str) -> bytes:
    if os.path.islink(path):
        return LINK + os.readlink(path).encode()
    with open(path, "rb") as file:
        return file.read()


FIRST_MS = 1_700_000_000_000
LATER_MS = FIRST_MS + 3_600_000


def make_originals(scratch: Path) -> dict[str, Original]:
    """All of them, made below `scratch`, which is empty again afterwards."""
    plain = _write(scratch / "running", {})
    ext = _write(scratch / "running", EXT_SETTINGS)
    foreign = {name: data for name, data in plain.killed.items() if name != "offsets"}
    here, later = SameDirectory(), AnotherBoot()
    flushed = _flushed(plain.killed["offsets"])
    originals = [
        Original("clean", plain.clean, plain, here, plain.log_end),
        Original("killed", plain.killed, plain, here, flushed),
        Original("cut", plain.killed, plain, later, flushed),
        Original("foreign", foreign, plain, later, 0),
        Original("ext", ext.killed, ext, here, _flushed(ext.killed["offsets"])),
    ]
    for original in originals:
        root = scratch / "settling"
        original.write(root)
        assert original.open(root).close()
        original.settled, _ = snapshot(root)
        shutil.rmtree(root)
    return {original.name: original for original in originals}


def _flushed(offsets_file: bytes) -> int:
    offsets = decode(offsets_file)
    assert offsets is not None
    return offsets.flushed


def _write(root: Path, settings: dict[str, object]) -> Written:
    clock = ManualClock(FIRST_MS)
    store = MessageStore.open(settings_of(root, **settings), SameDirectory(), clock)
    older: list[dict[str, bytes]] = []
    for number in range(COUNT):
        clock.time_ms += 700
        _put(store, number)
        store.request_flush()
        assert store.wait_durable(store.written, 10)
        if number < COUNT - UNDISPATCHED:
            store.dispatch()
        if number in FLUSHED_AT:
            store._queue_flusher.flush(0)
            older.append(snapshot(root)[0])
    tables.fill(root)
    killed, directories = snapshot(root)
    store.dispatch()
    log_end = store.written
    records = _records_of(store, root)
    assert store.close()
    clean, _ = snapshot(root)
    mtime_ns = os.stat(root / "lock").st_mtime_ns
    shutil.rmtree(root)
    return Written(killed, clean, tuple(older), directories, mtime_ns, records, log_end, settings)


def _put(store: MessageStore, number: int) -> None:
    topic, queue_id = QUEUES[number % len(QUEUES)]
    half = number % 13 == 5
    delayed = topic.startswith("SCHEDULE")
    store.log.put(
        message(
            b"%03d" % number + bytes((number * 7 + n) % 251 for n in range(number * 5 % 23)),
            topic,
            queue_id,
            tags=f"T{number % 3}",
            keys=f"k{number}",
            unique=f"U{number}",
            more={"DELAY": "3"} if delayed else None,
            sys_flag=SYS_PREPARED if half else 0,
            **({"born_host": HOST_V6} if number % 11 == 3 else {}),
        )
    )


def _records_of(store: MessageStore, root: Path) -> tuple[Record, ...]:
    """All records of the log, read by walking its files."""
    named = {
        one.log_offset
        for topic, queue_id in store.queues()
        for one in read_all(store, topic, queue_id)
    }
    found: list[Record] = []
    for path in sorted((root / "commitlog").iterdir()):
        data = path.read_bytes()
        position = 0
        while position + 8 <= len(data) and data[position + 4 : position + 8].hex() == "daa320a7":
            one = decode_record(data, position)
            raw = data[position : position + one.size]
            found.append(Record(len(found), one, raw))
            position += one.size
    assert len(found) == COUNT
    assert {one.start for one in found if one.place is not None} == named
    return tuple(found)
