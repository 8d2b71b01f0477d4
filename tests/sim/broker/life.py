"""A seeded life of a broker: transactions of all outcomes and messages with times of their own,
over kills, power cuts and stops.

As `tests/sim/storage/workload.py`, one floor up: the same plan and seed give the same journal.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import NamedTuple

from aerobee.config.model import Settings
from aerobee.protocol.frames.command import Command
from tests.crash.judges.records import read_record
from tests.crash.transactions.history import COMMIT, ROLLBACK, UNKNOWN, number_of
from tests.crash.transactions.judge import HALF, OP
from tests.sim.broker.stepped import (
    OFFSETS_FILE,
    TIMER_FILE,
    WINDOW_MS,
    SteppedBroker,
    members_of,
    time_from,
)
from tests.sim.broker.told import BrokerLife, Event, Told
from tests.sim.disk.crash_choices import picks_of
from tests.sim.disk.crash_model import CrashModel, State
from tests.sim.disk.recorded_files import Event as Change
from tests.sim.disk.recorded_files import RecordedFiles, Start
from tests.sim.storage.raw_store import parse_log
from tests.sim.storage.recovered import ROOT
from tests.unit.store.support import FIRST_MS, Heard, small_settings

SEGMENT = 16_384
CHECKS, TIMEOUT_MS, INTERVAL_MS = 3, 1_000, 2_000
#: Loop time at which a life begins: an hour of the wall clock ends some seconds later.
_BEGIN_S = 1000.0 + (3_600_000 - FIRST_MS % 3_600_000) / 1000 - 12
_SIZES = (10, 120, 500)


@dataclass(frozen=True)
class BrokerPlan:
    """A kind of life; `crashes`: after how many steps the power goes."""

    name: str
    sync_flush: bool
    steps: int
    weights: dict[str, int]
    crashes: tuple[int, ...] = ()
    settings: dict[str, object] = field(default_factory=dict)

    def store_settings(self) -> Settings:
        """Nothing happens by itself."""
        never = 3_600_000
        values: dict[str, object] = {
            "flush_disk_type": "SYNC_FLUSH" if self.sync_flush else "ASYNC_FLUSH",
            "commit_log_segment_bytes": SEGMENT,
            "flush_interval_ms": never,
            "flush_timed": False,
            "consume_queue_flush_interval_ms": never,
            "max_message_bytes": SEGMENT // 2,
            "transaction_timeout_ms": TIMEOUT_MS,
            "transaction_check_interval_ms": INTERVAL_MS,
            "transaction_check_max": CHECKS,
        }
        return small_settings(ROOT, **(values | self.settings))


class BrokerRecorded(NamedTuple):
    """A life with its journal."""

    life: BrokerLife
    start: Start
    journal: list[Change]
    boot: str


def wish_of(number: int) -> int:
    """How the transaction is to end, whoever is asked."""
    return (COMMIT, COMMIT, ROLLBACK, COMMIT, UNKNOWN)[number % 5]


def body_of(number: int) -> bytes:
    """The body of the message or half message with this number."""
    rng = random.Random(number)
    return b"%08d " % number + rng.randbytes(rng.choice(_SIZES))


class BrokerRunner:
    """Runs one life after the other; `log` says what was done."""

    def __init__(self, plan: BrokerPlan, seed: int) -> None:
        self.plan = plan
        self.rng = random.Random(f"{plan.name} {seed}")
        self.settings = plan.store_settings()
        self.lives: list[BrokerRecorded] = []
        self.log: list[str] = []
        self._now_s = _BEGIN_S
        self._numbers = 0
        self._boots = 1
        self._step_began = 0
        self._life = BrokerLife(Told())
        self._files = RecordedFiles(ROOT, {}, self._boot)
        # Clients know these: half messages, checks and decisions by number, and times of messages.
        self._halves: dict[int, tuple[int, int]] = {}
        self._asked: list[tuple[int, tuple[int, int]]] = []
        self._decided: dict[int, int] = {}
        self._timed: dict[int, int] = {}

    def run(self) -> list[BrokerRecorded]:
        """All lives, from an empty disk on."""
        # The timer leaves moments to chance.
        random.seed(f"{self.plan.name} {self._boot}")
        names, weights = list(self.plan.weights), list(self.plan.weights.values())
        self._open()
        for step in range(self.plan.steps):
            if step in self.plan.crashes:
                self._crash()
            self._do(self.rng.choices(names, weights)[0])
        self._do("close")
        self._end_life()
        return self.lives

    @property
    def _boot(self) -> str:
        return f"boot {self._boots}"

    @property
    def _at(self) -> int:
        self._files.observe()
        return len(self._files.journal)

    # --- lives ------------------------------------------------------------------------------

    def _open(self) -> None:
        self._broker = SteppedBroker(
            self.settings,
            self._files,
            time_from(self._now_s),
            self._files.observe,
            listener=Heard(self._durable),
        )
        self._broker.connect(is_there=True)
        self._asked.clear()
        # Recovery has synced what it found.
        self._life.durable.append((self._at, self._broker.store.durable))
        self._note_time()

    def _note_time(self) -> None:
        self._now_s = self._broker.loop.now
        self._life.times.append((self._at, self._now_s))

    def _end_life(self) -> None:
        self._files.observe()
        files = self._files
        self.lives.append(BrokerRecorded(self._life, files.start, files.journal, self._boot))

    def _crash(self) -> None:
        """The power goes, and a new life begins on what that leaves."""
        self._end_life()
        self._broker.store.abandon()
        model = CrashModel.at(self._files.start, self._files.journal)
        doubts = model.doubts()
        choice = self.rng.choice(("none", "all", "random-1", "random-2"))
        self.log.append(f"crash, {len(doubts)} doubts, {choice}")
        state = model.build(doubts, picks_of(choice, doubts))
        told = self._life.told(len(self._files.journal), killed=False)
        self._boots += 1
        self._files = RecordedFiles(ROOT, state, self._boot)
        self._life = BrokerLife(told)
        self._open()
        self._forget_lost(self._files.image())

    def _go_on_at(self, place: int) -> None:
        """The process is killed at an earlier place; the disk of then goes on."""
        start, journal = self._files.start, self._files.journal[:place]
        self._broker.store.abandon()
        image, numbers = CrashModel.at(start, journal).newest()
        self._files = RecordedFiles(ROOT, image, self._boot, numbers)
        self._files.go_on_from(start, journal)
        self._life = self._life.cut_at(place)
        self._open()
        self._forget_lost(self._files.image())

    def _forget_lost(self, image: State) -> None:
        """Clients know nothing any more of what is not there: another message may have its place
        (after a power cut, with ASYNC_FLUSH)."""
        there = {
            record.log_offset: read_record(record.data, 0)
            for record in parse_log(image, ROOT).records
        }
        self._halves = {
            number: half
            for number, half in self._halves.items()
            if half[1] in there and there[half[1]].body == body_of(number)
        }
        decided = self._life.told(self._at, killed=False).of("decided")
        self._decided = {
            number: int(done[0].value)  # type: ignore[call-overload]
            for number, facts in decided.items()
            if (done := [fact for fact in facts if fact.done])
        }
        bodies = {record.body for record in there.values()}
        self._timed = {
            number: when for number, when in self._timed.items() if body_of(number) in bodies
        }

    def _durable(self, mark: int) -> None:
        self._life.durable.append((self._at, mark))

    # --- steps ------------------------------------------------------------------------------

    def _do(self, name: str) -> None:
        at = self._at
        self.log.append(f"{at} {name}")
        self._broker.pass_ms(self.rng.choice((0, 1, 20, 300, 1_500)))
        self._note_time()
        getattr(self, f"_step_{name}")()
        self._note_time()
        self._step_began = at

    def _event(
        self, kind: str, number: int, value: object, at: int, end: int | None = None
    ) -> None:
        written = self._broker.store.written if end is None else end
        self._life.events.append(Event(kind, number, value, at, self._at, written))

    def _step_prepare(self) -> None:
        number, at = self._numbers, self._at
        self._numbers += 1
        place = self._broker.prepare(body_of(number), number)
        self._halves[number] = place.queue_offset, place.log_offset
        self._event("prepared", number, self._halves[number], at, place.end)

    def _step_decide(self) -> None:
        """At once, at a check, again."""
        if self._asked and self.rng.random() < 0.6:
            number, half = self._asked.pop(self.rng.randrange(len(self._asked)))
        else:
            undecided = [one for one in self._halves if one not in self._decided]
            known = undecided if self.rng.random() < 0.7 else list(self._halves)
            if not known:
                return
            number = self.rng.choice(known)
            half = self._halves[number]
        if wish_of(number) != UNKNOWN:
            self._end(number, half, wish_of(number))

    def _step_contradict(self) -> None:
        """A decided transaction is decided the other way, which is refused."""
        known = [number for number in self._decided if number in self._halves]
        if known:
            number = self.rng.choice(known)
            other = ROLLBACK if self._decided[number] == COMMIT else COMMIT
            self._end(number, self._halves[number], other)

    def _end(self, number: int, half: tuple[int, int], what: int) -> None:
        at = self._at
        written = self._broker.store.written
        if self._broker.end(half, what):
            self._event("decided", number, what, at)
            self._decided.setdefault(number, what)
        else:
            assert self._broker.store.written == written, "a refusal has stored something"

    def _step_round(self) -> None:
        """Time goes by, and undecided ones are asked about."""
        self._broker.connect(is_there=self.rng.random() < 0.8)
        self._broker.pass_ms(INTERVAL_MS)
        for check in self._broker.check():
            self._asked.append(asked_about(check))

    def _step_timed(self) -> None:
        number, at = self._numbers, self._at
        self._numbers += 1
        now_ms = self._broker.time.now_ms()
        deliver_ms = now_ms + self.rng.choice((1, 5, 400, WINDOW_MS, WINDOW_MS + 200, 5_000))
        others = [when for when in self._timed.values() if when > now_ms]
        if others and self.rng.random() < 0.3:
            # In one second with another, so that both may be done in one go.
            deliver_ms = self.rng.choice(others) + self.rng.randrange(300)
        place = self._broker.send_timed(body_of(number), f"T{number}", deliver_ms)
        self._timed[number] = deliver_ms
        self._event("timed", number, deliver_ms, at, place.end)

    def _step_recall(self) -> None:
        now_ms = self._broker.time.now_ms()
        waiting = [number for number, when in self._timed.items() if when > now_ms + 1]
        if waiting:
            number, at = self.rng.choice(waiting), self._at
            place = self._broker.recall(f"T{number}", self._timed[number])
            self._event("recalled", number, self._timed[number], at, place.end)

    def _step_wait(self) -> None:
        self._broker.pass_ms(self.rng.choice((500, WINDOW_MS // 2, WINDOW_MS)))

    def _step_leap(self) -> None:
        self._broker.leap_ms(self.rng.choice((1_500, WINDOW_MS, 3 * WINDOW_MS)))

    def _step_sync(self) -> None:
        self._broker.sync()

    def _step_check(self) -> None:
        """The progress of transactions, without a round."""
        self._broker.transactions._checks.save_progress()

    def _step_save(self) -> None:
        at = self._at
        self._broker.save()
        self._note_saved(at)

    def _note_saved(self, at: int) -> None:
        """Note the content of the files of progress, which was saved since `at`."""
        image = self._files.image()
        if (cursor := cursor_in(image)) is not None:
            self._event("cursor", 0, cursor, at, 0)
        if (progress := progress_in(image)) is not None:
            self._event("progress", 0, progress, at, 0)

    def _step_flush_queues(self) -> None:
        self._broker.store.flush_queues(thorough=self.rng.random() < 0.7)

    def _step_allocate(self) -> None:
        self._broker.store.allocate()

    def _step_close(self) -> None:
        at = self._at
        if self._broker.close():
            self._life.durable.append((self._at, self._broker.store.written))
        self._note_saved(at)

    def _step_reopen(self) -> None:
        self._step_close()
        self._open()

    def _step_kill(self) -> None:
        self._broker.store.abandon()
        self._open()

    def _step_kill_inside(self) -> None:
        """The process is killed in the middle of the step before: the life goes on from there."""
        begin, end = self._step_began, self._at
        if end - begin >= 2:
            self._go_on_at(self.rng.randint(begin + 1, end - 1))


def asked_about(check: Command) -> tuple[int, tuple[int, int]]:
    """The number of the transaction, and the place of the copy."""
    half = int(check.ext["tranStateTableOffset"]), int(check.ext["commitLogOffset"])
    return number_of(read_record(check.body, 0).body), half


def cursor_in(image: State) -> tuple[int, int] | None:
    """How far the timer has come, by its file; None without one."""
    text = image.get(TIMER_FILE)
    if text is None:
        return None
    found = members_of(text)
    return found["actionMs"], found["logOffset"]


def progress_in(image: State) -> tuple[int, int] | None:
    """How far transactions have come in the half and in the op queue; None without a file."""
    text = image.get(OFFSETS_FILE)
    if text is None:
        return None
    table = members_of(text)["offsetTable"]
    half, op = (table.get(f"{topic}@CID_RMQ_SYS_TRANS", {}).get("0", 0) for topic in (HALF, OP))
    return half, op
