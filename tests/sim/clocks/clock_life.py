"""R9: a store lives for weeks while its wall clock is set; the test knows the true time.

`World` has two clocks. True time only goes forward, an hour at a step; the wall clock follows it
until a scenario sets it. Every hour messages are sent, synced, dispatched, and deletion runs. The
claims do not depend on the scenario:

- nothing is lost: a queue serves all that was sent to it, in order, under its offset and bytes,
  from the first message that deletion left;
- store times are the wall clock's, or, where it was set back within a segment, the segment's last;
- what deletion took was as old, in true time, as the retention time says;
- nothing stays for ever: the messages still there are not much older;
- each message is found by its key, with and without its store time, and by its time in its queue
  as far as times along the queue are in order.

Seeded: the sizes of messages and the places of restarts.
"""

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

from aerobee.protocol.message.record import decode_record, decode_records
from aerobee.store.disk.owner import here
from aerobee.store.segments.results import GetStatus
from tests.sim.disk.memory_files import MemoryFiles
from tests.sim.storage.recovered import ROOT
from tests.sim.storage.stepped_store import SteppedClock, SteppedStore
from tests.unit.store.support import FIRST_MS, message, small_settings

HOUR_MS = 3_600_000
DAY_MS = 24 * HOUR_MS
RETENTION_HOURS = 72
QUEUES = 2
# The difference of a clock that counts as no step, once over a restart.
_TOLERANCE_MS = 660_000
# How late deletion may be: up to two segments, and steps that are not hourly.
_LATE_MS = 12 * HOUR_MS
_FOR_EVER = (1 << 62) - 1


class WorldClock(SteppedClock):
    """True time passes by `pass_ms`; the wall clock may be set, and may stand still."""

    def __init__(self) -> None:
        super().__init__(FIRST_MS)
        self.true_ms = FIRST_MS
        self.stopped = False

    def pass_ms(self, duration_ms: int, *, machine_on: bool = True) -> None:
        """True time goes on."""
        self.true_ms += duration_ms
        if machine_on:
            self.passed_s += duration_ms / 1000
        if not self.stopped:
            self.time_ms += duration_ms

    def right(self) -> None:
        """Somebody sets the wall clock right."""
        self.stopped = False
        self.time_ms = self.true_ms


class Sent(NamedTuple):
    """A message as it was acknowledged."""

    number: int
    queue_id: int
    queue_offset: int
    log_offset: int
    body: bytes
    store_ms: int
    true_ms: int
    segment: int


@dataclass
class Figures:
    """The printed figures of one life."""

    sent: int = 0
    deleted: int = 0
    restarts: int = 0
    youngest_deleted_h: float = 1e9
    oldest_kept_h: float = 0.0


class World:
    """One store and its clocks; `wrong` is empty if all is as promised."""

    def __init__(self, seed: int, flush: str = "SYNC_FLUSH") -> None:
        never = 1_000_000_000
        self.rng = random.Random(seed)
        self.clock = WorldClock()
        self.wrong: list[str] = []
        self.figures = Figures()
        self._settings = small_settings(
            ROOT,
            flush_disk_type=flush,
            flush_interval_ms=never,
            consume_queue_flush_interval_ms=never,
            retention_hours=RETENTION_HOURS,
            delete_hours=";".join(map(str, range(24))),
            delete_commit_log_pause_ms=0,
            delete_consume_queue_pause_ms=0,
            disk_max_used_percent=95,
            disk_force_ratio=1.0,
            index_entries=160,
        )
        self._files = MemoryFiles(ROOT)
        self._boots = 1
        self._sent: list[Sent] = []
        self._segment_ms: dict[int, int] = {}
        self.store = SteppedStore.open(self._settings, self._files, self.clock)

    # --- what happens -----------------------------------------------------------------------

    def hours(self, count: int) -> None:
        """Pass `count` hours of sends and deletion."""
        for _ in range(count):
            self.clock.pass_ms(HOUR_MS)
            for _ in range(2):
                self.send()
            self.settle()
            self.delete()

    def send(self) -> None:
        """One message, acknowledged under SYNC_FLUSH."""
        number = len(self._sent)
        body = b"%06d " % number + self.rng.randbytes(self.rng.choice((300, 900, 1500)))
        one = message(body, queue_id=number % QUEUES, unique=f"U{number}", keys="same")
        result = self.store.log.put(one)
        assert self.store.sync_log()
        segment = next(
            segment.start
            for segment in self.store._parts.segments.segments
            if segment.start <= result.log_offset < segment.end
        )
        expected = max(self.clock.time_ms, self._segment_ms.get(segment, 0))
        if result.store_timestamp_ms != expected:
            self.wrong.append(f"message {number} has the time {result.store_timestamp_ms}")
        self._segment_ms[segment] = result.store_timestamp_ms
        self._sent.append(
            Sent(
                number,
                number % QUEUES,
                result.queue_offset,
                result.log_offset,
                body,
                result.store_timestamp_ms,
                self.clock.true_ms,
                segment,
            )
        )
        self.figures.sent += 1

    def settle(self) -> None:
        """All threads of the store have had their turn."""
        self.store.dispatch()
        assert self.store.flush_queues(thorough=True)
        self.store.allocate()

    def delete(self) -> None:
        """Deletion runs, as often as it finds something."""
        while self.store.retention.run(here).doomed:
            pass
        self._judge_deletion()

    def restart(self, how: str, down_ms: int = 0) -> None:
        """`clean`, `kill`, or `cut`: another boot of the machine. Then all is read."""
        self.figures.restarts += 1
        if how == "clean":
            assert self.store.close()
        else:
            self.store.abandon()
        if how == "cut":
            self._boots += 1
            self._files = MemoryFiles(ROOT, self._files.image(), f"boot {self._boots}")
        if down_ms:
            self.clock.pass_ms(down_ms, machine_on=False)
            self.clock.passed_s = self.rng.randrange(1000)  # it counts from anywhere
        self.store = SteppedStore.open(self._settings, self._files, self.clock)
        self.read_all()

    def start_again(self, set_clock: Callable[[WorldClock], None], how: str) -> None:
        """The clock is set while the store is down."""
        set_clock(self.clock)
        self.restart(how)

    def end(self) -> None:
        """All is read and searched; the store stops in order."""
        self.read_all()
        self.search_all()
        if not self.store.close():
            self.wrong.append("the store did not close cleanly")

    def let_go(self) -> None:
        """Free the directory for the next life, after any end."""
        if self.store.open_now:
            self.store.abandon()

    # --- what must hold ---------------------------------------------------------------------

    def _there(self) -> Iterator[Sent]:
        first = self.store.min_log_offset
        return (sent for sent in self._sent if sent.log_offset >= first)

    def _judge_deletion(self) -> None:
        first = self.store.min_log_offset
        now_ms, figures = self.clock.true_ms, self.figures
        for sent in self._sent[figures.deleted :]:
            age_ms = now_ms - sent.true_ms
            if sent.log_offset >= first:
                figures.oldest_kept_h = max(figures.oldest_kept_h, age_ms / HOUR_MS)
                return
            figures.deleted += 1
            figures.youngest_deleted_h = min(figures.youngest_deleted_h, age_ms / HOUR_MS)
            if age_ms < RETENTION_HOURS * HOUR_MS - _TOLERANCE_MS:
                hours = age_ms / HOUR_MS
                self.wrong.append(f"message {sent.number} was deleted {hours:.1f} hours old")

    def judge_oldest(self, late_ms: int = 0) -> None:
        """Nothing that is there is much older than the retention time, in true time."""
        oldest = next(self._there())
        age_ms = self.clock.true_ms - oldest.true_ms
        if age_ms > RETENTION_HOURS * HOUR_MS + _LATE_MS + late_ms:
            hours = age_ms / HOUR_MS
            self.wrong.append(f"message {oldest.number} is still there, {hours:.0f} hours old")

    def read_all(self) -> None:
        """Every queue serves what was sent to it, from the first message that deletion left on."""
        for queue_id in range(QUEUES):
            wanted = [
                (sent.queue_offset, sent.body)
                for sent in self._there()
                if sent.queue_id == queue_id
            ]
            found = self._pull(queue_id)
            if found != wanted:
                missing = len([one for one in wanted if one not in found])
                self.wrong.append(f"queue {queue_id}: {missing} missing, {len(found)} served")
            if self.store.max_offset("Orders", queue_id) != wanted[-1][0] + 1:
                self.wrong.append(f"queue {queue_id} ends at another offset")

    def _pull(self, queue_id: int) -> list[tuple[int, bytes]]:
        found: list[tuple[int, bytes]] = []
        offset = self.store.min_offset("Orders", queue_id)
        while True:
            result = self.store.reader.get("Orders", queue_id, offset, 32, None)
            for view in result.views:
                found += [(one.queue_offset, one.body) for one in decode_records(bytes(view))]
            result.release()
            if result.status not in (GetStatus.FOUND, GetStatus.MESSAGE_WAS_REMOVING):
                return found
            offset = result.next_offset

    def search_all(self) -> None:
        """Search all messages by key, by key and time, and by time."""
        there = list(self._there())
        for sent in there:
            key = f"U{sent.number}"
            self._expect_hit(sent, key, 0, _FOR_EVER)
            self._expect_hit(sent, key, sent.store_ms, sent.store_ms)
            self._expect_hit(sent, key, sent.store_ms - HOUR_MS, sent.store_ms + HOUR_MS)
        for queue_id in range(QUEUES):
            self._search_by_time([sent for sent in there if sent.queue_id == queue_id])

    def _expect_hit(self, sent: Sent, key: str, begin_ms: int, end_ms: int) -> None:
        records = self.store.search.query("Orders", key, 8, begin_ms, end_ms).records
        found = [decode_record(record, 0).body for record in records]
        if found != [sent.body]:
            times = f"[{begin_ms}, {end_ms}]"
            self.wrong.append(f"query {key} stored at {sent.store_ms} in {times}: {len(found)}")

    def _search_by_time(self, queue: list[Sent]) -> None:
        """Where all before are older and none behind is: there the message itself, or an equal."""
        by_offset = {sent.queue_offset: sent for sent in queue}
        for place, sent in enumerate(queue):
            found = self.store.search.offset_by_time("Orders", sent.queue_id, sent.store_ms)
            before = [one.store_ms for one in queue[:place]]
            behind = [one.store_ms for one in queue[place + 1 :]]
            in_order = all(ms <= sent.store_ms for ms in before) and all(
                ms >= sent.store_ms for ms in behind
            )
            if found not in by_offset:
                self.wrong.append(f"time {sent.store_ms} gives the offset {found}, not there")
            elif in_order and by_offset[found].store_ms != sent.store_ms:
                self.wrong.append(f"time {sent.store_ms} gives {by_offset[found].store_ms}")
