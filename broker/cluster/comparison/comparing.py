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

`first_difference.py` says what is read of both for that.

Loop thread only.
"""

from __future__ import annotations

import enum
from collections.abc import Container
from typing import NamedTuple

from aerobee.broker.cluster.comparison.first_difference import RecordsOfBoth, SumsOfBoth
from aerobee.broker.cluster.comparison.master_requests import (
    MasterLog,
    MasterRefuses,
    MasterRequests,
    MasterUnreachable,
)
from aerobee.broker.routing.role import MASTER_ID
from aerobee.config.model import Settings
from aerobee.store.log.replication.log_ranges import LogRanges, RangeGone, RangeNotRead
from aerobee.store.message_store import MessageStore

_SLAVE = "SLAVE"
# Each way gives up messages of the other broker: the text must not read as two steps.
_CHOOSE = "Choose which messages count. If they are the slave's, make the slave the master."


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
    OTHER_PAIR = "other_pair"


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
            return itself(master.address)
        ranges = store.make_log_ranges()
        log, contents = await _log_and_contents(master, ranges)
        refused = _refused_for_names(log, master.address, settings)
        if refused is not None:
            return refused
        return await _Comparison(master.address, log, ranges, settings, contents).run()
    except MasterRefuses as error:
        return no_access(error)
    except RangeNotRead as error:
        return Refused(
            RefusalKind.OWN_LOG,
            f"this slave's own log cannot be compared: {error}. 'aerobee store verify "
            f"{settings.store_path}' shows what the disk still gives",
        )
    except RangeGone as error:
        raise MasterUnreachable(f"the log has changed while it was compared: {error}") from error


async def is_copy(slave: MasterRequests, store: MessageStore) -> bool:
    """Whether a slave's log and this store's are equal where both have bytes, so that a queue
    offset means the same message in both. Raises MasterUnreachable, MasterRefuses, RangeNotRead,
    RangeGone."""
    ranges = store.make_log_ranges()
    log, contents = await _log_and_contents(slave, ranges)
    start, end = max(ranges.first, log.min_offset), min(ranges.end, log.max_offset)
    if start >= end:
        return ranges.end == 0 or log.max_offset == 0
    return await contents.first_difference(start, end) is None


async def _log_and_contents(
    other: MasterRequests, ranges: LogRanges
) -> tuple[MasterLog, SumsOfBoth | RecordsOfBoth]:
    """The state of another broker, and the way to compare its log with ours: by checksums with one
    of ours, by records with RocketMQ's."""
    found = await other.range_sums(0, 0, 1)
    if found is None:
        return await other.log_state(), RecordsOfBoth(other, ranges)
    return found.log, SumsOfBoth(other, ranges)


# --- who it is ------------------------------------------------------------------------------------


def no_access(error: MasterRefuses) -> Refused:
    """The refusal of a slave whose account the master does not take."""
    return Refused(
        RefusalKind.ACCESS,
        f"{error}. A slave needs an administrator's account of the master, whose keys stand in "
        "conf/tools.yml here (aclToolsFile), read at the start",
    )


def itself(address: str) -> Refused:
    """The refusal of a master at `address`, which is this broker's own."""
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
        contents: SumsOfBoth | RecordsOfBoth,
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
            f"at {self._log.min_offset}: what lies between is deleted there. To go on, "
            f"{self._emptied}",
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
            return f"{_CHOOSE} Otherwise {self._emptied}"
        return (
            f"{_CHOOSE} Otherwise stop the slave and cut it with 'aerobee store truncate "
            f"{self._settings.store_path} --at {log_offset} --yes', "
            "which keeps what it cuts in a directory lost+found-TIME"
        )

    @property
    def _emptied(self) -> str:
        return (
            f"stop the slave, move {self._settings.store_path} away, and start it with an empty "
            "store: it copies all that the master has"
        )
