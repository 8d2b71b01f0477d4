"""A slave compares itself with its master before it asks for the log.

RocketMQ's slave asks at once. A slave that belongs to another cluster, or that has messages which
its master never had, then copies on top of them, and nobody notices. Here the answer is either
`Asked`, with the log offset to ask for, or `Refused`, with the reason, the first offset that
differs, and the command that helps.

    is it a master, of this cluster and name, with segments of this size, and not this broker?
    an empty slave   asks for all: the master's first offset; for 1 where that is 0, because the
                     first byte of a log is always 0 and RocketMQ sends who asks for 0 the newest
                     segment only
    else             both logs must have bytes in common, and these must be equal

Two logs that have parted stay different: a record holds its time, its queue's number and its own
place. So what was written last decides, and little has to be read.

    a master of ours   CRC-32 of the newest MiB, and of 128 KiB around the ends of at most 32
                       segments, which find what was put into the store by hand: 33 requests and
                       5 MiB of either disk, some 50 ms; all bytes of a terabyte would take hours
    RocketMQ's         the slave's last whole record (33): one request

When something differs, the first difference is found by halves. A master of ours is asked for 64
KiB in the middle until 64 MiB are left, which are read in 1,024 parts, then one of them again: some
20 requests. RocketMQ's master is asked for a record in the middle each time: some 30. A single
damaged record elsewhere may stay unseen; finding it is the scrub's work, on either side.

Work on the slave's own files is done by a worker. Loop thread only.
"""

from __future__ import annotations

import asyncio
import enum
from collections.abc import Callable, Container
from typing import NamedTuple, TypeVar, TypeVarTuple, Unpack

from aerobee.broker.replication.master_requests import (
    MasterLog,
    MasterRefuses,
    MasterRequests,
    MasterUnreachable,
    RangeSums,
)
from aerobee.broker.role import MASTER_ID
from aerobee.config.model import Settings
from aerobee.protocol.headers.log_ranges import MOST_PARTS, MOST_RANGE_BYTES, parts_of
from aerobee.store.message_store import MessageStore
from aerobee.store.replication.log_ranges import (
    LogPiece,
    LogRanges,
    RangeGone,
    RangeNotRead,
    next_step,
)

T = TypeVar("T")
Given = TypeVarTuple("Given")

_NEWEST_BYTES = 1 << 20
_SAMPLE_BYTES = 64 << 10
_SAMPLED_SEGMENTS = 32
# Blanks and damaged records that are passed over to find a whole record.
_PASSED_MOST = 64
_SLAVE = "SLAVE"


class RefusalKind(enum.Enum):
    """Why a slave does not follow a master; the values are the labels of the metric."""

    ITSELF = "itself"
    CLUSTER = "cluster"
    NAME = "name"
    NOT_MASTER = "not_master"
    SAME_ID = "same_id"
    SEGMENT = "segment"
    GAP = "gap"
    AHEAD = "ahead"
    DIFFERS = "differs"
    ACCESS = "access"
    OWN_LOG = "own_log"


class Asked(NamedTuple):
    """The logs fit: the master is asked for what begins at `log_offset`."""

    log_offset: int


class Refused(NamedTuple):
    """This slave cannot follow that master. `text` says why and what a person can do; `log_offset`
    is the place that it speaks of, None without a place."""

    kind: RefusalKind
    text: str
    log_offset: int | None = None


async def compare(
    master: MasterRequests, store: MessageStore, settings: Settings, own_addresses: Container[str]
) -> Asked | Refused:
    """Whether the slave with this store may follow `master`, and from where.

    `own_addresses` are this broker's own, written as `MasterRequests.address`. The settings are
    resolved. Raises MasterUnreachable: then the slave asks again later.
    """
    try:
        if master.address in own_addresses:
            return _itself(master.address)
        found = await master.range_sums(0, 0, 1)
        log = found.log if found is not None else await master.log_state()
        refused = _refused_for_names(log, master.address, settings)
        if refused is not None:
            return refused
        ranges = store.make_log_ranges()
        kind = _Records if found is None else _Sums
        return await _Comparison(master.address, log, ranges, settings, kind(master, ranges)).run()
    except MasterRefuses as error:
        return Refused(
            RefusalKind.ACCESS,
            f"{error}. A slave needs an administrator's account of the master, whose keys stand in "
            "conf/tools.yml here (aclToolsFile), read at the start",
        )
    except RangeNotRead as error:
        return Refused(
            RefusalKind.OWN_LOG,
            f"this slave's own log cannot be compared: {error}. 'aerobee store verify "
            f"{settings.store_path}' shows what the disk still gives",
        )
    except RangeGone as error:
        raise MasterUnreachable(f"the log has changed while it was compared: {error}") from error


# --- who it is ------------------------------------------------------------------------------------


def _itself(address: str) -> Refused:
    return Refused(
        RefusalKind.ITSELF,
        f"{address} is this broker itself: ha_master_address (haMasterAddress), or the name "
        "server's entry for broker id 0, has to name its master",
    )


def _refused_for_names(log: MasterLog, address: str, settings: Settings) -> Refused | None:
    """The refusal of a broker that cannot be this slave's master, whatever its log holds."""
    if log.cluster_name != settings.cluster_name:
        return Refused(
            RefusalKind.CLUSTER,
            f"the broker at {address} is of the cluster {log.cluster_name}, this slave is of "
            f"{settings.cluster_name}: cluster_name (brokerClusterName) has to be the master's",
        )
    if log.broker_name != settings.broker_name:
        return Refused(
            RefusalKind.NAME,
            f"the broker at {address} has the name {log.broker_name}, this slave has "
            f"{settings.broker_name}: broker_name (brokerName) has to be the master's",
        )
    if log.broker_role == _SLAVE or log.broker_id != MASTER_ID:
        same = " and has this slave's own id" if log.broker_id == settings.broker_id else ""
        return Refused(
            RefusalKind.NOT_MASTER,
            f"the broker at {address} is no master: brokerRole={log.broker_role}, "
            f"brokerId={log.broker_id}{same}. ha_master_address (haMasterAddress) has to name the "
            "master",
        )
    if log.broker_id == settings.broker_id:
        return Refused(
            RefusalKind.SAME_ID,
            f"the master at {address} and this slave have the same broker_id (brokerId), "
            f"{log.broker_id}: a slave has to have a number of its own above 0",
        )
    if log.segment_bytes != settings.commit_log_segment_bytes:
        return Refused(
            RefusalKind.SEGMENT,
            f"the master at {address} has segments of {log.segment_bytes} bytes, this slave has "
            f"segments of {settings.commit_log_segment_bytes}: commit_log_segment_bytes "
            "(mappedFileSizeCommitLog) has to be the master's, with an empty store, because the "
            "size of existing segments cannot be changed",
        )
    return None


# --- the logs -------------------------------------------------------------------------------------


class _Comparison:
    """The logs of a slave and of a master that fit by their names."""

    def __init__(
        self,
        address: str,
        log: MasterLog,
        ranges: LogRanges,
        settings: Settings,
        contents: _Sums | _Records,
    ) -> None:
        self._address = address
        self._log = log
        self._ranges = ranges
        self._settings = settings
        self._contents = contents

    async def run(self) -> Asked | Refused:
        """The outcome."""
        log, ranges = self._log, self._ranges
        first, end = ranges.first, ranges.end
        if ranges.is_empty or (end == 0 and log.min_offset == 0):
            return Asked(log.min_offset or min(1, log.max_offset))
        if log.min_offset > end:
            return self._gap(end)
        common_end = min(end, log.max_offset)
        start = max(first, log.min_offset)
        if start < common_end:
            differs = await self._contents.first_difference(start, common_end)
            if differs is not None:
                return self._differs(differs)
        return Asked(end) if end <= log.max_offset else self._ahead(end)

    def _gap(self, end: int) -> Refused:
        return Refused(
            RefusalKind.GAP,
            f"this slave's log ends at {end}, and the log of the master at {self._address} begins "
            f"at {self._log.min_offset}: what lies between is deleted there. {self._emptied}",
            end,
        )

    def _ahead(self, end: int) -> Refused:
        master_end = self._log.max_offset
        return Refused(
            RefusalKind.AHEAD,
            f"this slave's log ends at {end}, and the log of the master at {self._address} ends at "
            f"{master_end}: the slave has messages that the master has not. "
            f"{self._remedy(master_end)}",
            master_end,
        )

    def _differs(self, log_offset: int) -> Refused:
        return Refused(
            RefusalKind.DIFFERS,
            f"this slave's log differs from the log of the master at {self._address} from "
            f"{log_offset} on: each has messages that the other has not, or one of them is "
            f"damaged. {self._remedy(log_offset)}",
            log_offset,
        )

    def _remedy(self, log_offset: int) -> str:
        if log_offset <= self._ranges.first:
            return f"Make the slave the master, if its messages are the right ones. {self._emptied}"
        return (
            "Make the slave the master, if its messages are the right ones, or stop it and cut it "
            f"with 'aerobee store truncate {self._settings.store_path} --at {log_offset} --yes', "
            "which keeps what it cuts in lost+found"
        )

    @property
    def _emptied(self) -> str:
        return (
            f"Stop the slave, move {self._settings.store_path} away, and start it with an empty "
            "store: it copies all that the master has"
        )


class _Sums:
    """The contents of both logs by checksums, with a master of ours."""

    def __init__(self, master: MasterRequests, ranges: LogRanges) -> None:
        self._master = master
        self._ranges = ranges

    async def first_difference(self, start: int, end: int) -> int | None:
        """Where the first record begins that differs in a sample of [start, end), None if the
        samples are equal."""
        equal_to = start
        for low, high in samples(start, end, self._ranges.segment_bytes):
            if await self._unequal_part(low, high, 1) is not None:
                return await self._first_in(equal_to, high)
            equal_to = high
        return None

    async def _first_in(self, low: int, high: int) -> int:
        """Where the first record that differs begins. Something in [low, high) differs."""
        while high - low > MOST_RANGE_BYTES:
            middle = (low + high) // 2
            probe = middle + _SAMPLE_BYTES
            if await self._unequal_part(middle, probe, 1) is None:
                low = probe
            else:
                high = probe
        while high - low > 1:
            part = await self._unequal_part(low, high, MOST_PARTS)
            if part is None:
                raise MasterUnreachable(
                    f"the master's bytes from {low} to {high} differ from one reading to the next"
                )
            low, high = part
        return await _by_worker(self._ranges.record_start, low)

    async def _unequal_part(self, start: int, end: int, parts: int) -> tuple[int, int] | None:
        """The first of `parts` of [start, end) that differs."""
        cut = parts_of(start, end, parts)
        theirs = await self._master.range_sums(start, end, parts)
        _check_answer(theirs, start, end, len(cut))
        steps = self._ranges.checksums(cut)
        ours: list[int] | None = None
        while ours is None:
            ours = await _by_worker(next_step, steps)
        assert theirs is not None
        for part, own, other in zip(cut, ours, theirs.sums, strict=True):
            if own != other:
                return part
        return None


def _check_answer(answer: RangeSums | None, start: int, end: int, parts: int) -> None:
    """Raise MasterUnreachable unless the answer is about the whole range."""
    if answer is None or (answer.start, answer.end, len(answer.sums)) != (start, end, parts):
        raise MasterUnreachable(
            f"the master's log has not all from {start} to {end} any more: it changed while it was "
            "compared"
        )


def samples(start: int, end: int, segment_bytes: int) -> list[tuple[int, int]]:
    """The ranges of [start, end) that are compared, in order and apart from each other: the newest
    MiB, the beginning, and some KiB on both sides of segments' ends."""
    newest = max(start, end - _NEWEST_BYTES)
    first = start - start % segment_bytes + segment_bytes
    # Evenly over the log, the newest ones where there are few.
    boundaries = range(first, newest, segment_bytes)
    every = max(1, -(-len(boundaries) // _SAMPLED_SEGMENTS))
    middles = [start, *boundaries[::every]]
    found: list[tuple[int, int]] = []
    for middle in middles:
        low = max(start, middle - _SAMPLE_BYTES, found[-1][1] if found else start)
        high = min(newest, middle + _SAMPLE_BYTES)
        if low < high:
            found.append((low, high))
    return [*found, (newest, end)]


class _Records:
    """The contents of both logs by single records, with a master of RocketMQ's."""

    def __init__(self, master: MasterRequests, ranges: LogRanges) -> None:
        self._master = master
        self._ranges = ranges

    async def first_difference(self, start: int, end: int) -> int | None:
        """Where the first record of [start, end) begins that differs, None if the last whole one is
        equal."""
        last = await _by_worker(self._last_record, start, end)
        if last is None or await self._is_equal(last):
            return None
        differs = await self._first_in(start, last.start)
        log = await self._master.log_state()
        if log.min_offset > differs:
            raise MasterUnreachable("the master's log has lost its beginning while it was compared")
        return differs

    async def _first_in(self, good: int, bad: int) -> int:
        """Where the first record that differs begins. All below `good` is equal, the record at
        `bad` differs."""
        blank: LogPiece | None = None
        while good < bad:
            piece = await _by_worker(self._piece_over, good, (good + bad) // 2)
            if piece.is_blank and piece.end < bad:
                # A blank cannot be asked for: the record after it decides.
                piece = await _by_worker(self._ranges.piece_at, piece.end)
            elif piece.is_blank:
                blank = piece
            if await self._is_equal(piece):
                good = piece.end
            else:
                bad = piece.start
        return blank.end if blank is not None and blank.start == bad else bad

    async def _is_equal(self, piece: LogPiece) -> bool:
        """Whether the master has that record; what is no sound record here counts as another."""
        return piece.data is not None and await self._master.record_at(piece.start) == piece.data

    def _piece_over(self, low: int, log_offset: int) -> LogPiece:
        """What holds the byte at `log_offset`; it begins at `low` or later."""
        return self._ranges.piece_at(max(low, self._ranges.record_start(log_offset)))

    def _last_record(self, start: int, end: int) -> LogPiece | None:
        """The last sound record of [start, end)."""
        at = end
        for _ in range(_PASSED_MOST):
            if at <= start:
                break
            piece = self._ranges.piece_at(self._ranges.record_start(at - 1))
            if piece.data is not None and piece.end <= end and piece.start >= start:
                return piece
            at = piece.start
        return None


async def _by_worker(work: Callable[[Unpack[Given]], T], *given: Unpack[Given]) -> T:
    """The result of work on this slave's files."""
    return await asyncio.get_running_loop().run_in_executor(None, work, *given)
