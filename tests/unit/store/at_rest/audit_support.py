"""A store with a bit of everything in it, closed in order, and hands that damage copies of it."""

import shutil
import struct
from pathlib import Path
from typing import NamedTuple

from aerobee.protocol.message.record import decode_record, encode_record
from aerobee.store.at_rest.audit.verify import verify
from aerobee.store.disk.files import Files
from aerobee.store.inspect.audit_report import Report
from aerobee.store.message_store import MessageStore
from tests.unit.store.support import (
    FIRST_MS,
    SEGMENT,
    ManualClock,
    adopt,
    flip,
    log_segment,
    message,
    queue_file,
    small_settings,
)

UNIT = struct.Struct(">qiq")
PRE_BLANK = UNIT.pack(0, 0x7FFFFFFF, 0)
INDEX_ENTRIES_AT = 40 + 4 * 50
QUEUES = 3
PER_QUEUE = 34

TOPICS = """{
	"dataVersion":{
		"counter":3,
		"timestamp":1700000000123
	},
	"topicConfigTable":{
		"Orders":{
			"order":false,
			"perm":6,
			"readQueueNums":3,
			"topicFilterType":"SINGLE_TAG",
			"topicName":"Orders",
			"topicSysFlag":0,
			"writeQueueNums":3
		}
	}
}"""
OFFSETS = """{
	"offsetTable":{
		"Orders@g1":{0:5,1:34,2:30
		},
		"Gone@g1":{0:500
		}
	}
}"""
DELAYS = """{
	"offsetTable":{3:1
	}
}"""


class Stored(NamedTuple):
    """A record of the log, read without any of the audit's code."""

    log_offset: int
    size: int
    topic: str
    queue_id: int
    queue_offset: int
    body: bytes


def make(root: Path, per_queue: int = PER_QUEUE, **changes: object) -> Path:
    """102 messages in three queues, two half messages, one rollback, one delayed message; more
    messages with another `per_queue`."""
    clock = ManualClock()
    store = MessageStore.open(small_settings(root, **changes), clock=clock)
    for number in range(QUEUES * per_queue):
        clock.time_ms += 1500
        keys = {"unique": f"U{number}", "keys": f"K{number} even" if number % 2 == 0 else ""}
        body = b"%06d" % number + b"." * 40
        store.log.put(message(body, queue_id=number % QUEUES, tags=f"T{number % 3}", **keys))
        if number in (10, 60):
            store.log.put(message(b"half", "RMQ_SYS_TRANS_HALF", unique=f"H{number}", sys_flag=4))
        if number == 20:
            store.log.put(message(b"back", "Orders", unique="R", sys_flag=12))
            store.log.put(message(b"later", "SCHEDULE_TOPIC_XXXX", 2, more={"DELAY": "3"}))
    store.dispatch()
    assert store.close()
    config = root / "config"
    keep_topics(root)
    (config / "topics.json.bak").write_text(TOPICS)
    (config / "consumerOffset.json").write_text(OFFSETS)
    (config / "delayOffset.json").write_text(DELAYS)
    return root


def keep_topics(root: Path) -> Path:
    """Put a table of topics into a store that no broker has run on."""
    (root / "config").mkdir()
    (root / "config" / "topics.json").write_text(TOPICS)
    return root


def copy(template: Path, target: Path) -> Path:
    """The template elsewhere, as if it had been written there."""
    shutil.copytree(template, target)
    return adopt(target)


def check(root: Path, *given: str, **changes: object) -> Report:
    return verify(small_settings(root, **changes), given)


def kinds(report: Report) -> set[str]:
    return set(report.findings.counts)


def records(root: Path) -> list[Stored]:
    found: list[Stored] = []
    for path in sorted((root / "commitlog").iterdir()):
        data, start, position = path.read_bytes(), int(path.name), 0
        while data[position + 4 : position + 8] == b"\xda\xa3\x20\xa7":
            one = decode_record(data, position)
            found.append(
                Stored(
                    start + position, one.size, one.topic, one.queue_id, one.queue_offset, one.body
                )
            )
            position += one.size
    return found


def of_queue(root: Path, queue_id: int = 0, topic: str = "Orders") -> list[Stored]:
    """The messages of a queue; half messages and the rollback have none."""
    named = [one for one in records(root) if (one.topic, one.queue_id) == (topic, queue_id)]
    return [one for one in named if one.body != b"back"]


def place(log_offset: int, root: Path) -> tuple[Path, int]:
    """Segment file and position."""
    return log_segment(root, log_offset // SEGMENT * SEGMENT), log_offset % SEGMENT


def overwrite(path: Path, position: int, data: bytes) -> None:
    with path.open("r+b") as file:
        file.seek(position)
        file.write(data)


def flip_log(root: Path, log_offset: int, bit: int = 1) -> None:
    path, position = place(log_offset, root)
    flip(path, position, bit)


def overwrite_log(root: Path, log_offset: int, data: bytes) -> None:
    path, position = place(log_offset, root)
    overwrite(path, position, data)


def set_unit(root: Path, queue_id: int, offset: int, unit: bytes) -> None:
    path = queue_file(root, queue_id=queue_id, start=offset // 10 * 200)
    overwrite(path, offset % 10 * 20, unit)


def unit(root: Path, queue_id: int, offset: int) -> tuple[int, int, int]:
    data = queue_file(root, queue_id=queue_id, start=offset // 10 * 200).read_bytes()
    found: tuple[int, int, int] = UNIT.unpack_from(data, offset % 10 * 20)
    return found


def index_files(root: Path) -> list[Path]:
    return sorted((root / "index").iterdir())


def log_end(root: Path) -> int:
    last = records(root)[-1]
    return last.log_offset + last.size


def mark_open(root: Path) -> None:
    """Mark the store as if the broker had been killed, the machine having gone down."""
    (root / "abort").touch()
    adopt(root, other_boot=True)


def whole_record(log_offset: int, body: bytes, queue_offset: int = 0) -> bytes:
    return encode_record(message(body, "Forged"), queue_offset, log_offset, FIRST_MS)


class BadDisk(Files):
    """A disk that refuses some blocks of one file."""

    def __init__(self, path: Path, start: int, end: int) -> None:
        self._path, self._start, self._end = str(path), start, end
        self._bad: set[int] = set()

    def open(self, path: str, *, create: bool = False, read_only: bool = False) -> int:
        fd = super().open(path, create=create, read_only=read_only)
        self._bad.discard(fd)
        if path == self._path:
            self._bad.add(fd)
        return fd

    def read(self, fd: int, position: int, size: int) -> bytes:
        if fd in self._bad and position < self._end and position + size > self._start:
            raise OSError(5, "Input/output error", self._path)
        return super().read(fd, position, size)
