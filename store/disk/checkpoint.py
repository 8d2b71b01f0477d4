"""RocketMQ's checkpoint file: 4,096 bytes, three i64 times in milliseconds, the rest zero.

    0 physicMsgTimestamp   8 logicsMsgTimestamp   16 indexMsgTimestamp

They bound what a recovery after a crash must read again: messages stored up to `physic` are synced
in the commit log, up to `logics` in the consume queues, up to `index` in the index files. So a
value is taken before the sync of the data it describes and stored here after that sync, never the
other way round (the reference writes some of them early, store/FORMAT.md 7.1).

Threads: the flush threads set values, one each; `flush` is called by the consume queue flush thread
and at close.
"""

import logging
import os
import struct

from aerobee.store.disk.files import Files, is_full

log = logging.getLogger("aerobee.store")

CHECKPOINT_BYTES = 4096
TIMES = struct.Struct(">qqq")
# The reference takes this off, because times of neighbouring messages may be out of order.
_SAFETY_MS = 3000


class Checkpoint:
    """The values in memory and the file behind them."""

    def __init__(self, files: Files, path: str) -> None:
        self._files = files
        self.path = path
        self.physic_ms = 0
        self.logics_ms = 0
        self.index_ms = 0
        self._stored: tuple[int, int, int] | None = None

    def load(self) -> None:
        """Read the file; without one, or with too short a one, all times are 0 (nothing known)."""
        if not self._files.exists(self.path):
            return
        with self._files.opened(self.path, read_only=True) as fd:
            data = self._files.read(fd, 0, TIMES.size)
        if len(data) == TIMES.size:
            times = [max(0, value) for value in TIMES.unpack(data)]
            self.physic_ms, self.logics_ms, self.index_ms = times

    @property
    def min_ms(self) -> int:
        """Messages stored up to this time are synced in log and consume queues."""
        return max(0, min(self.physic_ms, self.logics_ms) - _SAFETY_MS)

    def flush(self) -> None:
        """Write and sync the file if a value has changed.

        Raises OSError; not for a full disk: the older times that stay are as true as they were.
        """
        times = (self.physic_ms, self.logics_ms, self.index_ms)
        if times == self._stored:
            return
        try:
            self._write(times)
        except OSError as error:
            if not is_full(error):
                raise
            log.warning("not written, the disk is full path=%s", self.path)
        else:
            self._stored = times

    def _write(self, times: tuple[int, int, int]) -> None:
        is_new = not self._files.exists(self.path)
        with self._files.opened(self.path, create=is_new) as fd:
            if self._files.size(fd) != CHECKPOINT_BYTES:
                self._files.set_size(fd, CHECKPOINT_BYTES)
                self._files.reserve(fd, 0, CHECKPOINT_BYTES)  # later a full disk is no matter
            self._files.write(fd, 0, TIMES.pack(*times))
            self._files.sync(fd)
        if is_new:
            self._files.sync_directory(os.path.dirname(self.path))
