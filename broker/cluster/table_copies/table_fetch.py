"""Fetches tables of a master that have changed: of a master of ours, or of RocketMQ.

Ours answers REPLICA_TABLES (31021) with the versions of all tables, and with those that have
changed. RocketMQ answers code 3; it is asked for its four tables each time (21, 43, 45, 201), and
whether these have changed is seen from their bytes. Where its log ends (28) is asked before and
after: a copy knows of nothing that lies behind the second, and of all that lies before the first.

Which of both it is, is found out once on each connection. Loop thread only.
"""

from __future__ import annotations

from collections.abc import Mapping
from hashlib import blake2b
from typing import Final, NamedTuple

from aerobee.broker.cluster.table_copies.master_calls import MasterCalls, MasterRefused
from aerobee.protocol.bodies.common import parse_kv_table
from aerobee.protocol.codes import RequestCode, ResponseCode
from aerobee.protocol.errors import BadRequest
from aerobee.protocol.headers.replica_tables import (
    DELAYS,
    GROUPS,
    OFFSETS,
    TABLES,
    TOPICS,
    ReplicaTablesResponse,
    decode_tables,
    versions_of,
)

_REQUESTS_OF_ROCKETMQ: Final = {
    TOPICS: RequestCode.GET_ALL_TOPIC_CONFIG,
    GROUPS: RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG,
    OFFSETS: RequestCode.GET_ALL_CONSUMER_OFFSET,
    DELAYS: RequestCode.GET_ALL_DELAY_OFFSET,
}
# Versions of RocketMQ's tables: bytes of a digest.
_DIGEST_BYTES: Final = 16


class Fetched(NamedTuple):
    """Tables that have changed, with their versions; the end of the master's log was between these
    log offsets meanwhile. `more`: others have changed too, and are to be fetched at once.
    `log_first` is the first log offset that the master has, None if it does not tell."""

    log_begin: int
    log_end: int
    tables: Mapping[str, bytes]
    versions: Mapping[str, str]
    more: bool = False
    log_first: int | None = None

    @property
    def size(self) -> int:
        """Bytes of the tables."""
        return sum(map(len, self.tables.values()))


class TableFetch:
    """Fetches from one master after the other."""

    def __init__(self, calls: MasterCalls) -> None:
        self._calls = calls
        # The number of the connection, and whether a broker of ours is at its other end.
        self._connection = 0
        self._is_ours = True

    @property
    def is_ours(self) -> bool:
        """Whether the last `fetch` was from a broker of ours."""
        return self._is_ours

    async def fetch(self, known: Mapping[str, str]) -> Fetched:
        """The tables that have another version than the `known` one, "" for none. Tables that are
        not in `known` are not fetched. Raises RemotingError, MasterRefused."""
        await self._calls.caller()
        if self._connection != self._calls.connections:
            self._connection, self._is_ours = self._calls.connections, True
        if self._is_ours:
            fetched = await self._fetch_ours(known)
            if fetched is not None:
                return fetched
            self._is_ours = False
        return await self._fetch_rocketmq(known)

    async def _fetch_ours(self, known: Mapping[str, str]) -> Fetched | None:
        code = RequestCode.REPLICA_TABLES
        answer = await self._calls.call(code, dict(known))
        if answer.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED:
            return None
        self._calls.check(answer, code)
        try:
            header = ReplicaTablesResponse.from_ext(answer.ext)
            tables, versions = decode_tables(answer.body), versions_of(answer.ext)
        except BadRequest as error:
            raise self._unreadable(code, error) from error
        changed = {name: tables[name] for name in tables if name in known and name in versions}
        ends = header.log_begin, header.log_end
        return Fetched(*ends, changed, versions, header.more, header.log_first)

    async def _fetch_rocketmq(self, known: Mapping[str, str]) -> Fetched:
        _, log_begin = await self._log_range()
        tables: dict[str, bytes] = {}
        versions: dict[str, str] = {}
        for name in [one for one in TABLES if one in known and one in _REQUESTS_OF_ROCKETMQ]:
            table = await self._calls.ask(_REQUESTS_OF_ROCKETMQ[name])
            versions[name] = digest_of(table)
            if versions[name] != known[name]:
                tables[name] = table
        log_first, log_end = await self._log_range()
        return Fetched(log_begin, log_end, tables, versions, log_first=log_first)

    async def _log_range(self) -> tuple[int, int]:
        """Where the log of RocketMQ's master begins and ends."""
        code = RequestCode.GET_BROKER_RUNTIME_INFO
        try:
            found = parse_kv_table(await self._calls.ask(code))
            return int(found.get("commitLogMinOffset", 0)), int(found["commitLogMaxOffset"])
        except (BadRequest, KeyError, ValueError) as error:
            raise self._unreadable(code, error) from error

    def _unreadable(self, code: RequestCode, error: Exception) -> MasterRefused:
        return MasterRefused(
            f"the answer of the master at {self._calls.peer} to request {int(code)} cannot be "
            f"read: {error!r}"
        )


def digest_of(table: bytes) -> str:
    """A version of a table that has none of its own."""
    return blake2b(table, digest_size=_DIGEST_BYTES).hexdigest()
