"""A master's side of replication: what each slave gets next, which reports count, the mark.

Each slave has a `Follower`. Its first report says where it goes on; from there it gets the log in
order, up to what can be read (`Marks.readable`), in pieces that end with their segment. Every
further report says how far it has come. The n-th best of these reports is the mark *replicated*,
where n is `in_sync_replicas` - 1 (store/FORMAT.md 3.4).

A report counts while its connection lives, and only if it is possible: the first one not above the
end of the log, later ones not above what was sent and never lower than before. RocketMQ believes
whatever it hears, and for ever (docs/reliability.md B8).

A slave that cannot be served is refused with `CannotFollow`, which says which offset and what to
do: RocketMQ sends it heartbeats for ever.

A follower keeps a descriptor of its own for the segment that it is at. The bytes stay until it has
them all, although retention may remove the file meanwhile.

Threads: the store's caller only.
"""

import enum
from collections.abc import Hashable
from typing import NamedTuple

from aerobee.store.errors import StoreError
from aerobee.store.log.store_core import StoreCore

# The newest bytes of the log, which are in memory: this process wrote them a moment ago.
_HOT_BYTES = 32 << 20


class FollowError(enum.Enum):
    """Why a slave cannot be served; the values are the labels of the metric."""

    BELOW = "below"
    ABOVE = "above"
    UNSENT = "unsent"
    BACK = "back"


class CannotFollow(StoreError):
    """A slave's report cannot be answered with bytes of this log; its connection ends."""

    def __init__(self, kind: FollowError, log_offset: int, text: str) -> None:
        super().__init__(text)
        self.kind = kind
        #: The offset that was reported.
        self.log_offset = log_offset


class Piece(NamedTuple):
    """Bytes of the log for one slave: `size` from `position` of the file `fd` on, which are those
    from `log_offset` on. `hot` bytes are in memory; the last piece ends where the log does."""

    fd: int
    position: int
    log_offset: int
    size: int
    hot: bool
    is_last: bool = False


class Follower:
    """One slave, as long as its connection lives. Made by `Feed.admit`."""

    def __init__(self, feed: "Feed", slave: Hashable | None) -> None:
        self._feed = feed
        #: Tells the slave from others; None: nobody knows which one it is.
        self.slave = slave
        #: Whether it has said where it goes on; nothing is sent before that.
        self.asked = False
        #: The next log offset to be sent.
        self.position = 0
        #: Its last report: up to there it has the log.
        self.reported = 0
        self._fd = -1
        self._fd_start = -1

    def report(self, log_offset: int) -> None:
        """Take a report. Raises CannotFollow."""
        if not self.asked:
            self.position = self._feed.begin_at(log_offset)
            self.asked = True
        elif log_offset > self.position:
            raise CannotFollow(
                FollowError.UNSENT,
                log_offset,
                f"it reports {log_offset}, and was sent the log up to {self.position} only",
            )
        elif log_offset < self.reported:
            raise CannotFollow(
                FollowError.BACK, log_offset, f"it reports {log_offset} after {self.reported}"
            )
        self.reported = log_offset
        self._feed.settle()

    def next_piece(self, most: int) -> Piece | None:
        """The next `most` bytes for it, fewer at the end of a segment; None if it has all. Raises
        CannotFollow, or OSError."""
        feed = self._feed
        end = feed.end
        if not self.asked or self.position >= end:
            return None
        start = self.position - self.position % feed.segment_bytes
        if start != self._fd_start:
            self._open(start)
        size = min(most, end - self.position, start + feed.segment_bytes - self.position)
        at = self.position
        return Piece(self._fd, at - start, at, size, at >= end - _HOT_BYTES, at + size == end)

    def took(self, size: int) -> None:
        """Note that `size` bytes of the piece were sent."""
        self.position += size

    @property
    def behind(self) -> int:
        """The bytes of the log that it has not reported."""
        return max(0, self._feed.end - self.reported)

    def gone(self) -> None:
        """Its connection has ended, and nobody reads for it any more."""
        self.leave()
        self.close()

    def leave(self) -> None:
        """Its connection has ended: its report does not count any more."""
        self._feed.forget(self)

    def close(self) -> None:
        """Give the descriptor back; nobody reads from it any more."""
        self._close()

    def _open(self, start: int) -> None:
        self._close()
        self._fd = self._feed.open_segment(self.position)
        self._fd_start = start

    def _close(self) -> None:
        if self._fd >= 0:
            self._feed.close_segment(self._fd)
        self._fd, self._fd_start = -1, -1


class Feed:
    """All slaves of a master."""

    def __init__(self, core: StoreCore) -> None:
        settings = core.settings
        self._marks = core.marks
        self._segments = core.segments
        self._files = core.files
        self.segment_bytes = core.segments.segment_bytes
        self._slaves_needed = max(0, settings.in_sync_replicas - 1)
        self._behind_most = settings.ha_slave_behind_max_bytes
        self._from_last = settings.sync_from_last_file
        #: The slaves that are connected.
        self.followers: set[Follower] = set()

    @property
    def end(self) -> int:
        """Log offset up to which slaves get the log."""
        return self._marks.readable

    def admit(self, slave: Hashable | None = None) -> Follower:
        """A slave has connected. Connections of the same `slave` are one copy together: one of them
        may be dead, and nobody has noticed it yet."""
        follower = Follower(self, slave)
        self.followers.add(follower)
        return follower

    def forget(self, follower: Follower) -> None:
        """A slave's connection has ended."""
        self.followers.discard(follower)
        self.settle()

    def settle(self) -> None:
        """Work the mark *replicated* out again, and whether there are enough slaves."""
        needed = self._slaves_needed
        if needed == 1:
            # One copy more is promised: the best report alone decides.
            held = max([one.reported for one in self.followers if one.asked], default=-1)
            enough = held >= 0 and self.end - held < self._behind_most
            self._marks.replicate(held, enough=enough)
            return
        reports = self._reports()
        held = reports[needed - 1] if 0 < needed <= len(reports) else 0
        near = self._near(reports)
        self._marks.replicate(held, enough=near >= needed)

    @property
    def enough(self) -> bool:
        """Whether as many slaves as an answer promises are near enough, by the last look."""
        return self._marks.enough_slaves

    @property
    def near(self) -> int:
        """How many slaves are near enough to count as copies."""
        return self._near(self._reports())

    def _near(self, reports: list[int]) -> int:
        end = self.end
        return sum([end - report < self._behind_most for report in reports])

    def _reports(self) -> list[int]:
        """The best report of each slave, the best first."""
        best: dict[Hashable, int] = {}
        for one in self.followers:
            if one.asked:
                slave = one if one.slave is None else one.slave
                best[slave] = max(one.reported, best.get(slave, 0))
        return sorted(best.values(), reverse=True)

    def begin_at(self, log_offset: int) -> int:
        """Where a slave is served from, whose first report is `log_offset`. Raises CannotFollow."""
        first, end = self._segments.min_offset, self.end
        if log_offset == 0:
            last = self._segments.last
            return last.start if self._from_last and last is not None else first
        if log_offset < first:
            raise self._below(log_offset)
        # Byte 0 of every log is 0: who asks for 1 has what an empty log will begin with.
        if log_offset > max(end, 1):
            raise CannotFollow(
                FollowError.ABOVE,
                log_offset,
                f"it goes on at {log_offset}, and this log ends at {end}: the slave has messages "
                "that this broker has not. Choose which messages count. If they are the "
                "slave's, make the slave the master. Otherwise stop the slave and cut it with "
                f"'aerobee store truncate DIR --at {end} --yes', where DIR is its store; what "
                "is cut is kept aside",
            )
        return log_offset

    def _below(self, log_offset: int) -> CannotFollow:
        return CannotFollow(
            FollowError.BELOW,
            log_offset,
            f"it goes on at {log_offset}, and this log begins at {self._segments.min_offset}: what "
            "lies between is deleted here. Empty the slave's store, and it copies all that is left",
        )

    def open_segment(self, log_offset: int) -> int:
        """A descriptor of the segment that holds `log_offset`. Raises CannotFollow when it is
        deleted, or OSError."""
        segment = self._segments.find(log_offset)
        if segment is None:
            # Retention was quicker than the slave: it is refused as if it had come now.
            raise self._below(log_offset)
        return self._files.open(segment.path, read_only=True)

    def close_segment(self, fd: int) -> None:
        """Give a descriptor of `open_segment` back."""
        self._files.close(fd)
