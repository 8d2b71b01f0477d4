"""A master's store and a slave's, joined by calls in the place of sockets.

Blocks pass through the bytes of the protocol, cut at places that a seed chooses.
"""

import os
import random
from collections.abc import Callable
from pathlib import Path

from aerobee.protocol.replication import HEAD_BYTES, decode_head, encode_head
from aerobee.store.log.replication.appender import Appender
from aerobee.store.log.replication.feed import Follower
from aerobee.store.message_store import MessageStore
from tests.unit.store.support import small_settings

#: Changes the bytes of a block on its way: (log offset, bytes).
OnTheWay = Callable[[int, bytes], bytes]


def unchanged(_log_offset: int, data: bytes) -> bytes:
    return data


class Pair:
    """Two open stores. `connect`, then `pump` until it says False."""

    def __init__(
        self, path: Path, compiled: object = None, seed: int = 0, **changes: object
    ) -> None:
        self.random = random.Random(seed)
        master = {"broker_role": "SYNC_MASTER", **changes}
        slave = {"broker_role": "SLAVE", "broker_id": 1, **changes}
        self.master_settings = small_settings(path / "master", **master)
        self.slave_settings = small_settings(path / "slave", **slave)
        self.master = MessageStore.open(self.master_settings, compiled=compiled)  # type: ignore[arg-type]
        self.compiled = compiled
        self.feed = self.master.make_feed()
        self.follower: Follower | None = None
        self.slave: MessageStore
        self.appender: Appender
        self.open_slave()

    def open_slave(self) -> None:
        self.slave = MessageStore.open(self.slave_settings, compiled=self.compiled)  # type: ignore[arg-type]
        self.appender = self.slave.make_appender()

    def connect(self, ask: int | None = None) -> None:
        """Begin a connection in the place of the last; ask for `ask`, or as our slaves do."""
        self.disconnect()
        self.follower = self.feed.admit()
        if ask is None:
            empty_from = self.master.min_log_offset or min(1, self.master.committed)
            ask = empty_from if self.appender.is_empty else self.appender.written
        self.appender.connect(ask)
        self.follower.report(ask)

    def disconnect(self) -> None:
        if self.follower is not None:
            self.follower.gone()
            self.follower = None

    def pump(self, most: int = 700, change: OnTheWay = unchanged) -> bool:
        """Bring one block over, and its report back; whether there was one."""
        follower = self.follower
        assert follower is not None
        piece = follower.next_piece(self.random.randint(1, most))
        if piece is None:
            return False
        data = change(piece.log_offset, os.pread(piece.fd, piece.size, piece.position))
        head = decode_head(encode_head(piece.log_offset, piece.size))
        follower.took(piece.size)
        self.receive(head.log_offset, data)
        follower.report(self.appender.report)
        return True

    def receive(self, log_offset: int, data: bytes) -> None:
        """Give the slave a block, by either way that takes it."""
        if self.random.random() >= 0.5 or not self.appender.take_whole(
            log_offset, memoryview(data)
        ):
            self.receive_parts(log_offset, data)

    def receive_parts(self, log_offset: int, data: bytes) -> None:
        """Give the slave a block in parts."""
        self.appender.block(log_offset, len(data))
        while data:
            room = self.appender.room()
            if room is None:
                continue  # its thread makes the segment
            count = self.random.randint(1, min(len(data), len(room)))
            room[:count], data = data[:count], data[count:]
            self.appender.landed(count)
            while self.appender.check():
                pass

    def pump_all(self, change: OnTheWay = unchanged) -> None:
        """Bring everything over."""
        while self.pump(change=change):
            pass

    def drain(self, most: int = 700) -> None:
        """Bring everything over, and make it visible."""
        while self.pump(most):
            pass
        self.master.dispatch()
        self.slave.dispatch()

    def log_bytes(self, store: MessageStore) -> bytes:
        """All bytes of the log of a store up to *written*."""
        return b"".join([bytes(one.view[: one.wrote]) for one in store.reader._segments.segments])

    def close(self) -> None:
        self.disconnect()
        assert self.slave.close()
        assert self.master.close()


assert HEAD_BYTES == 12
