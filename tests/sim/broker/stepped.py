"""Transactions and the timer, the real ones, over a stepped store; time goes when the test says so.

What the loop does is what its timers do: `pass_ms` lets them. The files of progress lie on the
store's own disk in memory, so a crash is one moment for all of it. After each put the disk is
looked at, so that a crash may come between any two.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, TypeVar, cast

from aerobee.broker.appending.answers import Answers
from aerobee.broker.appending.appending import Appending
from aerobee.broker.broker_stats import BrokerStats
from aerobee.broker.delay.delivery_progress import TimerProgress
from aerobee.broker.delay.timer import TimerService
from aerobee.broker.tables.files.state_file import JsonStateFile, Rescue
from aerobee.broker.tables.offsets import ConsumerOffsets
from aerobee.broker.transactions.transactions import Transactions
from aerobee.config.model import Settings
from aerobee.protocol.codes import RequestCode
from aerobee.protocol.errors import BadRequest
from aerobee.protocol.frames.command import Command
from aerobee.protocol.message.record import StoreMessage
from aerobee.remoting.turns import Job
from aerobee.store.disk.files import Files
from aerobee.store.log.marks import StoreListener
from aerobee.store.segments.results import PutResult
from tests.inline_loop import drive
from tests.sim.storage.recovered import ROOT
from tests.sim.storage.stepped_store import SteppedStore
from tests.unit.broker.appending.appending_support import appending
from tests.unit.broker.delay.test_delay import ManualLoop, Wall
from tests.unit.broker.second_step.second_step_support import second_step
from tests.unit.broker.tables.clients_support import Endless, Peer, Producer, request
from tests.unit.store.support import message

T = TypeVar("T")

TOPIC, TIMED, GROUP = "Transacted", "Timed", "payers"
CONFIG = f"{ROOT}/config"
TIMER_FILE, OFFSETS_FILE = f"{CONFIG}/timerProgress.json", f"{CONFIG}/consumerOffset.json"
DAY_MS = 86_400_000
#: A message whose time is further ahead is rolled.
WINDOW_MS = 2_000
_MOST_TURNS = 200_000


class SteppedTime(Wall):
    """Both clocks, which go together."""

    def monotonic(self) -> float:
        return self.loop.now


class StateOnDisk(JsonStateFile):
    """A state file on a disk in memory: its new content is synced, then takes the old one's name.
    (What becomes of the real one's backup is proved in the tests of state_file.py.)"""

    def __init__(self, files: Files, path: str) -> None:
        super().__init__(path)
        self._files = files

    def load(self, parse: Callable[[bytes], T], default: T, rescue: Rescue[T] | None = None) -> T:
        path = str(self.path)
        if not self._files.exists(path):
            return default
        self.loaded_from = self.path
        self._files.sync_directory(os.path.dirname(path))
        with self._files.opened(path, read_only=True) as fd:
            return parse(self._files.read(fd, 0, self._files.size(fd)))

    def save(self, text: Any) -> None:
        if isinstance(text, str):
            text = text.encode()
        data = text if isinstance(text, bytes) else b"".join(text)
        files, path = self._files, str(self.path)
        new = path + ".tmp"
        if files.exists(new):
            files.remove(new)
        with files.opened(new, create=True) as fd:
            files.write(fd, 0, data)
            files.sync(fd)
        files.rename(new, path)
        files.sync_directory(os.path.dirname(path))


class AtOnce(Endless):
    """Turns that run what is added to its end."""

    def add(self, job: Job) -> None:
        while job():
            pass


class _Member:
    def __init__(self, connection: Producer) -> None:
        self.connection = connection


class _Clients:
    """The producers that are connected: one, or none."""

    def __init__(self) -> None:
        self.members: list[_Member] = []

    def producers(self, _group: str) -> list[_Member]:
        return self.members


class _TimerSettings:
    """Times of a day at most, rolled when they are further ahead than the window."""

    timer_enabled = True
    timer_max_delay_seconds = DAY_MS // 1000
    timer_roll_window_seconds = WINDOW_MS // 1000
    retention_hours = 1000
    timer_messages = timer_recalls = 10_000


class _Topics:
    """A table that has every topic."""

    def get(self, _topic: str) -> object:
        return self

    def create_retry(self, _topic: str, _queues: int) -> None:
        return None


class SteppedBroker:
    """Built whole from what the disk holds. `putting` is called after each put; `state_file` opens
    a table of the broker's by its name."""

    def __init__(
        self,
        settings: Settings,
        files: Files,
        time: SteppedTime,
        putting: Callable[[], None] = lambda: None,
        state_file: Callable[[str], JsonStateFile] | None = None,
        listener: StoreListener | None = None,
    ) -> None:
        self.time, self.loop = time, time.loop
        self._sync_flush = settings.sync_flush
        self._putting = putting
        self.store = SteppedStore.open(settings, files, time, listener=listener)
        try:
            if state_file is None:
                for changed in files.make_directories(CONFIG):
                    files.sync_directory(changed)
            self._build(settings, state_file or (lambda name: StateOnDisk(files, name)))
        except BaseException:
            self.store.abandon()
            raise

    def _build(self, settings: Settings, state_file: Callable[[str], JsonStateFile]) -> None:
        store = self.store
        self._really_put = store.log.put
        store.log.put = self._put  # type: ignore[method-assign]
        self.offsets = ConsumerOffsets(state_file(OFFSETS_FILE), store.max_offset)
        self.timer_progress = TimerProgress(
            state_file(TIMER_FILE), lambda: store.durable, store.sync_soon
        )
        stats, loop = BrokerStats(), cast("asyncio.AbstractEventLoop", self.loop)
        self.timer = TimerService(
            self._appending(_TimerSettings(), stats),
            loop=loop,
            progress=self.timer_progress,
            delays=cast("Any", store.log),
            second_step=second_step(),
        )
        self.clients = _Clients()
        self.producer = Producer(1)
        self.answers = Answers(settings, loop, AtOnce(), store, stats)
        self.transactions = Transactions(
            self._appending(settings, stats),
            cast(
                "Any", SimpleNamespace(topics=_Topics(), clients=self.clients, offsets=self.offsets)
            ),
            loop=loop,
            turns=AtOnce(),
            answers=self.answers.decisions,
            second_step=second_step(),
        )
        self.timer.start()

    def _appending(self, settings: object, stats: BrokerStats) -> Appending:
        return appending(
            self.store, settings, stats=stats, clock_ms=self.time.now_ms, appended=self.appended
        )

    def _put(self, stored: StoreMessage) -> PutResult:
        result = self._really_put(stored)
        self._putting()
        return result

    def appended(self) -> None:
        """Make new messages visible, as the broker does. Under SYNC_FLUSH they wait for a sync."""
        if not self._sync_flush:
            self.store.dispatch()

    def connect(self, *, is_there: bool) -> None:
        """A producer is connected, or none is."""
        self.clients.members = [_Member(self.producer)] if is_there else []

    # --- what clients ask -------------------------------------------------------------------

    def prepare(self, body: bytes, number: int) -> PutResult:
        own = {"PGROUP": GROUP, "TRAN_MSG": "true"}
        made = message(body, TOPIC, 0, unique=f"U{number}", more=own)
        made.born_timestamp_ms = self.time.now_ms()
        result = self.transactions.prepare(made)
        self.appended()
        return result

    def end(self, half: tuple[int, int], decision: int) -> bool:
        """Decide; False if that is refused. Under SYNC_FLUSH it is answered when what is stored by
        now is durable."""
        ext = {
            "producerGroup": GROUP,
            "tranStateTableOffset": half[0],
            "commitLogOffset": half[1],
            "commitOrRollback": decision,
        }
        handler = self.transactions.handlers()[RequestCode.END_TRANSACTION]
        try:
            drive(handler(Peer(9).connection, request(RequestCode.END_TRANSACTION, ext)))
        except BadRequest:
            return False
        return True

    def send_timed(self, body: bytes, unique: str, deliver_ms: int) -> PutResult:
        asked = {"TIMER_DELIVER_MS": str(deliver_ms)}
        result = self.timer.put(message(body, TIMED, 0, unique=unique, more=asked))
        self.appended()
        return result

    def recall(self, unique: str, deliver_ms: int) -> PutResult:
        asked = {"TIMER_DEL_UNIQKEY": unique, "TIMER_DELIVER_MS": str(deliver_ms)}
        made = message(b"-", TIMED, 0, unique=unique, more=asked)
        result = self.timer.put_at(made, deliver_ms)
        self.appended()
        return result

    # --- time and threads -------------------------------------------------------------------

    def pass_ms(self, duration_ms: int) -> None:
        """Let time go by; every timer runs at its time."""
        end, turns = self.loop.now + duration_ms / 1000, 0
        while (at := self.loop.next_at()) is not None and at <= end:
            self.loop.run_next()
            turns += 1
            assert turns < _MOST_TURNS, "a busy loop"
        self.loop.now = end

    def leap_ms(self, duration_ms: int) -> None:
        """Time goes by in one go, as for a broker that is held up."""
        self.loop.now += duration_ms / 1000
        self.pass_ms(1)

    def check(self) -> list[Command]:
        """Run what the check service does once a second. Returns the checks that came."""
        self.transactions._checks.tick()
        return self.producer.asked()

    def save(self) -> None:
        """Save what the savers would."""
        self._save_offsets()
        text = self.timer_progress.take_changes()
        if text is not None:
            self.timer_progress.save(text)

    def _save_offsets(self) -> None:
        changes = self.offsets.take_changes()
        if changes is not None:
            self.offsets.save(changes)

    def sync(self) -> bool:
        """The flush thread's turn, and what follows it; False when the store is broken."""
        synced = self.store.sync_log()
        self.store.dispatch()
        self.answers.go_on()
        return synced

    def close(self) -> bool:
        """Stop in order, as far as this broker goes; whether the store was closed clean."""
        self.timer.close()
        self.transactions.close()
        for _ in range(3):
            if self.transactions._checks.save_progress() is None:
                break
            self.sync()
        self._save_offsets()
        return self.store.close(self.timer.save_last)


def time_from(now_s: float) -> SteppedTime:
    """The clocks of a machine that was last seen at that time of its loop."""
    loop = ManualLoop()
    time = SteppedTime(loop)
    loop.now = now_s
    return time


def members_of(text: bytes) -> Any:
    """The members of a state file's JSON object; fastjson's keys may be bare numbers."""
    return json.loads(re.sub(r"([{,]\s*)(\d+):", r'\1"\2":', text.decode()))
