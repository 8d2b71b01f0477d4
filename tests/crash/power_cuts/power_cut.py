"""Judges one crash state: recover it with the real store, look, recover again, go on writing.

    1  open (recovery), look at everything, die
    2  open again: the same bytes as after the first time (I9); write as the worst continuation
       would, so that stale bytes of the cut tail would fit behind it; die
    3  open again: what the first recovery had found is there, what it had not found has not come
       back, and the new messages are there

Each step is a process of its own that dies like a killed broker.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from aerobee.protocol.message.record_layout import pack_host
from aerobee.store.message_store import MessageStore
from tests.crash.controls import CONTROLS
from tests.crash.disks.mounts import mounted_image
from tests.crash.judges.checker import Violation, check, differing
from tests.crash.judges.found import files_of, look
from tests.crash.judges.history import FAIL, OK, Found, History, Promise, Sent
from tests.crash.judges.records import Unreadable, read_log, read_record
from tests.crash.power_cuts.block_log import Disk
from tests.crash.running.child import ChildFailed, in_child
from tests.crash.running.daemons import settings_for
from tests.crash.running.traffic import QUEUES, TOPIC
from tests.unit.store.support import from_properties

_GROWN = 99  # the producer of what is written after the recovery
_OVERHEAD = 91 + len(TOPIC)
_KEYS_LOOKED_UP = 12
# No larger than what a segment of the tests takes, and no smaller than a record of ours is.
_PART_BYTES, _LEAST_BYTES = 16_384, 256
_DURABLE_S = 30.0


@dataclass
class Judge:
    """How states of one run are judged, mounted in `folder`. `control` names what is broken in the
    recovery."""

    folder: Path
    store: str
    flush: str
    control: str = ""

    def judge(self, disk: Disk, history: History, promise: Promise) -> list[Violation]:
        """The violations of the store on `disk`, whose clients had seen `history`."""
        try:
            with self._mounted(disk) as root:
                return self.judge_directory(root, history, promise)
        except OSError as error:
            return [Violation("mount", str(error))]

    def files_after_recovery(self, disk: Disk) -> dict[str, bytes]:
        """The files that a recovery makes of the store on `disk`."""
        with self._mounted(disk) as root:
            return self.recover(root)

    def torn_tail(self, disk: Disk) -> tuple[str, int]:
        """Why the log on `disk` ends where it does, and `worst_size` behind its end."""
        with self._mounted(disk) as root:
            log = read_log(root / "commitlog")
            return log.reason, worst_size(_log_bytes(root), log.end)

    def recover(self, root: Path) -> dict[str, bytes]:
        """Recover a directory and die; the files it has then."""
        return in_child(lambda: self._recover(root))[1]

    @contextmanager
    def _mounted(self, disk: Disk) -> Iterator[Path]:
        image, target = self.folder / "image", self.folder / "mounted"
        disk.save(image)
        target.mkdir(exist_ok=True)
        with mounted_image(image, target):
            yield target / self.store

    def judge_directory(self, root: Path, history: History, promise: Promise) -> list[Violation]:
        """The three steps on a store directory."""
        if not root.exists():
            return check(history, Found({}, {}, topics=set()), promise)
        try:
            torn = _log_bytes(root)
            found, first = in_child(lambda: self._recover(root))
            wrong = check(history, found, promise)
            assert found.log_end is not None
            size = worst_size(torn, found.log_end)
            second, grown = in_child(lambda: self._grow(root, size))
            wrong += differing(first, second)
            known = settled(history, found, grown)
            again, _ = in_child(lambda: self._recover(root))
        except ChildFailed as failure:
            return [Violation("start", str(failure))]
        kept = replace(promise, durable=True)
        return wrong + [
            Violation(one.rule, f"after going on: {one.text}") for one in check(known, again, kept)
        ]

    def _open(self, root: Path) -> MessageStore:
        """In a child only: a fault planted here goes with its process."""
        CONTROLS["after-a-power-cut"]()
        if self.control:
            CONTROLS[self.control]()
        return MessageStore.open(settings_for(root, self.flush))

    def _recover(self, root: Path) -> tuple[Found, dict[str, bytes]]:
        store = self._open(root)
        return look(store, root, _KEYS_LOOKED_UP), files_of(root)

    def _grow(self, root: Path, size: int) -> tuple[dict[str, bytes], list[Sent]]:
        store = self._open(root)
        files = files_of(root)
        # Not one more: it would stand where the stale bytes are.
        grown = [put(store, number, part) for number, part in enumerate(parts(size))]
        if self.flush == "SYNC_FLUSH":
            store.request_flush()
            assert store.wait_durable(store.written, _DURABLE_S)
        store.dispatch()
        return files, grown


def put(store: MessageStore, number: int, size: int) -> Sent:
    """Store one more message, its record `size` bytes long or as short as can be."""
    properties = {"UNIQ_KEY": f"U{_GROWN}x{number}"}
    stored = "\2".join(f"{name}\1{value}" for name, value in properties.items()).encode()
    body = b"%d-%d-grown:" % (_GROWN, number)
    body = body.ljust(size - _OVERHEAD - len(stored), b".")
    result = store.log.put(
        from_properties(body, TOPIC, number % QUEUES, stored, store_host=pack_host("127.0.0.1", 1))
    )
    return Sent(
        _GROWN, number, TOPIC, number % QUEUES, body, properties, OK, result.queue_offset,
        result.log_offset,
    )  # fmt: skip


def parts(size: int) -> list[int]:
    """Sizes of records that take up this number of bytes together."""
    sizes: list[int] = []
    while size > _PART_BYTES + _LEAST_BYTES:
        sizes.append(_PART_BYTES)
        size -= _PART_BYTES
    return [*sizes, size]


def settled(history: History, found: Found, grown: list[Sent]) -> History:
    """The history after a recovery has had the last word: messages that it found stay, the rest is
    gone for good, for its offsets may have been given to others since."""
    there = {one.body: one for records in found.pulled.values() for one in records}
    sends: list[Sent] = []
    for sent in history.sends:
        record = there.get(sent.body)
        if record is None:
            sends.append(replace(sent, outcome=FAIL))
            continue
        offsets = {"queue_offset": record.queue_offset, "log_offset": record.log_offset}
        sends.append(replace(sent, outcome=OK, **offsets))  # type: ignore[arg-type]
    return History(sends + grown)


def _log_bytes(root: Path) -> dict[int, bytes]:
    return {
        int(path.name): path.read_bytes()
        for path in (root / "commitlog").glob("*")
        if path.name.isdigit() and path.stat().st_size
    }


def worst_size(log: dict[int, bytes], end: int) -> int:
    """A record of this size written at `end` would bring the first sound record behind it back to
    life, if it still stood there; 0 without such a record."""
    for start, data in log.items():
        if not start <= end < start + len(data):
            continue
        position = end - start
        while (position := data.find(b"\xda\xa3\x20\xa7", position + 5) - 4) >= 0:
            try:
                if read_record(data, position).log_offset == start + position:
                    return start + position - end
            except Unreadable:
                continue
    return 0
