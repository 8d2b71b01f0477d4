"""A master and a slave for comparisons: two stores, and the master's answers without a socket."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from aerobee.broker.cluster.comparison.comparing import Asked, Refused, compare
from aerobee.broker.cluster.comparison.master_requests import MasterLog, MasterRequests, RangeSums
from aerobee.broker.tables.files.state_file import JsonStateFile, pretty
from aerobee.config.model import Settings
from aerobee.protocol.headers.log_ranges import parts_of
from aerobee.store.at_rest.repair.at_rest import StoreAtRest
from aerobee.store.at_rest.repair.truncate import plan_cut, truncate
from aerobee.store.message_store import MessageStore
from tests.unit.store.support import message, small_settings, whole

NAMES = {"broker_name": "test-broker", "cluster_name": "DefaultCluster"}
MASTER = "192.0.2.7:10911"

#: Changes a master's answers about itself.
Change = Callable[[MasterLog], MasterLog]


class NearMaster(MasterRequests):
    """The answers of a master whose store is in this process; of RocketMQ's with `java`."""

    def __init__(self, settings: Settings, store: MessageStore, *, java: bool) -> None:
        self._settings = settings
        self._store = store
        self._ranges = store.make_log_ranges()
        self._java = java
        self.change: Change = lambda log: log
        self.asked = 0

    @property
    def address(self) -> str:
        return MASTER

    async def range_sums(self, start: int, end: int, parts: int) -> RangeSums | None:
        self.asked += 1
        if self._java:
            return None
        start, end = self._ranges.cut(start, end)
        sums = whole(self._ranges.checksums(parts_of(start, end, parts)))
        return RangeSums(self._log(), start, end, tuple(sums))

    async def log_state(self) -> MasterLog:
        self.asked += 1
        return self._log()

    async def record_at(self, log_offset: int) -> bytes | None:
        self.asked += 1
        return self._store.reader.record_at(log_offset)

    def _log(self) -> MasterLog:
        settings, ranges = self._settings, self._ranges
        log = MasterLog(
            settings.cluster_name,
            settings.broker_name,
            settings.broker_role,
            settings.broker_id,
            ranges.segment_bytes,
            ranges.first,
            ranges.end,
        )
        return self.change(log)


def settings_of(path: Path, role: str, **changes: object) -> Settings:
    """Small segments, and the names of one pair."""
    return small_settings(path, broker_role=role, **{**NAMES, **changes})


class Stores:
    """The directories of a master and a slave, and what is written into them."""

    def __init__(self, path: Path, **changes: object) -> None:
        self.master_settings = settings_of(path / "master", "ASYNC_MASTER", **changes)
        self.slave_settings = settings_of(path / "slave", "SLAVE", broker_id=1, **changes)

    def put_into_master(self, count: int, size: int = 300, body: bytes = b"") -> list[int]:
        """Messages into the master's log; their log offsets."""
        return put(self.master_settings, count, size, body)

    def put_into_slave(self, count: int, size: int = 300, body: bytes = b"") -> list[int]:
        """Messages into the slave's log, as if it had been a master; their log offsets."""
        return put(self.slave_settings, count, size, body)

    def copy(self) -> None:
        """Give the slave all that the master has."""
        shutil.copytree(self.master_settings.store_path, self.slave_settings.store_path)

    def cut_slave(self, log_offset: int) -> None:
        """Do what `aerobee store truncate --at` does."""
        with StoreAtRest(self.slave_settings) as rest:
            truncate(rest, plan_cut(rest, at=log_offset), _save)

    def open_slave(self) -> MessageStore:
        return MessageStore.open(self.slave_settings)

    async def outcome(self, master: MasterRequests, *own: str) -> Asked | Refused:
        """The comparison's."""
        slave = self.open_slave()
        try:
            return await compare(master, slave, self.slave_settings, own)
        finally:
            slave.close()


def _save(path: str, content: Mapping[str, Any]) -> None:
    JsonStateFile(path).save(pretty(content))


def put(settings: Settings, count: int, size: int, body: bytes) -> list[int]:
    """Messages into a store that is not open, `body` or bodies of its own; their log offsets."""
    store = MessageStore.open(settings)
    try:
        place = Path(settings.store_path).name.encode()
        bodies = [body or place + b"%d" % number + b"x" * size for number in range(count)]
        return [store.log.put(message(one, "Orders", 0)).log_offset for one in bodies]
    finally:
        store.dispatch()
        assert store.close()
