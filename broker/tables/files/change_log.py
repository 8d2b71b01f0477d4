"""A table kept by its changes: a state file, and a log of what has changed since it was written.

    config/X.json      the table as it was, with a generation
    config/X.log       one line a save: what has changed since; each with its generation
    config/X.log.old   the log before this one, beside the table's backup

A save appends a line and syncs it, so it costs what has changed. When the log has outgrown the
table, `start_over` takes the log's place behind a new text of the table: it moves the log to
`X.log.old` once the text is on the disk, as the old text has become `X.json.bak`. Whichever of both
texts a start can read, the lines of its generation and of later ones lead from it to the end.

A line says what values are, never by how much they moved, so a line that is read twice does no
harm. It has a CRC-32C; a last line that is not whole was being written when the process ended, and
nobody was answered for it. A line that is damaged further up is passed over. Its file is copied
aside, and stays in force until the table is written: for its whole lines, and as the sign of the
damage. So a start that is killed before that leaves as much to the next start.

One thread at a time.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterator
from pathlib import Path

from aerobee.file_replacement import free_name, set_aside_of, sync_directory, write_synced
from aerobee.protocol.checksum import crc32c
from aerobee.store.disk.syncs import sync_all

log = logging.getLogger("aerobee.broker.state")

_MODE = 0o640
# A smaller log is not worth writing the table again.
LEAST_BYTES = 1 << 20
_CRC_DIGITS = 8


class ChangeLog:
    """The log beside one state file."""

    def __init__(self, table: Path, check: Callable[[], None] = lambda: None) -> None:
        """`check` raises OSError where nothing may be written any more."""
        self._path = table.with_suffix(".log")
        self._old = table.with_suffix(".log.old")
        self._check = check
        # Bytes of whole lines; the next append cuts off the rest that a failed append has left.
        self._size = 0
        #: Whether changes may be missing of what was read: until the table and its backup are
        #: written again, and `start_over` takes the damaged files away.
        self.is_damaged = False

    def is_longer_than(self, table_bytes: int) -> bool:
        """Whether the table, of `table_bytes`, had better be written anew: the log has outgrown
        it."""
        return self._size > max(LEAST_BYTES, table_bytes)

    @property
    def follows_a_table(self) -> bool:
        """Whether there is a log from before a table was written."""
        return self._old.exists()

    def read(self) -> Iterator[bytes]:
        """The lines, oldest first. What is damaged is named and copied aside. Raises OSError."""
        for path in (self._old, self._path):
            try:
                content = path.read_bytes()
            except FileNotFoundError:
                continue
            except IsADirectoryError:
                self._put_aside(path)
                continue
            lines, damaged, size = _whole_lines(content)
            if damaged:
                why = f"{damaged} of its {damaged + len(lines)} lines are damaged"
                self._copy_aside(path, content, why)
            if path is self._path:
                self._size = size
            yield from lines

    def append(self, line: bytes) -> None:
        """Put a line, without an end of its own, behind the others; returns once it is on the disk.
        Raises OSError; the line is not there then."""
        self._check()
        self._path.parent.mkdir(exist_ok=True)
        is_new = not self._path.exists()
        flags = os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC
        descriptor = os.open(self._path, flags, _MODE)
        try:
            os.ftruncate(descriptor, 0 if is_new else self._size)
            data = b"%08x %b\n" % (crc32c(line), line)
            start = 0 if is_new else self._size
            written = 0
            while written < len(data):
                written += os.pwrite(descriptor, data[written:], start + written)
            sync_all(descriptor)
        finally:
            os.close(descriptor)
        if is_new:
            sync_directory(self._path.parent, sync=sync_all)
        self._size = start + len(data)

    def start_over(self) -> None:
        """The table was written with all that the log says; so was its backup if `is_damaged`, and
        then no lines have to lead from that to the end. Raises OSError."""
        self._check()
        if self.is_damaged:
            self._old.unlink(missing_ok=True)
            self._path.unlink(missing_ok=True)
        elif self._path.exists():
            os.replace(self._path, self._old)
        else:
            return
        sync_directory(self._path.parent, sync=sync_all)
        self._size = 0
        self.is_damaged = False

    def _copy_aside(self, path: Path, content: bytes, why: str) -> None:
        self.is_damaged = True
        size = len(content)
        kept = [one for one in set_aside_of(path) if one.is_file() and one.stat().st_size == size]
        aside = next((one for one in kept if one.read_bytes() == content), None)
        if aside is None:  # else an earlier start has kept it
            aside = free_name(path)
            write_synced(aside, content, new=True, mode=_MODE, sync=sync_all)
            sync_directory(path.parent, sync=sync_all)
        log.error("damaged log of changes kept aside path=%s why=%s", aside, why)

    def _put_aside(self, path: Path) -> None:
        self.is_damaged = True
        aside = free_name(path)
        path.rename(aside)
        sync_directory(path.parent, sync=sync_all)
        log.error("damaged log of changes kept aside path=%s why=it is a directory", aside)


def _whole_lines(content: bytes) -> tuple[list[bytes], int, int]:
    """The whole lines, how many others stand before a whole one, and where the last whole ends."""
    lines: list[bytes] = []
    damaged = unknown = size = position = 0
    for raw in content.split(b"\n"):
        position += len(raw) + 1
        line = raw[_CRC_DIGITS + 1 :]
        if raw[: _CRC_DIGITS + 1] == b"%08x " % crc32c(line) and position <= len(content):
            lines.append(line)
            damaged, unknown, size = damaged + unknown, 0, position
        elif raw:
            unknown += 1
    # More than one line behind the last whole one was not cut off by an end of the process.
    return lines, damaged + (unknown if unknown > 1 else 0), size
