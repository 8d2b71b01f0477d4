"""Remembers which topics were deleted, and at which log offsets (`config/deletedTopics.json`,
ours).

A message that was accepted before its topic was deleted must not appear in a topic that is made
anew under the name. So a deletion is remembered by the log offset at which it happened: a message
that waits at a lower offset belongs to the old topic. The file is written before a deletion is
answered. A deletion is forgotten when nothing waits below it (`waiting_sources.py` finds out).

A power cut can leave a log that is shorter than a deletion's offset. Messages of the topic made
anew would then be stored below it, and taken for old ones. So a start lowers all offsets to the end
of the log, and writes that to the disk before anything is stored.

A slave has the deletions of its master, which may lie above the end of its own log. It lowers them
when it becomes a master.

RocketMQ knows no such file and leaves it alone. Loop thread only, but for `save`.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Mapping
from typing import Final

import msgspec

from aerobee.broker.tables.files.state_file import JsonStateFile, members, pretty
from aerobee.protocol.codes import ResponseCode
from aerobee.protocol.errors import BadRequest
from aerobee.protocol.frames.fastjson import loads
from aerobee.protocol.names import MAX_TOPIC_CHARS

log = logging.getLogger("aerobee.broker.state")

#: Deletions that are remembered at a time; 300 bytes each here, half of that in the file.
MOST_DELETIONS: Final = 10_000


class DeletedTopics:
    """The deletions of a broker. `log_end` is the end of the log at the start; None on a slave."""

    def __init__(self, file: JsonStateFile, log_end: int | None) -> None:
        self._file = file
        stored = stored_deletions(file)
        self._offsets = dict(stored)
        #: The offset of a topic's deletion by the topic's name; the second argument is returned for
        #: a topic that was never deleted.
        self.offset_of = self._offsets.get
        self._saving = threading.Lock()
        # Snapshots: the last that was taken to be written, and the last that was written.
        self._newest = self._written = stored
        self._is_changed = False
        if log_end is not None:
            self.lower_to(log_end)

    def lower_to(self, log_end: int) -> None:
        """The log ends there: lower what lies above, and write that to the disk at once. Before
        anything is stored."""
        above = [name for name, offset in self._offsets.items() if offset > log_end]
        if not above:
            return
        self._offsets.update(dict.fromkeys(above, log_end))
        self._is_changed = True
        self.take_changes()
        try:
            self.save()
        except OSError as error:
            self.mark_unsaved()
            log.error("deleted topics not saved, will be tried again why=%s", error)

    def __len__(self) -> int:
        return len(self._offsets)

    def check_room(self, name: str) -> None:
        """Raise BadRequest (SYSTEM_BUSY) if no further deletion can be remembered."""
        if len(self._offsets) >= MOST_DELETIONS and name not in self._offsets:
            raise BadRequest(
                ResponseCode.SYSTEM_BUSY,
                f"topic[{name}] is not deleted: {len(self._offsets)} deletions are remembered, "
                "because messages wait that were accepted before them, and more cannot be; try "
                "again when those are delivered",
            )

    def add(self, name: str, log_offset: int) -> None:
        """Add the deletion of a topic: messages that wait for it below that log offset must not be
        stored."""
        self._offsets[name] = log_offset
        self._is_changed = True

    def forget_up_to(self, log_offset: int) -> None:
        """Forget the deletions up to that log offset: nothing waits below it."""
        gone = [name for name, offset in self._offsets.items() if offset <= log_offset]
        for name in gone:
            del self._offsets[name]
            self._is_changed = True

    # --- copies for slaves ---------------------------------------------------------------------

    def copy(self) -> bytes:
        """The deletions in the form of the file, for `read`: 10,000 take a millisecond."""
        return msgspec.json.encode({"deletedTopics": self._offsets})

    @staticmethod
    def read(content: bytes) -> dict[str, int]:
        """The deletions of a `copy`. Raises ValueError, KeyError, TypeError."""
        offsets = _parse(content)
        if len(offsets) > MOST_DELETIONS:
            raise ValueError(f"there are more than {MOST_DELETIONS} deletions")
        return offsets

    def replace(self, offsets: Mapping[str, int]) -> None:
        """Take the master's deletions. On a slave only."""
        if self._offsets != offsets:
            self._offsets.clear()
            self._offsets.update(offsets)
            self._is_changed = True

    # --- saving -------------------------------------------------------------------------------

    def take_changes(self) -> dict[str, int] | None:
        """A snapshot if something has changed since the last call, else None."""
        if not self._is_changed:
            return None
        self._is_changed = False
        self._newest = dict(self._offsets)
        return self._newest

    def save(self, _changes: dict[str, int] | None = None) -> None:
        """Write the newest snapshot to the disk, whichever caller took it. Any thread; raises
        OSError."""
        with self._saving:
            newest = self._newest
            if newest is not self._written:
                self._file.save(_text(newest))
                self._written = newest

    def mark_unsaved(self) -> None:
        """Note that a `save` failed: the next `take_changes` gives the table again."""
        self._is_changed = True

    def mark_lost(self) -> None:
        """Note that the file is gone: the next `take_changes` gives the table again, if it is not
        empty."""
        self._is_changed = self._is_changed or bool(self._offsets)


def stored_deletions(file: JsonStateFile) -> dict[str, int]:
    """The content of the file: log offsets by the topics' names. Raises StateFileError."""
    nothing: dict[str, int] = {}
    return file.load(_parse, nothing)


def _text(offsets: Mapping[str, int]) -> str:
    return pretty({"deletedTopics": offsets})


def _parse(content: bytes) -> dict[str, int]:
    table = members(members(loads(content))["deletedTopics"])
    offsets = {name: int(offset) for name, offset in table.items() if len(name) <= MAX_TOPIC_CHARS}
    if any(offset < 0 for offset in offsets.values()):
        raise ValueError("a log offset is negative")
    return offsets
