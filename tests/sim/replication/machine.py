"""A machine: a disk in memory, and a store on it without threads. It is a master or a slave, and
may be the other after its next start."""

import errno
import os
import random
from dataclasses import dataclass, field

from aerobee.store.log.compiled import Compiled
from aerobee.store.log.replication.appender import Appender
from aerobee.store.log.replication.feed import Feed
from tests.sim.disk.crash_choices import picks_of
from tests.sim.disk.crash_model import CrashModel, State
from tests.sim.disk.recorded_files import RecordedFiles
from tests.sim.storage.stepped_store import SteppedClock, SteppedStore, _without_thread
from tests.unit.store.support import small_settings

SEGMENT = 4096
_NEVER = 3_600_000
_ANY_LOSS = ("none", "all", "random-1", "random-2", "torn-3")


@dataclass(frozen=True)
class Case:
    """The settings of a life, and how often each step is taken."""

    slaves: int = 1
    # Copies that an answer of success promises, the master's own included.
    copies: int = 2
    sync_flush: bool = False
    # The slaves report what is synced: by haAckDurable, which is on with SYNC_FLUSH.
    ack_durable: bool = False
    slave_sync_flush: bool = False
    pool: bool = False
    behind_most: int = 1 << 30
    compiled: bool = False
    steps: int = 60
    # How often each step is taken, by its name.
    weights: dict[str, float] = field(default_factory=dict)
    # The share of blocks whose reading fails, and of those that are hurt on their way.
    read_fails: float = 0.0
    hurt: float = 0.0

    @property
    def acks_durable(self) -> bool:
        """Whether a slave's report promises that the bytes are synced."""
        return self.ack_durable or self.slave_sync_flush


@dataclass(frozen=True)
class Rules:
    """How both sides behave; negative controls change it."""

    feed: type[Feed] = Feed
    appender: type[Appender] = Appender
    # An answer waits for no report.
    ack_before_report: bool = False
    # A slave asks its master without comparing their logs.
    compares: bool = True
    # The master knows which slave has come.
    names: bool = True


class PairFiles(RecordedFiles):
    """A recorded disk that may be full."""

    full = False

    def reserve(self, fd: int, position: int, length: int) -> None:
        self._check_room()
        super().reserve(fd, position, length)

    def write(self, fd: int, position: int, data: bytes | bytearray | memoryview) -> None:
        self._check_room()
        super().write(fd, position, data)

    def _check_room(self) -> None:
        if self.full:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


class PairStore(SteppedStore):
    """The commit thread of the transient pool has its turns, too."""

    def _build_flushing(self) -> None:
        super()._build_flushing()
        if self._commits is not None:
            self._commits = _without_thread(self._commits)

    def commit(self) -> None:
        """The commit thread's turn."""
        if self._commits is not None:
            self._commits.commit(0)


class Machine:
    """Its process runs from `start` on until it is stopped; each stop is followed by a start."""

    def __init__(
        self, number: int, case: Case, rules: Rules, clock: SteppedClock, compiled: Compiled | None
    ) -> None:
        self.number = number
        self.root = f"/machine-{number}"
        self.case = case
        self.rules = rules
        self.clock = clock
        self.compiled = compiled
        self.is_master = number == 0
        self._boots = 0
        self.files = self._disk({})
        self.store: PairStore
        self.feed: Feed
        self.appender: Appender
        #: Why its master does not serve it, until somebody has done something about it.
        self.stuck = ""
        #: When it last lost something that it may lose, as a number of the life's events.
        self.lost_at = -1
        #: How far what it may promise as a slave has got, since its disk was empty.
        self.reached = 0

    def start(self) -> None:
        """Start the process."""
        self.files.full = False
        self.store = PairStore.open(
            self._settings(), self.files, self.clock, compiled=self.compiled
        )
        if self.is_master:
            self.feed = self.store.make_feed()
            self.feed.__class__ = self.rules.feed
        else:
            self.appender = self.store.make_appender()
            self.appender.__class__ = self.rules.appender
            self.note_reached()

    def _settings(self) -> object:
        case, is_master = self.case, self.is_master
        sync_flush = case.sync_flush if is_master else case.slave_sync_flush
        return small_settings(
            self.root,  # type: ignore[arg-type]
            broker_role="SYNC_MASTER" if is_master else "SLAVE",
            broker_id=0 if is_master else 1,
            flush_disk_type="SYNC_FLUSH" if sync_flush else "ASYNC_FLUSH",
            commit_log_segment_bytes=SEGMENT,
            flush_interval_ms=_NEVER,
            flush_timed=False,
            consume_queue_flush_interval_ms=_NEVER,
            max_message_bytes=SEGMENT // 2,
            in_sync_replicas=case.copies,
            ha_ack_durable=case.acks_durable,
            ha_slave_behind_max_bytes=case.behind_most,
            transient_pool_enabled=case.pool,
            transient_pool_buffers=3,
            retention_hours=1,
            delete_commit_log_pause_ms=0,
            delete_consume_queue_pause_ms=0,
        )

    # --- ways to stop -------------------------------------------------------------------------

    def close(self) -> None:
        """Stop in order."""
        self.files.full = False
        self.store.close()
        self.store.abandon()

    def kill(self) -> None:
        """End the process; the machine stays up."""
        self.store.abandon()

    def lose_power(self, chance: random.Random) -> str:
        """End all; some of what is not synced is lost. The choice's name."""
        self.store.abandon()
        choice = chance.choice(_ANY_LOSS)
        self.files = self._disk(self.after_cut(choice))
        return choice

    def after_cut(self, choice: str) -> State:
        """The disk that a power cut would leave now."""
        self.files.observe()
        model = CrashModel.at(self.files.start, self.files.journal)
        doubts = model.doubts()
        if choice.startswith("torn") and not any(doubt.kind == "page" for doubt in doubts):
            choice = "none"
        return model.build(doubts, picks_of(choice, doubts))

    def use(self, state: State) -> None:
        """The next start finds that disk."""
        self.files = self._disk(state)

    def replace_disk(self) -> None:
        """End all; the next start finds an empty disk."""
        self.store.abandon()
        self.use({})
        self.reached = 0
        self.stuck = ""

    def _disk(self, state: State) -> PairFiles:
        self._boots += 1
        return PairFiles(self.root, state, f"boot {self._boots}")

    # --- its log ------------------------------------------------------------------------------

    def note_reached(self) -> None:
        """Note what it may promise by now."""
        marks = self.store.marks
        kept = marks.durable if self.case.acks_durable else marks.written
        self.reached = max(self.reached, kept)

    @property
    def begin(self) -> int:
        """Where its log begins; an empty log begins at its end."""
        store = self.store
        return store.min_log_offset if store.reader._segments.segments else store.written

    def log_bytes(self, start: int, end: int) -> bytes:
        """The bytes of its log's files from `start` to `end`."""
        found = b""
        while start < end:
            begin = start - start % SEGMENT
            node = self.files._file(f"{self.root}/commitlog/{begin:020d}")
            stop = min(end, begin + SEGMENT)
            found += node.content()[start - begin : stop - begin]
            start = stop
        return found


def first_difference(one: Machine, other: Machine, start: int = 0) -> int | None:
    """The first log offset from `start` on where two logs differ, in what both have."""
    begin = max(one.begin, other.begin, start)
    end = min(one.store.committed, other.store.committed)
    if begin >= end or one.log_bytes(begin, end) == other.log_bytes(begin, end):
        return None
    pairs = zip(one.log_bytes(begin, end), other.log_bytes(begin, end), strict=True)
    return begin + next(at for at, (first, second) in enumerate(pairs) if first != second)
