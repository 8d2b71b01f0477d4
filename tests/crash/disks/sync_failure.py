"""One run in which the disk fails: R6's course of events, and what it must come to.

1  the daemon runs on a recorded disk, clients send; then writes to some blocks fail (EIO)
2  clients go on until they are refused: from here on the store must have stopped
3  the disk is well again, and still nothing is accepted
4  the daemon ends, by a stop in order or by a kill, and starts again; where ext4 has given up
   its journal, the start must refuse, and work after a new mount
5  what it serves now must be what was promised; and it must be on the disk, not only in the
   kernel's cache: power goes, and what the disk itself holds is judged against it
"""

from __future__ import annotations

import json
import os
import random
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

from tests.crash.disks.extents import Range, extents_of, joined, journal_of
from tests.crash.disks.write_back import written_back
from tests.crash.judges.checker import Violation, check
from tests.crash.judges.history import OK, Found, History, Promise
from tests.crash.judges.records import Record
from tests.crash.judges.restarted import pulled, served
from tests.crash.power_cuts.block_log import BlockLog, CrashState
from tests.crash.power_cuts.power_cut import Judge
from tests.crash.power_cuts.recorded_disk import RecordedDisk, make_file_system
from tests.crash.running.daemons import start_daemon
from tests.crash.running.link import SEND, SUCCESS, Link, send_fields
from tests.crash.running.traffic import QUEUES, SIZES, Marks, Traffic
from tests.service.kit import Served, metric

STORE = "store"
# Ten times what the slowest of the store's syncs waits for; a pause, or the disk would be full.
_REFUSED_S = 3.0
_PAUSE_S = 0.02
_UNAVAILABLE = 14
_PAGE = 4096


def log_blocks(disk: RecordedDisk) -> list[Range]:
    return _below(disk.root / STORE / "commitlog", "*")


def queue_blocks(disk: RecordedDisk) -> list[Range]:
    return _below(disk.root / STORE / "consumequeue", "*/*/*")


def journal_blocks(disk: RecordedDisk) -> list[Range]:
    return journal_of(disk.image)


def directory_blocks(disk: RecordedDisk) -> list[Range]:
    root = disk.root / STORE
    folders = [root, *(path for path in root.rglob("*") if path.is_dir())]
    return [found for folder in folders for found in extents_of(folder)]


def all_blocks(_: RecordedDisk) -> list[Range]:
    return [(0, 1 << 62)]


def all_blocks_after_write_back(disk: RecordedDisk) -> list[Range]:
    """The kernel has written later pages of the log already, as it may, and the first one not."""
    for path in (disk.root / STORE / "commitlog").glob("*"):
        with path.open("rb+") as file:
            written_back(file.fileno(), _PAGE if not int(path.name) else 0)
    with (disk.root / "another").open("wb") as file:
        os.fsync(file)  # whose transaction takes along that these pages are the log's
    return all_blocks(disk)


def _below(folder: Path, pattern: str) -> list[Range]:
    return [found for path in folder.glob(pattern) for found in extents_of(path)]


#: The blocks that fail, and the layout of the file system on which a sync writes them: only without
#: a journal a sync writes a directory's own blocks.
KINDS: dict[str, tuple[Callable[[RecordedDisk], list[Range]], str]] = {
    "log": (log_blocks, "ext4"),
    "queues": (queue_blocks, "ext4"),
    "journal": (journal_blocks, "ext4"),
    "directories": (directory_blocks, "no-journal"),
    "everything": (all_blocks, "ext4"),
    "everything-late": (all_blocks_after_write_back, "ext4"),
}
# These failures leave the note alone that the store has stopped.
_LETS_NOTE = {"log", "queues", "directories"}


@dataclass
class FailingRun:
    """One run; `judge` goes through it and reports the violations. The controls break the daemon
    that meets the failure, or the daemon that starts afterwards."""

    folder: Path
    flush: str
    kind: str
    seed: int
    daemon_control: str = ""
    restart_control: str = ""
    history: History = field(default_factory=History)
    wrong: list[Violation] = field(default_factory=list)
    #: The store's files say that a sync had failed.
    _noted: bool = False
    #: The events, for people.
    events: list[str] = field(default_factory=list)

    def _promise(self, failed_at: float) -> Promise:
        return Promise(
            self._is_sync, failed_at, 1.5, 1.8, commits=self._is_sync, holes=self._may_have_holes
        )

    @property
    def _is_sync(self) -> bool:
        return self.flush == "SYNC_FLUSH"

    @property
    def _refused(self) -> bool:
        return any(event.startswith("refused") for event in self.events)

    def judge(self) -> list[Violation]:
        self._rng = random.Random(self.seed)
        blocks, layout = KINDS[self.kind]
        image = make_file_system(self.folder / "base", layout)
        with RecordedDisk(self.folder, image) as disk:
            marks = Marks(disk.mark)
            self._traffic = Traffic(self.history, marks, self.seed)
            with self._daemon(disk, self.daemon_control) as daemon:
                self._fail(disk, blocks, daemon)
                failed_at = time.monotonic()
                before = self._meet_the_failure(daemon)
                disk.heal()
                self._stays_stopped(daemon)
                self._end(daemon)
            found = self._serve_again(disk)
            served_at = marks.next()
        self.wrong += check(self.history, found, self._promise(failed_at))
        self.wrong += self._taken_back(before, found)
        if layout != "no-journal":  # without one a power cut leaves no file system to be mounted
            self.wrong += self._not_on_the_disk(disk.block_log(), served_at, found)
        return self.wrong

    @contextmanager
    def _daemon(self, disk: RecordedDisk, control: str) -> Iterator[Served]:
        store = disk.root / STORE
        daemon = start_daemon(self.folder / "daemon", store, self.flush, control)
        try:
            yield daemon
        finally:
            daemon.close()

    @property
    def _may_have_holes(self) -> bool:
        """Where the disk did not even take the note that a sync had failed, a start cannot know of
        it: it keeps what the disk has behind a hole, and names the hole."""
        return self.kind not in _LETS_NOTE and not self._noted

    # --- the failure ------------------------------------------------------------------------

    def _fail(
        self, disk: RecordedDisk, blocks: Callable[[RecordedDisk], list[Range]], daemon: Served
    ) -> None:
        daemon.ready()
        self._traffic.prepare(daemon.port)
        self._traffic.run(daemon.port, self._rng.randrange(5, 25))
        for start, end in joined(blocks(disk)):
            disk.fail_writes(start, end)
        if self.kind.startswith("everything"):
            disk.fail_syncs()

    def _meet_the_failure(self, daemon: Served) -> list[Record]:
        """Send until refused; return the records served then. Nothing if the failure reached
        nobody."""
        with Link(daemon.port) as link:
            deadline = time.monotonic() + _REFUSED_S
            while (answers := self._send_some(link)) == {SUCCESS}:
                threading.Event().wait(_PAUSE_S)
                if time.monotonic() > deadline:
                    self.events.append("the failure reached nobody")
                    return []
        if answers - {SUCCESS, _UNAVAILABLE}:
            self.wrong.append(Violation("3.2", f"waiting sends were answered {answers}"))
        status, body = daemon.get("/ready")
        reasons = {one["check"]: one.get("reason", "") for one in json.loads(body)["checks"]}
        self.events.append(f"refused: {reasons.get('store')}")
        if status != 503 or "stopped" not in reasons["store"]:
            self.wrong.append(Violation("3.2", f"readiness says {status} {reasons}"))
        return [one for some in pulled(daemon.port, stopped=True)[0].values() for one in some]

    def _send_some(self, link: Link) -> set[int]:
        """A few messages at once; the codes of their answers."""
        waiting = {}
        for _ in range(self._rng.randrange(1, 5)):
            sent = self._traffic.make(0, self._rng.randrange(QUEUES), self._rng.choice(SIZES))
            fields = send_fields(sent.topic, sent.queue_id, sent.properties)
            waiting[link.ask(SEND, fields, sent.body)] = sent
        codes: set[int] = set()
        while waiting:
            for answer in link.answers():
                self._traffic.note(waiting.pop(answer.opaque), answer)
                codes.add(answer.code)
        return codes

    def _stays_stopped(self, daemon: Served) -> None:
        """The disk is well again; only a restart heals the store (docs/reliability.md 3.2)."""
        if not self._refused:
            return
        with Link(daemon.port) as link:
            for _ in range(3):
                if SUCCESS in self._send_some(link):
                    self.wrong.append(Violation("3.2", "a stopped store took a message"))
        if daemon.get("/ready")[0] != 503:
            self.wrong.append(Violation("3.2", "ready again without a restart"))

    def _end(self, daemon: Served) -> None:
        end = self._rng.choice((signal.SIGTERM, signal.SIGKILL))
        daemon.process.send_signal(end)
        code = daemon.wait()
        self.events.append(f"ended by {end.name}: {code}")
        if code == 0 and self._refused:
            self.wrong.append(Violation("3.2", "a store that had stopped was a stop in order"))
        if not (daemon.store / "abort").exists():
            self.wrong.append(Violation("3.2", "a store that had stopped was closed as clean"))

    # --- afterwards -------------------------------------------------------------------------

    def _serve_again(self, disk: RecordedDisk) -> Found:
        """Start again, after a new mount if it takes one; return the records served. The daemon is
        killed."""
        for attempt in range(2):
            noted = b'"poisoned":true' in _content(disk.root / STORE / "offsets")
            with self._daemon(disk, self.restart_control) as daemon:
                if self._starts(daemon):
                    self._noted = noted
                    found = served(daemon.port, daemon.store)
                    found.gaps = int(metric(daemon, "aerobee_recovery_gaps"))
                    if found.gaps:
                        self.events.append(f"{found.gaps} holes")
                    return found
                refusal = daemon.log.splitlines()[-1]
                self.events.append(f"start refused: {refusal}")
                if attempt or not refusal.startswith("aerobee: cannot start: "):
                    break
            disk.remount()
        self.wrong.append(Violation("start", self.events[-1]))
        return Found({}, {})

    def _starts(self, daemon: Served) -> bool:
        while daemon.process.poll() is None:
            try:
                daemon.wait_for("READY=1", 1.0)
            except AssertionError:
                continue
            return True
        return False

    def _taken_back(self, before: list[Record], found: Found) -> list[Violation]:
        """A stopped store must serve only records that a restart can serve."""
        after = {one for records in found.pulled.values() for one in records}
        return [
            Violation("3.2", f"served while stopped and gone: {one.topic}/{one.queue_id}/"
                      f"{one.queue_offset}")
            for one in before
            if one not in after
        ]  # fmt: skip

    def _not_on_the_disk(self, log: BlockLog, served_at: int, found: Found) -> list[Violation]:
        """Power goes right after the restarted daemon has served: all of it must be there."""
        places = {one.body: one for records in found.pulled.values() for one in records}
        known = History()
        for sent in self.history.sends:
            one = places.get(sent.body)
            if one is not None:
                where = {"queue_offset": one.queue_offset, "log_offset": one.log_offset}
                known.sends.append(replace(sent, outcome=OK, **where))  # type: ignore[arg-type]
            else:
                known.sends.append(replace(sent, outcome="unknown"))
        cut = CrashState(log.index_of_mark(served_at) + 1, "none", 0)
        judge = Judge(self.folder, STORE, self.flush)
        holes = found.gaps > 0 and self._may_have_holes  # those were judged
        ((_, disk),) = log.images([cut])
        return [
            Violation(one.rule, f"served after the restart, then power went: {one.text}")
            for one in judge.judge(disk, known, Promise(commits=self._is_sync, holes=holes))
        ]


def _content(path: Path) -> bytes:
    return path.read_bytes() if path.exists() else b""


class FailingRecovery(FailingRun):
    """The disk fails only when the daemon that was killed is started again."""

    def judge(self) -> list[Violation]:
        self._rng = random.Random(self.seed)
        image = make_file_system(self.folder / "base", "ext4")
        with RecordedDisk(self.folder, image) as disk:
            marks = Marks(disk.mark)
            self._traffic = Traffic(self.history, marks, self.seed)
            with self._daemon(disk, "") as daemon:
                daemon.ready()
                self._traffic.prepare(daemon.port)
                self._traffic.run(daemon.port, 20)
                daemon.process.kill()
                daemon.wait()
            failed_at = time.monotonic()
            disk.fail_writes()
            disk.fail_syncs()
            with self._daemon(disk, "") as daemon:
                if self._starts(daemon) or daemon.wait() != 1:
                    self.wrong.append(Violation("start", "it started on a failing disk"))
                self.events.append(f"start refused: {daemon.log.splitlines()[-1]}")
            disk.heal()
            found = self._serve_again(disk)
            served_at = marks.next()
        self.wrong += check(self.history, found, self._promise(failed_at))
        self.wrong += self._not_on_the_disk(disk.block_log(), served_at, found)
        return self.wrong
