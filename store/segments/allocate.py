"""Makes commit log segments ahead of need, on a thread of its own.

When the writer takes segment N, N+1 is asked for at once ("next and next-next"), so at the next
roll it only has to be handed over. Making one reserves all its blocks: a full disk is an error
here, before any message is accepted for it, and never a fault in the middle of an append
(docs/reliability.md 3.1). The directory is synced before the segment is handed over, so no message
is ever acknowledged in a file whose name a power cut could take away.

The directories of the log are there: a start makes them. One that is not was taken away, and is not
made anew (store/disk/store_place.py).

Where a segment goes and what kind it is are two functions given when building (`segments/paths.py`,
`transient_pool.py`); both run on the thread, so a disk that is slow to answer holds nobody up.

Invariants
- A segment exists either in `_ready` (made, nobody's) or at the writer; `close` removes the first
  kind, recovery removes what a crash left of them.
- A failure is kept until the next request for the same segment, which tries again, though not more
  often than once a second: on a full disk every send comes asking.

Threads: `take`, `prepare` and `close` belong to the writer (under the put lock) and the owner; all
state is guarded by one condition. Making happens outside of it.
"""

import logging
import os
import threading
from collections import deque
from collections.abc import Callable
from typing import NamedTuple, TypeAlias

from aerobee.store.disk.files import Clock, Files, SyncFailed, is_full, is_passing, is_refused
from aerobee.store.disk.store_health import Health
from aerobee.store.errors import SegmentCreateFailed, StoreError, StoreNotWritable
from aerobee.store.segments.mapped_file import MappedFile

log = logging.getLogger("aerobee.store.allocate")

#: How long a writer waits for a segment that is not ready yet (store/FORMAT.md 1.3).
TAKE_TIMEOUT_S = 5.0
_RETRY_PAUSE_S = 1.0
# Between two lines about segments that could not be made.
_SAY_S = 60.0

#: A function that makes a new segment of the store's size: (path, start). Raises OSError or
#: SegmentCreateFailed.
MakeSegment: TypeAlias = Callable[[str, int], MappedFile]


class _Failure(NamedTuple):
    """Why a segment was not made, and when to try again (monotonic seconds)."""

    error: StoreError
    again_at: float


class AllocateMappedFileService:
    """Segments of `segment_bytes`, made by `make` where `path_for(start)` says."""

    def __init__(
        self,
        *,
        files: Files,
        clock: Clock,
        segment_bytes: int,
        path_for: Callable[[int], str],
        make: MakeSegment,
        health: Health,
    ) -> None:
        self._files = files
        self._clock = clock
        self._segment_bytes = segment_bytes
        self._path_for = path_for
        self._make_segment = make
        self._health = health
        self._changed = threading.Condition()
        self._requested: deque[int] = deque()
        self._making: int | None = None
        self._ready: dict[int, MappedFile] = {}
        self._failed: dict[int, _Failure] = {}
        self._stopping = False
        self._thread: threading.Thread | None = None
        # A writer, or a slave, comes again and again to a full disk. The thread's own.
        self._said_at: float | None = None
        self._unlogged = 0

    def prepare(self, start: int) -> None:
        """Have the segment that begins at `start` made, without waiting for it."""
        with self._changed:
            self._request(start)

    def take(self, start: int, timeout_s: float = TAKE_TIMEOUT_S) -> MappedFile:
        """The segment that begins at `start`, mapped for writing; also has the next one made.

        Waits if it is not ready. Raises StoreNotWritable (disk full, or not ours to write) or
        SegmentCreateFailed; the caller may come again. Raises StoreBroken once the store has
        broken, which the making itself may have found out.
        """
        deadline = self._clock.monotonic() + timeout_s
        with self._changed:
            self._request(start)
            while (segment := self._pop_ready(start)) is None:
                left = deadline - self._clock.monotonic()
                if left <= 0 or self._stopping:
                    raise SegmentCreateFailed(
                        f"the segment of log offset {start} was not made within {timeout_s:g} s; "
                        "the disk is too slow, or stuck"
                    )
                self._changed.wait(left)
            return segment

    def take_ready(self, start: int) -> MappedFile | None:
        """Do `take` without waiting: None while the segment is being made. What was made for
        another place goes: an empty log may turn out to begin elsewhere."""
        self._drop_others(start)
        with self._changed:
            self._request(start)
            return self._pop_ready(start)

    def _pop_ready(self, start: int) -> MappedFile | None:
        """The segment if it is made, with the next one requested; None while it is being made.
        Raises what its making failed with."""
        if start not in self._ready:
            if start in self._failed and not self._pending(start):
                raise self._health.broken or self._failed[start].error
            return None
        segment = self._ready.pop(start)
        self._request(start + self._segment_bytes)
        return segment

    def _drop_others(self, start: int) -> None:
        """Remove the segments, and forget the requests, that the log does not go on with."""
        wanted = (start, start + self._segment_bytes)
        with self._changed:
            for other in [one for one in self._requested if one not in wanted]:
                self._requested.remove(other)
            others = [self._ready.pop(one) for one in list(self._ready) if one not in wanted]
        for segment in others:
            segment.close()
            self._remove(segment)

    def _remove(self, segment: MappedFile) -> None:
        """Remove a segment that nobody took, unless its path is another store's by now."""
        if self._health.gone is None:
            self._files.remove(segment.path)

    def close(self) -> None:
        """Stop the thread and remove the segments that nobody took."""
        with self._changed:
            self._stopping = True
            self._changed.notify_all()
        if self._thread is not None:
            self._thread.join()
        for segment in self._ready.values():
            segment.close()
            self._remove(segment)
        self._ready.clear()

    def _pending(self, start: int) -> bool:
        return start in self._requested or start == self._making

    def _request(self, start: int) -> None:
        if start in self._ready or self._pending(start) or self._stopping:
            return
        failed = self._failed.get(start)
        if failed is not None and self._clock.monotonic() < failed.again_at:
            return
        self._failed.pop(start, None)
        self._requested.append(start)
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="aerobee-allocate", daemon=True)
            self._thread.start()
        self._changed.notify_all()

    def _run(self) -> None:
        while True:
            with self._changed:
                while not self._requested and not self._stopping:
                    self._changed.wait()
                if self._stopping:
                    return
                start = self._making = self._requested.popleft()
            self._make(start)

    def _make(self, start: int) -> None:
        path = self._path_for(start)
        segment: MappedFile | None = None
        failure: _Failure | None = None
        try:
            segment = self._create(path, start)
        except OSError as error:
            refused = refusal(path, error, copies_only=self._health.copies_only)
            failure = _Failure(refused, self._clock.monotonic() + _RETRY_PAUSE_S)
            self._say_failure(path, error)
        except SegmentCreateFailed as error:
            failure = _Failure(error, self._clock.monotonic())
        else:
            # There is room again: the next failure is news.
            self._said_at, self._unlogged = None, 0
        with self._changed:
            self._making = None
            if segment is not None:
                self._ready[start] = segment
            if failure is not None:
                self._failed[start] = failure
            self._changed.notify_all()

    def _say_failure(self, path: str, error: OSError) -> None:
        now = self._clock.monotonic()
        if self._said_at is not None and now - self._said_at < _SAY_S:
            self._unlogged += 1
            return
        log.warning("segment not made path=%s error=%s unlogged=%d", path, error, self._unlogged)
        self._said_at, self._unlogged = now, 0

    def _create(self, path: str, start: int) -> MappedFile:
        if (gone := self._health.gone) is not None:
            raise FileNotFoundError(gone)
        directory = os.path.dirname(path)
        try:
            segment = self._make_segment(path, start)
        except SyncFailed as error:
            self._sync_failed(path, error)
            raise
        try:
            self._sync(directory)
        except OSError:
            segment.close()
            self._files.remove(path)
            raise
        return segment

    def _sync(self, directory: str) -> None:
        """Make a directory's names durable. Raises OSError."""
        try:
            self._files.sync_directory(directory)
        except OSError as error:
            self._sync_failed(directory, error)
            raise

    def _sync_failed(self, path: str, error: OSError) -> None:
        """An error that does not pass by itself breaks the store: a second try would succeed
        without having made the names in the directory durable."""
        if not is_passing(error):
            self._health.poison(f"the sync of {path}", error)


def mapped_maker(files: Files, size: int) -> MakeSegment:
    """Makes segments of `size` bytes that are written through their mappings."""
    return lambda path, start: MappedFile(files, path, start, size).make()


def refusal(path: str, error: OSError, *, copies_only: bool) -> StoreError:
    """The error that refuses a put, or on a slave (`copies_only`) the bytes of its master, when a
    segment cannot be made or reserved."""
    if is_full(error):
        goes_on = "Sends resume by themselves"
        if copies_only:
            goes_on = "This slave follows its master again by itself"
        return StoreNotWritable(
            f"the disk is full: {path} cannot be reserved ({error.strerror}). {goes_on} when there "
            "is room."
        )
    if is_refused(error):
        return StoreNotWritable(f"{path} cannot be made: {error.strerror}")
    return SegmentCreateFailed(f"{path} cannot be made: {error}")
