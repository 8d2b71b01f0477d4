"""REPLICA_TABLES (31021): a slave of ours fetches what has changed in the tables of its master
(protocol/headers/replica_tables.py).

An answer holds some megabytes of tables, or a single larger table. Copies are made in steps, one
request at a time, so that several slaves do not hold several copies.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Generator, Sequence
from hashlib import blake2b
from typing import Any, Final, NamedTuple

from aerobee.broker.cluster.table_copies.copied_table import CopiedTable
from aerobee.broker.routing.router import Handler
from aerobee.broker.tables.tables import Tables
from aerobee.protocol.codes import RequestCode
from aerobee.protocol.errors import BadRequest
from aerobee.protocol.frames.command import Command, encode_success
from aerobee.protocol.frames.frame import MAX_ANSWER_BYTES
from aerobee.protocol.headers.replica_tables import (
    GROUPS,
    OFFSETS,
    TABLES,
    TOPICS,
    ReplicaTablesResponse,
    encode_tables,
    versions_of,
)
from aerobee.remoting.connections.connection import Connection
from aerobee.remoting.turns import Gate, Steps
from aerobee.store.message_store import MessageStore

# A table that would bring an answer above this waits for the next.
_ANSWER_BYTES: Final = 4 << 20
_DIGEST_BYTES: Final = 16
_RUN_BYTES: Final = 8


class _Source(NamedTuple):
    """A table: its version now, None where its bytes have to say that, and how it is copied."""

    version: Callable[[], str] | None
    copy: Callable[[], Generator[None, None, bytes]]


class ReplicaTableRequests:
    """Serves slaves. Loop thread only."""

    def __init__(self, tables: Tables, copied: Sequence[CopiedTable], store: MessageStore) -> None:
        topics, groups, offsets = tables.topics, tables.groups, tables.offsets
        self._store = store
        self._one_at_a_time = Gate(1)
        # Counters begin anew with each start: this text tells them apart.
        self._run = secrets.token_hex(_RUN_BYTES)
        self._sources: dict[str, _Source] = {
            TOPICS: _Source(self._counted(lambda: topics.state), topics.listing),
            GROUPS: _Source(self._counted(lambda: groups.state), groups.listing),
            OFFSETS: _Source(self._counted(lambda: offsets.state), offsets.listing),
            **{
                one.name: _Source(
                    None if one.version is None else self._counted(one.version), one.copy
                )
                for one in copied
            },
        }

    def handlers(self) -> dict[int, Handler]:
        """The handlers by request code."""
        return {RequestCode.REPLICA_TABLES: self.tables}

    def tables(self, _connection: Connection, command: Command) -> Steps:
        """The tables that have another version than the slave names."""
        known = versions_of(command.ext)
        yield from self._one_at_a_time.enter()
        try:
            return (yield from self._answer(command, known))
        finally:
            self._one_at_a_time.leave()

    def _answer(self, command: Command, known: dict[str, str]) -> Generator[Any, None, bytes]:
        log_begin = self._store.written
        found: list[tuple[str, bytes]] = []
        versions: dict[str, str] = {}
        size, more = 0, False
        for name in [one for one in TABLES if one in known]:
            version, table = yield from self._changed(name, known[name])
            if table is not None:
                if found and size + len(table) > _ANSWER_BYTES:
                    more = True
                    break
                found.append((name, table))
                size += len(table)
            versions[name] = version
            if size > _ANSWER_BYTES:
                more = True
                break
        if size > MAX_ANSWER_BYTES:
            raise BadRequest.system_error(
                f"the table of {found[0][0]} has {size} bytes, and an answer {MAX_ANSWER_BYTES}"
            )
        store = self._store
        header = ReplicaTablesResponse(log_begin, store.written, more, store.min_log_offset)
        return encode_success(command, encode_tables(found), {**header.to_ext(), **versions})

    def _changed(self, name: str, known: str) -> Generator[None, None, tuple[str, bytes | None]]:
        """The version of a table, and the table if that is not the known one."""
        source = self._sources[name]
        # Before the copy: what changes meanwhile may be in it or not.
        version = "" if source.version is None else source.version()
        if version and version == known:
            return version, None
        table = yield from source.copy()
        version = version or blake2b(table, digest_size=_DIGEST_BYTES).hexdigest()
        return version, None if version == known else table

    def _counted(self, count: Callable[[], object]) -> Callable[[], str]:
        return lambda: f"{self._run}.{count()}"
