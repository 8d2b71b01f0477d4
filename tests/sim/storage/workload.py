"""Seeded workloads: what is done to the store, step by step, and what it answers.

A `Plan` says which steps there are and how often; the seed chooses. Everything is deterministic:
the same plan and seed give the same journal, so a crash state is named by (plan, seed, life, place,
choice) and can be built again.

A power cut ends a life: one state of the disk at that moment is chosen, and the next life begins
with a recovery on it. A kill does not: what the process has stored stays as unsynced as it was. So
lives have recoveries in their journals, and crashes inside recoveries are crashes like all others.
"""

import random
from dataclasses import dataclass, field
from typing import NamedTuple

from aerobee.config.model import Settings
from aerobee.protocol.message.record import StoreMessage, encode_record
from aerobee.store.errors import StoreBroken
from aerobee.store.segments.results import PutResult
from tests.sim.disk.crash_choices import picks_of
from tests.sim.disk.crash_model import CrashModel, State
from tests.sim.disk.recorded_files import Event, RecordedFiles, Start
from tests.sim.storage.history import HALF, ROLLBACK, Deleted, Expected, Life, Mark, Seen, Sent
from tests.sim.storage.raw_store import parse_log
from tests.sim.storage.recovered import ROOT
from tests.sim.storage.stepped_store import SteppedClock, SteppedStore
from tests.unit.store.support import FIRST_MS, Heard, message, small_settings

SEGMENT = 8192
QUEUES = (("Orders", 0), ("Orders", 1), ("%RETRY%g", 0), ("SCHEDULE_TOPIC_XXXX", 3))


@dataclass(frozen=True)
class Plan:
    """A kind of workload."""

    name: str
    sync_flush: bool
    steps: int
    # How often each step is taken, by its name.
    weights: dict[str, int]
    # After how many steps each life ends with a crash.
    crashes: tuple[int, ...] = ()
    body_sizes: tuple[int, ...] = (10, 120, 700)
    settings: dict[str, object] = field(default_factory=dict)
    segment: int = SEGMENT

    def store_settings(self) -> Settings:
        """The store's settings; nothing happens by itself."""
        never = 3_600_000
        values: dict[str, object] = {
            "flush_disk_type": "SYNC_FLUSH" if self.sync_flush else "ASYNC_FLUSH",
            "commit_log_segment_bytes": self.segment,
            "flush_interval_ms": never,
            "flush_timed": False,
            "consume_queue_flush_interval_ms": never,
            "max_message_bytes": self.segment // 2,
        }
        return small_settings(ROOT, **(values | self.settings))


@dataclass(frozen=True)
class Rules:
    """How the runner behaves; negative controls change it."""

    files: type[RecordedFiles] = RecordedFiles
    # Count a message as acknowledged when its put returns, whatever the flush mode.
    ack_on_put: bool = False


class Opening(NamedTuple):
    """A start within a life: its first and last place in the journal, and the disk after it."""

    begin: int
    end: int
    image: State
    # Whether all that it found was durable; then a power cut inside it changes nothing either.
    of_durable: bool


class Recorded(NamedTuple):
    """A life with its journal and its starts."""

    life: Life
    start: Start
    journal: list[Event]
    openings: list[Opening]
    boot: str
    time_ms: int
    segment_bytes: int


class Runner:
    """Runs one workload; `lives` is what came of it."""

    def __init__(self, plan: Plan, seed: int, rules: Rules | None = None) -> None:
        self.plan = plan
        self.rules = rules or Rules()
        self.rng = random.Random(f"{plan.name} {seed}")
        self.settings = plan.store_settings()
        self.clock = SteppedClock()
        self.lives: list[Recorded] = []
        self.log: list[str] = []
        self._numbers = 0
        self._step_began = 0
        self._life = Life([], plan.sync_flush)
        self._openings: list[Opening] = []
        self._boots = 1
        self._files = self.rules.files(ROOT, {}, self._boot)
        self._store: SteppedStore

    def run(self) -> list[Recorded]:
        """All lives, from an empty disk on."""
        plan = self.plan
        names, weights = list(plan.weights), list(plan.weights.values())
        self._open()
        for step in range(plan.steps):
            if self._store.broken is not None or step in plan.crashes:
                self._crash()
            name = self.rng.choices(names, weights)[0]
            self._do(name)
        if self._store.broken is None:
            self._do("close")
        else:
            self._store.abandon()
        self._end_life()
        return self.lives

    @property
    def _boot(self) -> str:
        return f"boot {self._boots}"

    # --- lives ------------------------------------------------------------------------------

    def _open(self) -> None:
        self._files.observe()
        begin = len(self._files.journal)
        self._store = SteppedStore.open(
            self.settings, self._files, self.clock, listener=Heard(self._durable)
        )
        self._files.observe()
        end = len(self._files.journal)
        self._openings.append(Opening(begin, end, self._files.image(), begin == 0))
        # Recovery has synced what it found.
        self._life.acked.append(Mark(end, self._store.durable))

    def _end_life(self) -> None:
        self._files.observe()
        files = self._files
        self.lives.append(
            Recorded(
                self._life,
                files.start,
                files.journal,
                self._openings,
                self._boot,
                self.clock.time_ms,
                self.plan.segment,
            )
        )

    def _crash(self) -> None:
        """The disk as a crash leaves it now, and a new life on it."""
        self._end_life()
        self._store.abandon()
        model = CrashModel.at(self._files.start, self._files.journal)
        doubts = model.doubts()
        choice = self.rng.choice(("none", "all", "random-1", "random-2", "torn-3"))
        if choice.startswith("torn") and not any(doubt.kind == "page" for doubt in doubts):
            choice = "none"
        self.log.append(f"crash, {len(doubts)} doubts, {choice}")
        state = model.build(doubts, picks_of(choice, doubts))
        now = self._life.expected(len(self._files.journal))
        self._boots += 1
        self._files = self.rules.files(ROOT, state, self._boot)
        self._life, self._openings = Life([], self.plan.sync_flush), []
        self._open()
        self._life.base = _survivors(self._files.image(), now)
        end = self._store.written
        self._life.deleted = [
            Deleted(0, topic, min(below, end)) for topic, below in now.deleted.items()
        ]
        self._life.seen = [Seen(0, *seen[1:]) for seen in now.seen]

    def _go_on_at(self, place: int) -> None:
        """The process is killed at an earlier place; the disk of then goes on."""
        start, journal = self._files.start, self._files.journal[:place]
        self._store.abandon()
        image, numbers = CrashModel.at(start, journal).newest()
        self._files = self.rules.files(ROOT, image, self._boot, numbers)
        self._files.go_on_from(start, journal)
        self._life = self._life.cut_at(place)
        self._openings = [opening for opening in self._openings if opening.end <= place]
        self._open()
        self._life.settle(log_offsets(self._files.image()), len(self._files.journal))

    # --- what the store says ----------------------------------------------------------------

    def _durable(self, mark: int) -> None:
        self._files.observe()
        self._life.acked.append(Mark(len(self._files.journal), mark))

    def _arrivals(self, store: SteppedStore) -> None:
        arrivals = store.dispatch()
        self._files.observe()
        at = len(self._files.journal)
        for arrival in arrivals:
            queue = (arrival.topic, arrival.queue_id)
            number = self._life.number_of(queue, arrival.queue_offset, store.dispatched)
            self._life.seen.append(Seen(at, queue, arrival.queue_offset, number))

    # --- steps ------------------------------------------------------------------------------

    def _do(self, name: str) -> None:
        passed_ms = self.rng.choice((0, 1, 20, 900))
        self.clock.time_ms += passed_ms
        self.clock.passed_s += passed_ms / 1000
        at = len(self._files.journal)
        self.log.append(f"{at} {name}")
        try:
            getattr(self, f"_step_{name}")()
        except StoreBroken:
            if self._store.broken is None:
                raise
        self._files.observe()
        self._step_began = at
        store = self._store
        assert store.durable <= store.written
        assert store.dispatched <= store.written

    def _step_put(self) -> None:
        self._put(1, 0)

    def _step_batch(self) -> None:
        self._put(self.rng.randint(2, 5), 0)

    def _step_set_clock(self) -> None:
        """Somebody sets the wall clock; the system allows nothing before 1970."""
        hour_ms = 3_600_000
        time_ms = self.rng.choice(
            (
                self.clock.time_ms - hour_ms,
                self.clock.time_ms + hour_ms,
                self.clock.time_ms - 24 * hour_ms,
                self.clock.time_ms + 24 * hour_ms,
                20_000,
                (1 << 31) * 1000 - 10,
                FIRST_MS,
            )
        )
        self.clock.time_ms = max(0, time_ms)

    def _step_half(self) -> None:
        self._put(1, self.rng.choice((HALF, ROLLBACK, 8)))

    def _step_sync(self) -> None:
        self._store.sync_log()

    def _step_put_in_sync(self) -> None:
        self._put(1, 0)
        self._files.during_sync = lambda _path: self._put(1, 0)
        self._store.sync_log()
        self._files.during_sync = None

    def _step_dispatch(self) -> None:
        self._arrivals(self._store)

    def _step_flush_queues(self) -> None:
        self._store.flush_queues(thorough=self.rng.random() < 0.7)

    def _step_allocate(self) -> None:
        self._store.allocate()

    def _step_delete_topic(self) -> None:
        topic = self.rng.choice(("Orders", "%RETRY%g"))
        self._files.observe()
        at = len(self._files.journal)
        self._life.deleted.append(Deleted(at, topic, self._store.written))
        self._store.delete_topic(topic)

    def _step_fail_sync(self) -> None:
        self._put(1, 0)
        self._files.fail_sync = "commitlog"
        self._store.sync_log()
        self._files.fail_sync = ""

    def _step_close(self) -> None:
        if self._store.close():
            self._files.observe()
            self._life.acked.append(Mark(len(self._files.journal), self._store.written))

    def _step_reopen(self) -> None:
        self._step_close()
        self._open()

    def _step_kill(self) -> None:
        self._store.abandon()
        self._open()

    def _step_kill_inside(self) -> None:
        """Act as if the process had been killed in the middle of the step before."""
        begin, end = self._step_began, len(self._files.journal)
        if end - begin < 2 or self._store.broken is not None:
            return
        self._go_on_at(self.rng.randint(begin + 1, end - 1))

    def _put(self, count: int, transaction: int) -> None:
        topic, queue_id = self.rng.choice(QUEUES)
        messages = [self._message(topic, queue_id, transaction) for _ in range(count)]
        self._files.observe()
        invoked = len(self._files.journal)
        store = self._store
        result = store.log.put_batch(messages) if count > 1 else store.log.put(messages[0])
        self._files.observe()
        self._remember(messages, result, invoked)
        if self.rules.ack_on_put:
            self._life.acked.append(Mark(len(self._files.journal), result.end))

    def _message(self, topic: str, queue_id: int, transaction: int) -> StoreMessage:
        self._numbers += 1
        number = self._numbers
        filler = random.Random(number).randbytes(self.rng.choice(self.plan.body_sizes))
        keys = f"k{number % 7}" if number % 2 else ""
        more = {"DELAY": str(queue_id + 1)} if topic.startswith("SCHEDULE") else {}
        return message(
            b"%06d " % number + filler,
            topic,
            queue_id,
            unique=f"U{number}",
            keys=keys,
            tags=f"T{number % 3}",
            sys_flag=transaction,
            more=more,
        )

    def _remember(self, messages: list[StoreMessage], result: PutResult, invoked: int) -> None:
        offsets = result.log_offsets or (result.log_offset,)
        returned = len(self._files.journal)
        for number, (one, log_offset) in enumerate(zip(messages, offsets, strict=True)):
            transaction = one.sys_flag & ROLLBACK
            queue_offset = result.queue_offset + number
            record = encode_record(one, queue_offset, log_offset, result.store_timestamp_ms)
            tags_code = one.tags_code
            if one.topic.startswith("SCHEDULE"):
                tags_code = self._store.delivery_time(one, result.store_timestamp_ms)
            keys = () if transaction == ROLLBACK else one.keys
            self._life.sent.append(
                Sent(
                    int(one.body[:6]),
                    one.topic,
                    one.queue_id,
                    queue_offset,
                    transaction,
                    keys,
                    tags_code,
                    log_offset,
                    record,
                    result.store_timestamp_ms,
                    result.end,
                    invoked,
                    returned,
                )
            )


def log_offsets(image: State) -> set[int]:
    """Where records stand in the log."""
    return {record.log_offset for record in parse_log(image, ROOT).records}


def _survivors(image: State, expected: Expected) -> list[Sent]:
    """The messages a recovery kept, as what the next life begins with."""
    there = log_offsets(image)
    return [sent for sent in expected.records if sent.log_offset in there]
