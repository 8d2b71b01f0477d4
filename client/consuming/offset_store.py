"""Where a push consumer keeps its offsets: at the brokers (clustering) or in a file (broadcasting).

Both remember offsets as the listeners move them, and write what changed when `persist` is called:
every few seconds, when a queue is given away, at close. A crash in between repeats messages, it
never skips any. Offsets move forward only, unless an administrator or the broker says otherwise.

The local file is RocketMQ's own JSON, replaced as a whole, and locked against a second consumer
that would overwrite it.
"""

from __future__ import annotations

import asyncio
import fcntl
import hashlib
import logging
import os
from collections.abc import Collection
from pathlib import Path
from typing import Final

from aerobee.client import queue_offsets
from aerobee.client.connections.session import Session
from aerobee.client.errors import CallerError, ClientError, OffsetFileInUse
from aerobee.client.message import queue_text
from aerobee.file_replacement import replace_file
from aerobee.protocol.bodies.common import MessageQueue, encode_offset_table, parse_offset_table
from aerobee.protocol.errors import BadRequest

log = logging.getLogger(__name__)

# The longest name of a file, and the longest ending that follows the group's name.
_MAX_NAME_BYTES: Final = 255
_MAX_SUFFIX_BYTES: Final = len(".json.tmp")


class OffsetStore:
    """Stores a consumer's offsets; remembers them as its listeners move them."""

    def __init__(self) -> None:
        self._offsets: dict[MessageQueue, int] = {}
        self._changed: set[MessageQueue] = set()

    def open(self) -> None:
        """Get ready; raises CallerError when that cannot be."""

    async def read(self, queue: MessageQueue) -> int | None:
        """The stored offset, None without one; ClientError when it cannot be learnt."""
        raise NotImplementedError

    def to_carry(self, queue: MessageQueue) -> int | None:
        """The offset that a pull may carry to the broker, besides `persist`."""
        return None

    def update(self, queue: MessageQueue, offset: int, *, only_forward: bool) -> None:
        """Remember an offset; `persist` stores it."""
        before = self._offsets.get(queue)
        if before is None or (offset > before if only_forward else offset != before):
            self._offsets[queue] = offset
            self._changed.add(queue)

    async def persist(self, queues: Collection[MessageQueue]) -> None:
        """Store what changed of these; failures are logged, and the next call tries again."""
        raise NotImplementedError

    def forget(self, queue: MessageQueue) -> None:
        """The queue is no longer ours."""

    def close(self) -> None:
        """Give up the lock, if it is held."""


class BrokerOffsets(OffsetStore):
    """Offsets kept by the brokers, one table for the whole group."""

    def __init__(self, session: Session, group: str) -> None:
        super().__init__()
        self._session = session
        self._group = group

    async def read(self, queue: MessageQueue) -> int | None:
        stored = await queue_offsets.committed_offset(self._session, self._group, queue)
        if stored:  # 0 is also said of groups without a table
            self._session.commits.skip(queue_offsets.commits_key(self._group, queue))
        return stored

    def to_carry(self, queue: MessageQueue) -> int | None:
        # Once the broker has a table for it.
        begun = self._session.commits.is_done(queue_offsets.commits_key(self._group, queue))
        return self._offsets.get(queue) if begun else None

    async def persist(self, queues: Collection[MessageQueue]) -> None:
        changed = [queue for queue in queues if queue in self._changed]
        await asyncio.gather(*(self._store(queue) for queue in changed))

    async def _store(self, queue: MessageQueue) -> None:
        offset = self._offsets[queue]
        self._changed.discard(queue)
        try:
            await queue_offsets.commit_offset(self._session, self._group, queue, offset)
        except ClientError as error:
            name = queue_text(queue)
            log.warning("offset not stored queue=%s offset=%d error=%s", name, offset, error)
            if queue in self._offsets:
                self._changed.add(queue)

    def forget(self, queue: MessageQueue) -> None:
        # So that it never overwrites the next owner's offset.
        self._offsets.pop(queue, None)
        self._changed.discard(queue)


class LocalOffsets(OffsetStore):
    """Offsets of one broadcasting consumer in a file of this machine."""

    def __init__(self, directory: Path, instance: str, group: str) -> None:
        """The file is `directory/instance/group.json`, with names cut where they are too long for
        a file."""
        super().__init__()
        if "/" in instance or "\0" in instance or instance in ("", ".", ".."):
            raise CallerError(f"instance_name {instance!r} cannot be a directory's name")
        name = _short_name(group, _MAX_NAME_BYTES - _MAX_SUFFIX_BYTES)
        self._path = directory / _short_name(instance, _MAX_NAME_BYTES) / f"{name}.json"
        self._lock: int | None = None
        self._writing = asyncio.Lock()  # one temporary file, one writer

    def open(self) -> None:
        """Lock and read the file; raises OffsetFileInUse, CallerError for a damaged one."""
        self._path.parent.mkdir(parents=True, exist_ok=True)
        self._lock = _lock_file(self._path.with_suffix(".lock"))
        try:
            self._offsets = _read_offsets(self._path)
        except BaseException:
            self.close()
            raise

    async def read(self, queue: MessageQueue) -> int | None:
        return self._offsets.get(queue)

    async def persist(self, queues: Collection[MessageQueue]) -> None:
        """Write the whole table, if anything changed; off the loop, since it syncs."""
        async with self._writing:
            if not self._changed:
                return
            changed = self._changed.copy()
            self._changed.clear()
            text = encode_offset_table(self._offsets)
            try:
                await asyncio.to_thread(replace_file, self._path, text)
            except OSError as error:
                self._changed |= changed
                log.warning("offsets not stored file=%s error=%s", self._path, error)

    def close(self) -> None:
        """Unlock the file, if it is locked."""
        if self._lock is not None and self._lock in _held:
            _held.discard(self._lock)
            os.close(self._lock)
        self._lock = None


def _short_name(name: str, limit: int) -> str:
    """The name, so that it may be a file's: a longer name is cut, with a hash of all of it. No
    group has a `~` in its name, so no other group has that file."""
    encoded = name.encode(errors="surrogatepass")
    if len(encoded) <= limit:
        return name
    digest = hashlib.sha256(encoded).hexdigest()[:32]
    return encoded[: limit - 1 - len(digest)].decode(errors="ignore") + "~" + digest


def _lock_file(path: Path) -> int:
    lock = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(lock)
        raise OffsetFileInUse(
            f"{path} is locked by another broadcasting consumer; "
            "give each its own instance_name or offset_directory"
        ) from None
    _held.add(lock)
    return lock


def _leave_to_parent() -> None:
    """In a child by fork(): its copies of the locks would hold them when the parent has let go."""
    for lock in _held:
        os.close(lock)
    _held.clear()


#: Descriptors of the locks that this process holds.
_held: set[int] = set()
os.register_at_fork(after_in_child=_leave_to_parent)


def _read_offsets(path: Path) -> dict[MessageQueue, int]:
    try:
        text = path.read_bytes()
    except FileNotFoundError:
        return {}
    try:
        return parse_offset_table(text)
    except BadRequest as error:
        # An empty table would skip or repeat messages in silence: a person must decide.
        raise CallerError(f"{path} is not an offset file: {error}") from error
