"""Whether the store takes writes, and if not, why and for how long.

Three kinds of no. Reasons that pass by themselves (a full disk): set and cleared by whoever
watches, several may hold at once. Broken: a sync or write failed, what memory and disk hold may
differ, and only a restart with recovery heals it (docs/reliability.md 3.2); the first failure wins
and stays; a store whose directory was taken away is broken in the same way. Closed.

The log of a slave takes its master's records and no puts, which is no fault: `copies_only`.

`refusing` sums it up in one attribute for the append path.

Threads: any may set and clear; the lock guards the table, readers look at `refusing` and `broken`
without it.
"""

import logging
import threading

from aerobee.store.disk.store_place import GONE, PlaceWatch
from aerobee.store.errors import StoreBroken, StoreClosed, StoreError, StoreNotWritable

log = logging.getLogger("aerobee.store")

#: The kind of refusal while queues or index cannot be written for want of room, or descriptors.
DISK_FULL = "disk full"


class Breaking:
    """Reacts when a store breaks, on the thread that saw the failure. This one does nothing."""

    def begins(self, *, gone: bool) -> None:
        """Called before anybody can see it; may write to the disk, unless the store is `gone`."""

    def ended(self, error: StoreBroken) -> None:
        """Called when all can see it."""


class Health:
    """The state of one store, which has its files in `place` and reacts by `breaking`."""

    def __init__(self, breaking: Breaking | None = None, place: PlaceWatch | None = None) -> None:
        self._on_breaking = breaking or Breaking()
        self._place = place
        self._looking = threading.Lock()
        self._lock = threading.Lock()
        # Held while the store breaks: whoever meets a second failure waits until it is broken.
        self._breaking = threading.Lock()
        self._reasons: dict[str, str] = {}
        self.refusing = False
        self.broken: StoreBroken | None = None
        self.closed = False
        #: Whether all records come from a master, and none by a put.
        self.copies_only = False
        #: Why the paths of the store are no longer its own; nothing may be written to them then.
        self.gone: str | None = None

    def look_whether_there(self) -> None:
        """Stop the store if its place is gone. Two looks at once do no harm."""
        if self._place is None:
            return
        with self._looking:
            problem = None if self.closed else self._place.problem()
            # While a store closes its descriptors are those of anybody.
            if problem is not None and not self.closed:
                self.lose(problem)

    def poison(self, what: str, error: OSError) -> None:
        """A sync or write failed: no more writes until a restart.

        Noted on the disk before anybody can see it. A process that is killed the moment it refuses
        must not leave a store whose next start believes that nothing was lost.
        """
        if error.errno in GONE:
            self.look_whether_there()
        with self._breaking:
            if self.broken is not None:
                return
            self._on_breaking.begins(gone=self.gone is not None)
            broken = StoreBroken(
                f"{what} failed: {error}. The store has stopped, because what it holds in memory "
                "may differ from the disk; check the disk, then restart."
            )
            with self._lock:
                self.broken = broken
                self.refusing = True
        log.critical("store broken what=%s error=%s", what, error)
        self._on_breaking.ended(broken)

    def lose(self, problem: str) -> None:
        """The store is no longer where it was opened: no more writes, and no note of it either."""
        if self.gone is None:
            self.gone = problem
            self.poison("looking for the store", FileNotFoundError(problem))

    def refuse(self, kind: str, reason: str) -> None:
        """Take no writes for `reason` until `allow(kind)`."""
        with self._lock:
            known = kind in self._reasons
            self._reasons[kind] = reason
            self.refusing = True
        if not known:
            log.error("store refuses writes kind=%s reason=%s", kind, reason)

    def allow(self, kind: str) -> None:
        """End the refusal that `refuse(kind)` began."""
        with self._lock:
            if self._reasons.pop(kind, None) is None:
                return
            self._sum_up()
        log.warning("store takes writes again kind=%s", kind)

    def take_puts(self, *, taken: bool) -> None:
        """Take puts or, on a slave, none."""
        with self._lock:
            self.copies_only = not taken
            self._sum_up()

    def _sum_up(self) -> None:
        stopped = self.closed or self.broken is not None
        self.refusing = bool(self._reasons) or stopped or self.copies_only

    def close(self) -> None:
        """No more writes, for good."""
        with self._lock:
            self.closed = self.refusing = True

    @property
    def refused_for_now(self) -> bool:
        """Whether there is a reason that may pass by itself."""
        return bool(self._reasons)

    def error(self) -> StoreError | None:
        """The error that refuses a put now, None when puts are accepted."""
        if self.broken is not None:
            return StoreBroken(str(self.broken))
        if self.closed:
            return StoreClosed("the store is closed")
        with self._lock:
            if self._reasons:
                return StoreNotWritable("; ".join(self._reasons.values()))
        return None

    def reason(self) -> str | None:
        """The text of that error; None when puts are accepted."""
        error = self.error()
        return None if error is None else str(error)
