"""Tells how far the log has got: one object, a log offset for each mark, each with one writer.

| mark       | everything below it ...                     | moved by; its writer               |
|------------|---------------------------------------------|------------------------------------|
| written    | has its place in the log                    | `write`; the commit log, under     |
|            |                                             | the put lock                       |
| committed  | is in the files, where reading and syncs    | `write`; with a transient pool     |
|            | end                                         | `commit`, the commit thread        |
| durable    | is on the disk: a completed sync reached it | `sync`; whichever thread syncs     |
| dispatched | is in the queues and the index              | `dispatch`; the store's caller     |
| replicated | is on as many slaves as an answer promises  | `replicate`; the store's caller    |

Others follow from them and from the settings: `kept` is the least of the marks that an answer of
success waits for, `kept_here` the least of those that this machine moves by itself, `dispatchable`
the mark up to which messages may become visible. A further condition is a mark with a move here and
a place in `kept`; everything that waits asks for `kept`.

*replicated* begins at 0, because nobody knows what slaves have until they report. `enough_slaves`
says whether it can move on: without enough slaves near enough nobody waits for it.

After the store has broken, reading ends at the durable mark of before the failure (`freeze`).

Marks move forward only, and last, when all below them is done. They begin at the end of the log
that recovery has left; a start that cuts the log off makes them afterwards, so no move takes a mark
back.

Threads: any may read, an int each. The times belong to their marks and move after them, so a reader
that reads the time first and the mark second never gets a time that is not below the mark.
"""

from aerobee.config.model import Settings
from aerobee.store.errors import StoreBroken


class StoreListener:
    """Gets the events of the store's threads. Given when the store is opened; this class ignores
    all events."""

    def moved(self, marks: "Marks") -> None:
        """A mark that something waits for has moved. Called on the thread that moved it."""

    def broken(self, error: StoreBroken) -> None:
        """A sync or write failed, and no mark moves any more. Called once, on the thread that saw
        the failure."""


class Marks:
    """The marks of a store; see the module's story."""

    __slots__ = (
        "_listener",
        "_sync_flush",
        "_waits_for_slaves",
        "answers_wait",
        "committed",
        "committed_ms",
        "counted",
        "dispatch_waits",
        "dispatched",
        "dispatched_ms",
        "durable",
        "enough_slaves",
        "frozen_at",
        "replicated",
        "written",
        "written_ms",
    )

    def __init__(
        self,
        settings: Settings,
        end: int,
        store_ms: int,
        listener: StoreListener,
        queue_entries: int = 0,
    ) -> None:
        """The log ends at `end`, with a record of the time `store_ms` (0: it has none); the ends of
        all queues add up to `queue_entries`."""
        self.written = self.committed = self.durable = self.dispatched = end
        self.written_ms = self.committed_ms = self.dispatched_ms = store_ms
        #: `dispatched` with the sum of all queues' ends, which belong together; moved after it.
        self.counted = (end, queue_entries)
        self._listener = listener
        self._sync_flush = settings.sync_flush
        self._waits_for_slaves = settings.waits_for_slaves
        self.replicated = 0
        #: Whether as many slaves as an answer promises are connected and near enough.
        self.enough_slaves = False
        #: Whether an answer of success has to wait for a mark that moves after `written`.
        self.answers_wait = settings.answers_wait
        #: Whether messages become visible by a mark that a thread of the store moves.
        self.dispatch_waits = self._sync_flush or settings.transient_pool_effective
        #: Where reading ends since the store has broken, None before.
        self.frozen_at: int | None = None

    # --- moves ------------------------------------------------------------------------------

    def write(self, end: int, store_ms: int) -> None:
        """The log has records up to `end`, the newest of the time `store_ms`."""
        self.written = self.committed = end
        self.written_ms = self.committed_ms = store_ms

    def sync(self, end: int) -> None:
        """A sync that began when `end` was committed has completed."""
        self.durable = end
        self._listener.moved(self)

    def dispatch(self, end: int, store_ms: int, added: int | None = None) -> None:
        """Queues and index have what lies below `end`, whose newest record is of `store_ms`; the
        queues' ends have grown by `added` together (None: `count` follows)."""
        self.dispatched = end
        self.dispatched_ms = store_ms
        if added is not None:
            self.counted = (end, self.counted[1] + added)

    def count(self, queue_entries: int) -> None:
        """With `dispatched` where it is, the ends of all queues add up to `queue_entries`."""
        self.counted = (self.dispatched, queue_entries)

    def replicate(self, end: int, *, enough: bool) -> None:
        """The number of slaves that an answer promises have reported `end` or more. With `enough`
        that number is connected and near enough to wait for. The caller sees to the answers that
        wait."""
        self.replicated = max(self.replicated, end)
        self.enough_slaves = enough

    def begin(self, log_offset: int) -> None:
        """The empty log of a slave begins at `log_offset`, where its master's does."""
        assert self.written == 0
        self.written = self.committed = self.durable = self.dispatched = log_offset
        self.counted = (log_offset, 0)

    def freeze(self) -> None:
        """The store is breaking: nothing that is not durable is read any more."""
        self.frozen_at = self.durable

    # --- what follows from them -------------------------------------------------------------

    @property
    def kept(self) -> int:
        """Log offset up to which the promise of an answer of success holds."""
        here = self.durable if self._sync_flush else self.written
        if self._waits_for_slaves and self.replicated < here:
            return self.replicated
        return here

    @property
    def kept_here(self) -> int:
        """Log offset up to which the part of that promise holds that needs no slave."""
        return self.durable if self._sync_flush else self.written

    @property
    def lacks_slaves(self) -> bool:
        """Whether answers of success promise copies, and not enough slaves are there to make
        them."""
        return self._waits_for_slaves and not self.enough_slaves

    @property
    def dispatchable(self) -> int:
        """Log offset up to which messages may be dispatched. Under SYNC_FLUSH no consumer sees what
        a power cut could still take back (docs/reliability.md B4)."""
        return self.durable if self._sync_flush else self.committed

    @property
    def readable(self) -> int:
        """Log offset at which reading ends."""
        return self.committed if self.frozen_at is None else self.frozen_at

    @property
    def settled(self) -> int:
        """Log offset up to which all is durable and dispatched."""
        return min(self.durable, self.dispatched)


class PooledMarks(Marks):
    """The marks of a store whose transient pool holds the newest bytes back from the files."""

    __slots__ = ()

    def write(self, end: int, store_ms: int) -> None:
        """Note that the log has records up to `end`; they are committed later."""
        self.written = end
        self.written_ms = store_ms

    def commit(self, end: int, store_ms: int) -> None:
        """Note that the files have all bytes below `end`, whose newest record is of `store_ms`."""
        self.committed = end
        self.committed_ms = store_ms
        self._listener.moved(self)
